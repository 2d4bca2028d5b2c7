// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SMI events: a client reads from a file what happened to its memory and its queues, and why.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::FromRawFd;
use std::time::{Duration, Instant};

use vkfd_client::uapi::command::SMI_EVENTS;
use vkfd_client::uapi::smi::{
    event_mask, SmiEventsArgs, MIGRATE_TRIGGER_PAGEFAULT_CPU, MIGRATE_TRIGGER_PAGEFAULT_GPU, MIGRATE_TRIGGER_PREFETCH,
    MIGRATE_TRIGGER_TTM_EVICTION, QUEUE_EVICTION_TRIGGER_SVM, SMI_EVENT_MIGRATE_END, SMI_EVENT_MIGRATE_START,
    SMI_EVENT_PAGE_FAULT_END, SMI_EVENT_PAGE_FAULT_START, SMI_EVENT_QUEUE_EVICTION, SMI_EVENT_QUEUE_RESTORE,
    SMI_EVENT_UNMAP_FROM_GPU, SVM_UNMAP_TRIGGER_UNMAP_FROM_CPU,
};
use vkfd_client::{AllocOptions, Errno, SvmAccess, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use super::{both, Svm, GRANULE};
use crate::limits::available;
use crate::memory::Memory;
use crate::raw;
use crate::verdict::Stop;
use crate::world::{Seen, World, WorldSpec};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "svm_event_files_tell_what_moved_what_stopped_and_why",
    about: "Prefetch, eviction for a buffer, a discard, an unmap, a GPU's fault, the CPU's touch of private memory: each is lines with its \
            reason, its pages and where they went; a file for other events has none.",
    run: || both(told),
}];

const PATIENCE: Duration = Duration::from_secs(60);
const ALL: [u32; 7] = [
    SMI_EVENT_MIGRATE_START,
    SMI_EVENT_MIGRATE_END,
    SMI_EVENT_PAGE_FAULT_START,
    SMI_EVENT_PAGE_FAULT_END,
    SMI_EVENT_QUEUE_EVICTION,
    SMI_EVENT_QUEUE_RESTORE,
    SMI_EVENT_UNMAP_FROM_GPU,
];

/// A line, in words.
#[derive(Clone, Debug)]
struct Event {
    number: u32,
    words: Vec<String>,
}

impl Event {
    fn of(line: &str) -> Result<Self, Stop> {
        let mut words = line.split(' ').map(str::to_owned);
        let Some(number) = words.next().and_then(|word| u32::from_str_radix(&word, 16).ok()) else {
            bail!("{line:?} does not begin with a number")
        };
        // A time, and the process.
        let time = words.next().and_then(|word| word.parse::<u64>().ok());
        let process = words.next().and_then(|word| word.strip_prefix('-')?.parse().ok());
        ensure!(time.is_some() && process == Some(std::process::id()), "{line:?}: a time, and this process");
        Ok(Self { number, words: words.collect() })
    }

    /// Of a migration: first page, pages, from, to.
    fn moved(&self) -> Option<(u64, u64, u32, u32)> {
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (first, pages) = self.words.first()?.strip_prefix('@')?.strip_suffix(')')?.split_once('(')?;
        let (from, to) = self.words.get(1)?.split_once("->")?;
        Some((number(first)?, number(pages)?, u32::try_from(number(from)?).ok()?, u32::try_from(number(to)?).ok()?))
    }

    /// The trigger and the error of a migration's end.
    fn ended(&self) -> Option<(u32, i32)> {
        let [.., trigger, error] = &self.words[..] else { return None };
        Some((trigger.parse().ok()?, error.parse().ok()?))
    }
}

/// A file of the first GPU's events.
struct Events {
    file: File,
    /// The beginning of a line whose end has not been read.
    rest: String,
    seen: Vec<Event>,
}

impl Events {
    fn open(world: &World, wanted: &[u32]) -> Result<Self, Stop> {
        let mut args = SmiEventsArgs { gpuid: world.id(), anon_fd: 0 };
        match raw::ioctl(world.client(), SMI_EVENTS, &mut args) {
            Err(Errno::OPNOTSUPP) => return Err(Stop::Skip("this host makes no files of events".into())),
            result => ensure_eq!(result, Ok(())),
        }
        // SAFETY: the call has given the descriptor to this process.
        let mut file = unsafe { File::from_raw_fd(i32::try_from(args.anon_fd)?) };
        let mask = wanted.iter().fold(0, |mask, number| mask | event_mask(*number));
        file.write_all(&mask.to_ne_bytes())?;
        Ok(Self { file, rest: String::new(), seen: Vec::new() })
    }

    /// Reads what is there.
    fn read(&mut self) -> Result<(), Stop> {
        let mut text = [0; 4096];
        loop {
            match self.file.read(&mut text) {
                Ok(length) => {
                    self.rest.push_str(std::str::from_utf8(&text[..length]).map_err(anyhow::Error::from)?);
                    let whole = self.rest.rfind('\n').map_or(0, |end| end + 1);
                    for line in self.rest.drain(..whole).collect::<String>().lines() {
                        self.seen.push(Event::of(line)?);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => bail!("reading events: {error}"),
            }
        }
    }

    /// Forgets what has been told so far.
    fn forget(&mut self) -> Result<(), Stop> {
        self.read()?;
        self.seen.clear();
        Ok(())
    }

    /// Waits until what has been told since the last time makes `f` true.
    fn until(&mut self, what: &str, f: impl Fn(&[Event]) -> bool) -> Result<(), Stop> {
        let start = Instant::now();
        loop {
            self.read()?;
            if f(&self.seen) {
                self.seen.clear();
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "no event tells of {what}: {:#?}", self.seen);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for migrations that together moved `pages` pages, for a reason: each reported twice,
    /// before and after, and without an error.
    fn until_moved(&mut self, what: &str, trigger: u32, from: u32, to: u32, pages: u64) -> Result<(), Stop> {
        self.until(what, |seen| {
            let of = |number: u32| seen.iter().filter(move |event| event.number == number);
            let there = |event: &&Event| event.moved().is_some_and(|(.., a, b)| (a, b) == (from, to));
            let begun = of(SMI_EVENT_MIGRATE_START).filter(there).filter_map(Event::moved);
            let ended = of(SMI_EVENT_MIGRATE_END).filter(there).filter(|event| event.ended() == Some((trigger, 0)));
            let ended: Vec<_> = ended.filter_map(Event::moved).collect();
            begun.collect::<Vec<_>>() == ended && ended.iter().map(|(_, pages, ..)| pages).sum::<u64>() >= pages
        })
    }
}

fn told(kind: Kind) -> Result<(), Stop> {
    for xnack in [false, true] {
        let memory = Memory::anonymous(2 * GRANULE)?;
        let svm = Svm::moving(WorldSpec { xnack, ..WorldSpec::default() }, kind, memory)?;
        // Queues and page tables are there before.
        svm.world.with_engine(0, |_| Ok(()))?;
        let mut events = Events::open(&svm.world, &ALL)?;
        let mut others = Events::open(&svm.world, &[SMI_EVENT_MIGRATE_END + 20])?;
        svm.memory.fill(1);
        if xnack {
            faults(&svm, kind, &mut events)?;
        } else {
            requests(&svm, kind, &mut events)?;
        }
        others.read()?;
        ensure!(others.seen.is_empty(), "a file for other events tells of {:?}", others.seen);
    }
    Ok(())
}

/// XNACK off: what is asked for, and what stops the queues.
fn requests(svm: &Svm, kind: Kind, events: &mut Events) -> Result<(), Stop> {
    let (gpu, pages, client) = (svm.world.id(), svm.memory.pages(), svm.world.client());
    svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
    events.forget()?;
    svm.prefetch(0, pages, Some(0))?;
    events.until_moved("a prefetch", MIGRATE_TRIGGER_PREFETCH, 0, gpu, pages)?;
    if kind == Kind::Private {
        // Few, because a kernel has them back, and reports it, one at a time, and has no room for
        // more lines than a few hundred.
        svm.cpu_expects(0, 16, 1)?;
        events.until_moved("the CPU's touch", MIGRATE_TRIGGER_PAGEFAULT_CPU, gpu, 0, 16)?;
        svm.prefetch(0, pages, Some(0))?;
    }
    svm.settle()?;
    events.forget()?;
    // What is available has the room of SVM memory in it, a granule at least.
    let bytes = available(client, svm.world.gpu(0))? / GRANULE * GRANULE;
    let buffer = client.alloc(&AllocOptions { cpu_map: false, ..AllocOptions::vram(svm.world.gpu(0), bytes) })?;
    events.until_moved("an eviction for a buffer", MIGRATE_TRIGGER_TTM_EVICTION, gpu, 0, GRANULE / PAGE)?;
    drop(buffer);
    svm.prefetch(0, pages, None)?;
    svm.settle()?;
    if svm.world.sees(Seen::Discard).is_ok() {
        events.forget()?;
        svm.memory.discard(5 * PAGE, 7 * PAGE)?;
        svm.world.told();
        let gpu = format!("{gpu:x}");
        let (stop, go_on) = ([gpu.clone(), QUEUE_EVICTION_TRIGGER_SVM.to_string()], [gpu, "0".to_owned()]);
        events.until("stopped queues that go on", |seen| {
            let at =
                |number, words: &[String; 2]| seen.iter().position(|e| e.number == number && e.words[..] == *words);
            let stopped = at(SMI_EVENT_QUEUE_EVICTION, &stop);
            stopped.is_some() && stopped < at(SMI_EVENT_QUEUE_RESTORE, &go_on)
        })?;
        svm.expect(0, 20, pages - 20, 1)?;
    }
    Ok(())
}

/// XNACK on: the events of a GPU's accesses, and those of entries whose memory goes.
fn faults(svm: &Svm, kind: Kind, events: &mut Events) -> Result<(), Stop> {
    let (gpu, page) = (svm.world.id(), svm.va(3).0 / PAGE);
    svm.expect(0, 3, 1, 1)?;
    let at = format!("@{page:x}({gpu:x})");
    events.until("a GPU's fault that moves memory", |seen| {
        let fault = |number, how: &str| seen.iter().position(|e| e.number == number && e.words == [&*at, how]);
        let moved = |number| {
            seen.iter()
                .position(|e| e.number == number && e.moved().is_some_and(|(.., from, to)| (from, to) == (0, gpu)))
        };
        let (begun, ended) = (moved(SMI_EVENT_MIGRATE_START), moved(SMI_EVENT_MIGRATE_END));
        let order = [fault(SMI_EVENT_PAGE_FAULT_START, "R"), begun, ended, fault(SMI_EVENT_PAGE_FAULT_END, "M")];
        let why = ended.and_then(|at| seen[at].ended()) == Some((MIGRATE_TRIGGER_PAGEFAULT_GPU, 0));
        order.iter().all(Option::is_some) && order.is_sorted() && why
    })?;
    if kind == Kind::Coherent {
        svm.cpu_expects(0, 512, 1)?;
        events.read()?;
        ensure!(events.seen.iter().all(|e| e.moved().is_none_or(|(_, _, from, _)| from != gpu)), "{:#?}", events.seen);
    }
    svm.world.sees(Seen::Unmap)?;
    events.forget()?;
    // All of it: where Linux cuts a mapping in two, it reports the 2 MiB around as changed first,
    // and nothing is left to unmap.
    svm.memory.unmap(0, svm.memory.bytes())?;
    svm.world.told();
    let unmap = [format!("{gpu:x}"), SVM_UNMAP_TRIGGER_UNMAP_FROM_CPU.to_string()];
    events.until("an unmap", |seen| {
        let unmaps = seen.iter().filter(|e| e.number == SMI_EVENT_UNMAP_FROM_GPU && e.words[1..] == unmap);
        unmaps.count() > 0
    })
}
