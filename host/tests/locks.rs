// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The event reader waits for nothing that takes malloc's lock. While a GPU works, threads fork and
//! trim the heap with that lock held, and sleep until the reader has read their events.
//!
//! Each storm is a process of its own, since one that gets stuck does not end by itself.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are calls on the tests' own memory

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{memory, Area, Counter};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use vkfd_driver::base::addr::{CpuSpan, CpuVa, PAGE};
use vkfd_driver::seams::address_space::AddressSpace;
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::Source;
use vkfd_sabotage::Switch;

const VARIABLE: &str = "VKFD_TEST_STORM";
const ROUNDS: u32 = 100;
/// So many looks in a row, with nothing said and no thread runnable in any of them, are a deadlock.
/// A thread that waits for a processor is runnable, so a busy machine does not count.
const STUCK_LOOKS: u32 = 30;
const LOOK_MS: i32 = 100;
const BLOCK: u64 = 3 << 20;

/// Copies from registered memory without end.
fn work(sabotaged: bool, over: &AtomicBool) {
    let mut rig = rig::Rig::new();
    let area = Area::new(64);
    rig.register(&area);
    rig.machine.gpus()[0].software().sabotage().turn(Switch::AllocateInAccess, sabotaged);
    while !over.load(Ordering::SeqCst) {
        rig.copy(rig::USER, rig::VRAM, area.bytes);
    }
}

/// One round: watched memory of malloc is trimmed, and the process forks.
fn disturb() {
    let (block, anchor) = unsafe { (libc::malloc(3 << 20), libc::malloc(64)) };
    unsafe { block.write_bytes(1, 3 << 20) };
    let start = (block.expose_provenance() as u64).next_multiple_of(PAGE);
    let span = CpuSpan::between(CpuVa(start), CpuVa(start + BLOCK - PAGE));
    let mm = memory(Source::Userfaultfd).unwrap();
    let watch = ProcessMemory::new(mm).watch(span, Counter::new()).unwrap();
    // With the arena's lock held.
    unsafe {
        libc::free(block);
        libc::malloc_trim(0);
    }
    drop(watch);
    unsafe { libc::free(anchor) };
    // With all arenas' locks held.
    let child = unsafe { libc::fork() };
    if child == 0 {
        unsafe { libc::_exit(0) };
    }
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

/// Says a byte a round, and one more at the end.
fn storm(sabotaged: bool) {
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| work(sabotaged, &over));
        let mut out = std::io::stderr();
        for _ in 0..if sabotaged { u32::MAX } else { ROUNDS } {
            disturb();
            out.write_all(b".").unwrap();
        }
        over.store(true, Ordering::SeqCst);
    });
    std::io::stderr().write_all(b"!").unwrap();
}

struct Storm(Child);

impl Storm {
    fn begin(sabotaged: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", "one_storm"]).env(VARIABLE, if sabotaged { "sabotaged" } else { "" });
        Self(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Reads what it says until it ends. `None` when it is stuck.
    fn said(&mut self) -> Option<Vec<u8>> {
        let mut from = self.0.stderr.take().unwrap();
        let mut said = Vec::new();
        let mut looks = 0;
        loop {
            let mut poll = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            if unsafe { libc::poll(&raw mut poll, 1, LOOK_MS) } == 0 {
                looks = if self.all_wait() { looks + 1 } else { 0 };
                if looks == STUCK_LOOKS {
                    return None;
                }
                continue;
            }
            looks = 0;
            let mut bytes = [0; 256];
            match from.read(&mut bytes).unwrap() {
                0 => return Some(said),
                count => said.extend(&bytes[..count]),
            }
        }
    }

    /// Whether no thread of it runs, or waits for a processor to run on.
    fn all_wait(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        threads.flatten().all(|thread| {
            // The state follows the name, which is in brackets. A thread that has ended has none.
            let status = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['S', 'D']))
        })
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of the other tests' making.
#[test]
fn one_storm() {
    if let Ok(how) = std::env::var(VARIABLE) {
        storm(how == "sabotaged");
    }
}

#[test]
fn forks_and_trims_while_a_gpu_works_come_to_an_end() {
    if memory(Source::Userfaultfd).is_none() {
        return;
    }
    let mut storm = Storm::begin(false);
    let said = storm.said().expect("it is stuck: a deadlock of event reader, access and malloc");
    let rounds = said.iter().filter(|byte| **byte == b'.').count();
    assert!(rounds >= ROUNDS as usize && said.contains(&b'!'), "{}", String::from_utf8_lossy(&said));
}

/// The control: an access that allocates is a deadlock.
#[test]
fn an_access_that_allocates_gets_stuck() {
    if memory(Source::Userfaultfd).is_none() {
        return;
    }
    let said = Storm::begin(true).said();
    assert_eq!(said.map(|said| String::from_utf8_lossy(&said).into_owned()), None);
}
