// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What kernels have cost, and which of their operations only approximate hardware's or are
//! missing.
//!
//! One [`Profile`] may serve several GPUs. Threads count for themselves while a kernel runs and add
//! up when it has ended; only then is the mutex taken. The kernel's name is looked up once for each
//! kernel object; after that queues know the kernel by its number. Nothing is searched in a row
//! under the mutex.
//!
//! Two bounds limit the memory that clients can fill. Beyond [`MOST_KERNELS`] names, costs are
//! added up under one name. Beyond [`MOST_OBJECTS`] kernel objects of an address space, all its
//! objects are forgotten together, and their names are looked up again. They are also forgotten
//! when the address space ends.
//!
//! With a path, the sums are written there for the parent process, which reads them by [`Report`].
//! They are written when a kernel ends, at most every [`PAUSE`], and when [`Profile::write`] is
//! called at the end. A forked child writes nothing.

use crate::base::lock::lock;
use crate::state::tally::Tally;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
#[cfg(target_arch = "x86_64")]
use vkfd_cu::fast::native;
use vkfd_cu::launch::DESCRIPTOR_BYTES;
use vkfd_cu::{fidelity, Fidelity};
use vkfd_isa::{Op, Target};

/// Time between two writes while kernels run.
const PAUSE: Duration = Duration::from_millis(100);

/// Kernels that have a name of their own in the sums. A name has some 200 bytes at most.
const MOST_KERNELS: usize = 1 << 13;
/// The name of all others.
const OTHERS: &str = "(other kernels)";
/// Kernel objects of an address space that are known by their number.
const MOST_OBJECTS: usize = 1 << 12;

/// What a kernel has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCost {
    pub launches: u64,
    /// Work-groups that have ended.
    pub groups: u64,
    /// Waves of these.
    pub waves: u64,
    /// Instructions that waves have executed.
    pub instructions: u64,
    /// Bytes that vector instructions have read and written in memory.
    pub bytes: u64,
    /// Nanoseconds from launch to end.
    pub nanoseconds: u64,
}

impl KernelCost {
    fn fields(&self) -> [u64; 6] {
        let KernelCost { launches, groups, waves, instructions, bytes, nanoseconds } = *self;
        [launches, groups, waves, instructions, bytes, nanoseconds]
    }

    fn from_fields(fields: [u64; 6]) -> KernelCost {
        let [launches, groups, waves, instructions, bytes, nanoseconds] = fields;
        KernelCost { launches, groups, waves, instructions, bytes, nanoseconds }
    }

    fn add(&mut self, other: &KernelCost) {
        let (a, b) = (self.fields(), other.fields());
        *self = KernelCost::from_fields(std::array::from_fn(|index| a[index].saturating_add(b[index])));
    }
}

/// The sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By kernel.
    pub kernels: BTreeMap<String, KernelCost>,
    /// Operations executed that approximate hardware's: how often, and how.
    pub approximate: BTreeMap<String, (u64, String)>,
    /// Operations that ended a kernel because they are missing.
    pub missing: BTreeMap<String, u64>,
    /// Wave instructions that the reference engine executed for the fast one: by kernel, operation
    /// and reason ([`vkfd_cu::Detour::name`]). At most [`DETOURS`] entries; later ones are counted
    /// for [`OTHER_DETOURS`].
    pub detours: BTreeMap<(String, String, String), u64>,
    /// Sums of translated code: `blocks`, their `instructions`, those of them that are in regions
    /// (`translated`), `bytes` of code, `nanoseconds`. Of checked regions, how many were run twice
    /// (`checked`) and how many differed (`wrong`).
    pub translation: BTreeMap<String, u64>,
    /// Instructions of hot blocks that are in no region, by operation and reason.
    pub refused: BTreeMap<(String, String), u64>,
}

/// Entries of [`Report::detours`].
pub const DETOURS: usize = 4096;
/// The kernel and operation of detours that have no entry of their own.
pub const OTHER_DETOURS: &str = "(others)";

impl Report {
    /// Adds another one's sums.
    pub fn add(&mut self, other: &Report) {
        for (name, cost) in &other.kernels {
            self.kernels.entry(name.clone()).or_default().add(cost);
        }
        for (name, (times, why)) in &other.approximate {
            self.approximate.entry(name.clone()).or_insert_with(|| (0, why.clone())).0 += times;
        }
        for (name, times) in &other.missing {
            *self.missing.entry(name.clone()).or_default() += times;
        }
        for ((kernel, op, why), times) in &other.detours {
            self.add_detour(kernel, op, why, *times);
        }
        for (name, count) in &other.translation {
            *self.translation.entry(name.clone()).or_default() += count;
        }
        for (key, times) in &other.refused {
            *self.refused.entry(key.clone()).or_default() += times;
        }
    }

    fn add_detour(&mut self, kernel: &str, op: &str, why: &str, times: u64) {
        let key = (kernel.to_owned(), op.to_owned(), why.to_owned());
        let full = self.detours.len() >= DETOURS && !self.detours.contains_key(&key);
        let key = if full { (OTHER_DETOURS.to_owned(), OTHER_DETOURS.to_owned(), why.to_owned()) } else { key };
        *self.detours.entry(key).or_default() += times;
    }
}

/// One line for each entry, its fields divided by tabulators.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, cost) in &self.kernels {
            write!(f, "kernel\t{name}")?;
            cost.fields().iter().try_for_each(|field| write!(f, "\t{field}"))?;
            f.write_char('\n')?;
        }
        for (name, (times, why)) in &self.approximate {
            writeln!(f, "approximate\t{name}\t{times}\t{why}")?;
        }
        for ((kernel, op, why), times) in &self.detours {
            writeln!(f, "detour\t{kernel}\t{op}\t{why}\t{times}")?;
        }
        for (name, count) in &self.translation {
            writeln!(f, "translation\t{name}\t{count}")?;
        }
        for ((op, why), times) in &self.refused {
            writeln!(f, "refused\t{op}\t{why}\t{times}")?;
        }
        self.missing.iter().try_for_each(|(name, times)| writeln!(f, "missing\t{name}\t{times}"))
    }
}

/// A line without a report's form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no line of a profile")]
pub struct BadReport(String);

impl FromStr for Report {
    type Err = BadReport;

    fn from_str(text: &str) -> Result<Report, BadReport> {
        let mut report = Report::default();
        for line in text.lines() {
            let bad = || BadReport(line.into());
            let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["kernel", name, ref fields @ ..] => {
                    let fields = fields.iter().map(|field| number(field)).collect::<Result<Vec<_>, _>>()?;
                    let fields = fields.try_into().map_err(|_| bad())?;
                    report.kernels.insert(name.into(), KernelCost::from_fields(fields));
                }
                ["approximate", name, times, why] => {
                    report.approximate.insert(name.into(), (number(times)?, why.into()));
                }
                ["detour", kernel, op, why, times] => report.add_detour(kernel, op, why, number(times)?),
                ["translation", name, count] => {
                    report.translation.insert(name.into(), number(count)?);
                }
                ["refused", op, why, times] => {
                    report.refused.insert((op.into(), why.into()), number(times)?);
                }
                ["missing", name, times] => {
                    report.missing.insert(name.into(), number(times)?);
                }
                _ => return Err(bad()),
            }
        }
        Ok(report)
    }
}

/// An address space: GPU, VMID.
pub(crate) type Space = (usize, u32);

/// A kernel object in an address space: where it is, and its bytes.
pub(crate) type Object = (u64, [u8; DESCRIPTOR_BYTES]);

/// The number of a kernel, by its name: several objects may have the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelId(usize);

#[derive(Debug, Default)]
struct State {
    objects: HashMap<Space, HashMap<Object, KernelId>>,
    numbers: HashMap<Arc<str>, KernelId>,
    kernels: Vec<(Arc<str>, KernelCost)>,
    /// Everything but the kernels.
    rest: Report,
    written: Option<Instant>,
}

impl State {
    fn report(&self) -> Report {
        let kernels = self.kernels.iter().map(|(name, cost)| (name.to_string(), *cost)).collect();
        Report { kernels, ..self.rest.clone() }
    }

    /// The number of the kernel of this name.
    fn number(&mut self, name: &str) -> KernelId {
        let name = if self.kernels.len() < MOST_KERNELS || self.numbers.contains_key(name) { name } else { OTHERS };
        if let Some(&kernel) = self.numbers.get(name) {
            return kernel;
        }
        let (name, kernel) = (Arc::<str>::from(name), KernelId(self.kernels.len()));
        self.kernels.push((name.clone(), KernelCost::default()));
        self.numbers.insert(name, kernel);
        kernel
    }
}

/// Sums over all launches.
#[derive(Debug)]
pub struct Profile {
    path: Option<PathBuf>,
    process: u32,
    state: Mutex<State>,
    /// Held while the file is written, so that the last one written has the last sums. Before
    /// `state`.
    writing: Mutex<()>,
}

impl Profile {
    /// Sums that are also written to `path`, if there is one.
    pub fn new(path: Option<PathBuf>) -> Profile {
        Profile { path, process: std::process::id(), state: Mutex::default(), writing: Mutex::default() }
    }

    /// The sums so far.
    pub fn report(&self) -> Report {
        lock(&self.state).report()
    }

    /// Writes the sums. Nothing happens without a path, or in a forked child. Errors are for
    /// nobody: the program has no part in this.
    pub fn write(&self) {
        if let Some(path) = self.path.as_ref().filter(|_| std::process::id() == self.process) {
            let _writing = lock(&self.writing);
            let report = {
                let mut state = lock(&self.state);
                state.written = Some(Instant::now());
                state.report()
            };
            // Whole or not at all.
            let new = path.with_extension("new");
            if std::fs::write(&new, report.to_string()).and_then(|()| std::fs::rename(&new, path)).is_err() {
                tracing::warn!(path = %path.display(), "the profile cannot be written");
            }
        }
    }

    /// Kernel objects that are known by their number, of all address spaces.
    pub fn objects(&self) -> usize {
        lock(&self.state).objects.values().map(HashMap::len).sum()
    }

    /// The kernel of an object that was seen before.
    pub(crate) fn kernel(&self, space: Space, object: &Object) -> Option<KernelId> {
        lock(&self.state).objects.get(&space)?.get(object).copied()
    }

    /// The kernel of an object that was not, of this name.
    pub(crate) fn add_object(&self, space: Space, object: Object, name: &str) -> KernelId {
        let mut state = lock(&self.state);
        let kernel = state.number(name);
        let objects = state.objects.entry(space).or_default();
        if objects.len() >= MOST_OBJECTS {
            // They are found again by their names.
            objects.clear();
        }
        objects.insert(object, kernel);
        kernel
    }

    /// An address space has ended, or another one has begun in its place: its kernel objects are no
    /// more.
    pub(crate) fn forget(&self, space: Space) {
        lock(&self.state).objects.remove(&space);
    }

    /// A kernel's name.
    pub(crate) fn name(&self, kernel: KernelId) -> Arc<str> {
        lock(&self.state).kernels.get(kernel.0).map_or_else(|| OTHERS.into(), |(name, _)| name.clone())
    }

    /// Adds a launch.
    pub(crate) fn add(&self, kernel: KernelId, target: Target, tally: &Tally, took: Duration) {
        let due = {
            let mut state = lock(&self.state);
            let cost = KernelCost {
                launches: 1,
                groups: tally.groups,
                waves: tally.waves,
                instructions: tally.instructions,
                bytes: tally.bytes,
                nanoseconds: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            };
            let State { kernels, rest, .. } = &mut *state;
            if let Some((name, sum)) = kernels.get_mut(kernel.0) {
                sum.add(&cost);
                for (&(op, why), &times) in &tally.detours {
                    rest.add_detour(name, &mnemonic(op), why.name(), times);
                }
            }
            for (&op, times) in &tally.inexact {
                let entry = state.rest.approximate.entry(mnemonic(op)).or_insert_with(|| match fidelity(op, target) {
                    Fidelity::Approximate(why) => (0, why.to_owned()),
                    _ => (0, String::new()),
                });
                entry.0 += times;
            }
            self.path.is_some() && state.written.is_none_or(|written| written.elapsed() > PAUSE)
        };
        if due {
            self.write();
        }
    }

    /// Adds what an engine has translated, and what its checks have found.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn translated(&self, report: &native::Report, found: &native::Differences) {
        if report.blocks == 0 && found.checked == 0 {
            return;
        }
        if let Some(first) = &found.first {
            tracing::error!(wrong = found.wrong, "translated code differs at {first}");
        }
        let mut state = lock(&self.state);
        let sums = [
            ("blocks", report.blocks),
            ("instructions", report.instructions),
            ("translated", report.translated),
            ("bytes", report.bytes),
            ("nanoseconds", u64::try_from(report.time.as_nanos()).unwrap_or(u64::MAX)),
            ("checked", found.checked),
            ("wrong", found.wrong),
        ];
        for (name, count) in sums.into_iter().filter(|(_, count)| *count != 0) {
            *state.rest.translation.entry(name.to_owned()).or_default() += count;
        }
        for (&(op, why), times) in &report.refused {
            *state.rest.refused.entry((mnemonic(op), why.name().to_owned())).or_default() += times;
        }
    }

    /// A kernel ended for want of `op`.
    pub(crate) fn missing(&self, op: Op) {
        *lock(&self.state).rest.missing.entry(mnemonic(op)).or_default() += 1;
        self.write();
    }
}

/// What the assembler of gfx9 calls an operation.
pub(crate) fn mnemonic(op: Op) -> String {
    op.name().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_cu::Detour;

    fn object(address: u64) -> Object {
        (address, [0; DESCRIPTOR_BYTES])
    }

    #[test]
    fn many_kernels_are_bounded_and_none_is_lost() {
        let profile = Profile::new(None);
        let tally = Tally { instructions: 1, ..Tally::default() };
        let count = 3 * MOST_KERNELS as u64;
        for address in 0..count {
            assert!(profile.kernel((0, 1), &object(address)).is_none());
            let kernel = profile.add_object((0, 1), object(address), &format!("kernel {address}"));
            profile.add(kernel, Target::Gfx900, &tally, Duration::ZERO);
            assert!(profile.objects() <= MOST_OBJECTS);
        }
        let report = profile.report();
        assert_eq!(report.kernels.len(), MOST_KERNELS + 1);
        assert_eq!(report.kernels.values().map(|cost| cost.instructions).sum::<u64>(), count);
        assert_eq!(report.kernels[OTHERS].instructions, count - MOST_KERNELS as u64);
        // A name that is known keeps its number, whatever object has it.
        let again = profile.add_object((0, 2), object(0), "kernel 7");
        profile.add(again, Target::Gfx900, &tally, Duration::ZERO);
        assert_eq!(profile.report().kernels["kernel 7"].instructions, 2);
        profile.forget((0, 1));
        assert_eq!(profile.objects(), 1, "the other address space's");
    }

    #[test]
    fn what_is_written_is_read() {
        let mut report = Report::default();
        let cost = KernelCost { launches: 1, groups: 2, waves: 3, instructions: 4, bytes: 5, nanoseconds: 6 };
        report.kernels.insert("void f<int>(int *)".into(), cost);
        report.approximate.insert("v_rcp_f32".into(), (7, "for a reason".into()));
        report.missing.insert("image_sample".into(), 1);
        report.add_detour("k", "v_add_f32", "value", 3);
        let mut read: Report = report.to_string().parse().unwrap();
        assert_eq!(read, report);
        read.add(&report);
        assert_eq!(read.kernels["void f<int>(int *)"].instructions, 8);
        assert_eq!((read.approximate["v_rcp_f32"].0, read.missing["image_sample"]), (14, 2));
        assert_eq!(read.detours[&("k".into(), "v_add_f32".into(), "value".into())], 6);
        for bad in
            ["kernel\tx\t1", "kernel\tx\t1\t2\t3\t4\t5\tsix", "what", "missing\tx", "detour\tk\tv_add_f32\tvalue"]
        {
            assert!(bad.parse::<Report>().is_err(), "{bad}");
        }
    }
    #[test]
    fn detours_are_bounded() {
        let mut report = Report::default();
        for index in 0..2 * DETOURS {
            report.add_detour(&format!("k{index}"), "v_add_f32", "value", 1);
        }
        assert!(report.detours.len() <= DETOURS + Detour::ALL.len());
        assert_eq!(report.detours.values().sum::<u64>(), 2 * DETOURS as u64);
        assert!(report.detours.contains_key(&(OTHER_DETOURS.into(), OTHER_DETOURS.into(), "value".into())));
    }
}
