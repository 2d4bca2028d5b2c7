// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the demo's steps work on: the buffer, its registration, and the GPUs' queues.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vkfd_client::uapi::vkfd::BO_KIND_USERPTR;
use vkfd_client::{BoInfo, Buffer, Client, ProcessInfo, RangeInfo};

use crate::engine::{Comparison, Engine, Segment};
use crate::guest::{mix, Guest};
use crate::report::{Report, Step, Title};
use crate::session::Session;

/// How long the driver may take to catch up with a change.
const SETTLE: Duration = Duration::from_secs(10);

/// The scene.
pub struct Scene<'a> {
    /// The KFD.
    pub session: &'a Session,
    /// Its registration; dropped before the memory is.
    pub buffer: Option<Buffer>,
    /// One for each GPU.
    pub engines: Vec<Engine>,
    /// The buffer's memory.
    pub guest: Guest,
    random: u64,
}

impl<'a> Scene<'a> {
    /// With queues on all GPUs; the buffer is not registered yet.
    pub fn new(session: &'a Session, guest: Guest, seed: u64) -> Result<Self> {
        let client = &session.client;
        let mut engines = Vec::new();
        for gpu in client.gpus() {
            let engine = Engine::new(client, gpu.id, guest.ranges.len());
            engines.push(engine.with_context(|| format!("cannot make queues on GPU {}", gpu.id))?);
        }
        Ok(Self { session, buffer: None, engines, guest, random: seed })
    }

    /// The connection.
    pub fn client(&self) -> &'a Client {
        &self.session.client
    }

    /// The registration.
    pub fn buffer(&self) -> Result<&Buffer> {
        self.buffer.as_ref().context("the buffer is not registered")
    }

    /// The driver's counters, where it shows them.
    pub fn counters(&self) -> Result<Option<ProcessInfo>> {
        let client = self.client();
        Ok(client.caps().snapshot.then(|| client.snapshot()).transpose()?)
    }

    /// The driver's view of the registration, where it shows it and it is one object.
    pub fn bo(&self) -> Result<Option<BoInfo>> {
        let mut handles = self.buffer()?.handles();
        let (Some(handle), 1, true) = (handles.next(), handles.len() + 1, self.client().caps().snapshot) else {
            return Ok(None);
        };
        Ok(self.client().bos()?.into_iter().find(|bo| bo.handle == handle.0 && bo.kind == BO_KIND_USERPTR))
    }

    /// The driver's view of each range, where it shows it.
    pub fn range_states(&self) -> Result<Option<Vec<RangeInfo>>> {
        let Some(bo) = self.bo()? else { return Ok(None) };
        Ok(Some(self.client().ranges(vkfd_client::Handle(bo.handle))?))
    }

    /// Waits until the driver has learned of something new since `before`, and nothing waits for a
    /// restore. The time that took.
    ///
    /// With XNACK ranges wait for the GPU's next access, so only the news is waited for.
    pub fn settle(&self, before: &ProcessInfo, since: Instant) -> Result<Duration> {
        loop {
            let now = self.client().snapshot()?;
            let heard = now.invalidations > before.invalidations;
            let restored = self.session.xnack || self.bo()?.is_none_or(|bo| bo.invalid_ranges == 0);
            if heard && restored && now.evicted == 0 {
                return Ok(since.elapsed());
            }
            if since.elapsed() > SETTLE {
                anyhow::bail!(
                    "after {SETTLE:?} the driver has {} (queues stopped: {})",
                    if heard { "not restored all ranges" } else { "not heard of the change" },
                    now.evicted
                );
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Some ranges to change: at most `n` and, if there are enough, at most a quarter of all.
    pub fn pick(&mut self, n: usize) -> Vec<usize> {
        let all = self.guest.ranges.len();
        let n = n.min(all / 4).max(1);
        let mut picked = std::collections::BTreeSet::new();
        while picked.len() < n {
            self.random = mix(self.random.wrapping_add(0x9e37_79b9_7f4a_7c15));
            let at = usize::try_from(self.random % all as u64).unwrap_or(0);
            picked.insert(at);
        }
        picked.into_iter().collect()
    }

    /// Where a range is for the GPU.
    pub fn segment(&self, range: usize) -> Result<Segment> {
        let range = self.guest.ranges[range];
        Ok(Segment { va: self.buffer()?.gpu_va().offset(range.at), bytes: range.bytes })
    }

    /// The CPU's checksum of each of `ranges`.
    pub fn cpu_checksums(&self, ranges: &[usize]) -> Vec<u32> {
        let mut bytes = vec![0; 64 << 10];
        let mut checksum = |range: usize| {
            let range = self.guest.ranges[range];
            let mut hasher = crc32fast::Hasher::new();
            let mut at = 0;
            while at < range.bytes {
                let n = usize::try_from(range.bytes - at).unwrap_or(usize::MAX).min(bytes.len());
                self.guest.ram.read(range.offset + at, &mut bytes[..n]);
                hasher.update(&bytes[..n]);
                at += n as u64;
            }
            hasher.finalize()
        };
        ranges.iter().map(|range| checksum(*range)).collect()
    }

    /// Lets all GPUs read `ranges`.
    pub fn read(&mut self, ranges: &[usize]) -> Result<()> {
        let segments: Vec<Segment> = ranges.iter().map(|range| self.segment(*range)).collect::<Result<_>>()?;
        self.engines.iter_mut().try_for_each(|engine| engine.checksums(&segments).map(drop))
    }

    /// Compares CPU and GPU on `ranges`, on all GPUs, and notes the result as a check called
    /// `what`.
    pub fn verify(&mut self, step: &mut Step, ranges: &[usize], what: &str) -> Result<()> {
        let cpu = self.cpu_checksums(ranges);
        let segments: Vec<Segment> = ranges.iter().map(|range| self.segment(*range)).collect::<Result<_>>()?;
        let mut compared = Vec::new();
        for engine in &mut self.engines {
            let found = Comparison::new(&cpu, &engine.checksums(&segments)?);
            compared.push(found.json());
            step.check(on_gpu(what, engine, self.session), found.same(), || found.difference());
        }
        step.number("checksums", compared);
        Ok(())
    }

    /// Takes the registration away.
    pub fn release(&mut self, report: &mut Report<'_>) -> Result<()> {
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        let client = self.client();
        report
            .step("release", Title::new("Freeing the registration", "Registration freed"), |step| {
                buffer.free()?;
                if client.caps().snapshot {
                    let left = client.snapshot()?;
                    step.check(
                        "the driver has no registered memory and no notifier left",
                        left.userptr_bos + left.notifiers == 0,
                        || format!("{} objects, {} notifiers", left.userptr_bos, left.notifiers),
                    );
                }
                Ok(())
            })
            .map(drop)
    }
}

/// `what`, and on which GPU if there are several.
pub fn on_gpu(what: &str, engine: &Engine, session: &Session) -> String {
    if session.client.gpus().len() > 1 {
        format!("{what} (GPU {})", engine.gpu)
    } else {
        what.to_owned()
    }
}
