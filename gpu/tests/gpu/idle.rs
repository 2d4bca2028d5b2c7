// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Idle queues: one of them polls the doorbells of all, and each is heard, though nobody rings.

use crate::rig::*;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use vkfd_gpu::QueueKind;
use vkfd_sabotage::Switch;

const VARIABLE: &str = "VKFD_TEST_IDLE";
/// After as long without a packet, a queue dozes.
const DOZING: Duration = Duration::from_millis(20);
/// Between the rings and pointers of two queues.
const APART: u64 = 0x4_0000;

fn queues(rig: &Rig) -> Vec<TestQueue<'_>> {
    (0..6).map(|index| rig.queue_at(QueueKind::Sdma, index * APART)).collect()
}

/// Adds a NOP to a queue's ring, and rings no bell.
fn submit(queue: &mut TestQueue, index: u64) {
    queue.rig.write(index * APART + queue.wptr % RING_BYTES, &0u32.to_le_bytes());
    queue.wptr += 4;
    queue.slot.store(queue.wptr, SeqCst);
}

#[test]
fn each_doorbell_is_heard_after_a_long_time() {
    let rig = Rig::new();
    let mut queues: Vec<_> = queues(&rig).into_iter().zip(0..).collect();
    // One queue goes in each round: also the one that polls for the others.
    while !queues.is_empty() {
        std::thread::sleep(DOZING);
        for (queue, index) in &mut queues {
            submit(queue, *index);
            queue.wait();
        }
        std::thread::sleep(DOZING);
        queues.swap_remove(queues.len() / 2).0.remove();
    }
}

/// How often each queue's thread of this process has gone to sleep.
fn sleeps() -> BTreeMap<String, u64> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let queues = threads.filter(|thread| read(thread.path().join("comm")).contains("-sdma-"));
    let count = |thread: std::fs::DirEntry| {
        let status = read(thread.path().join("status"));
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((thread.file_name().into_string().ok()?, line.trim().parse().ok()?))
    };
    queues.filter_map(count).collect()
}

/// How many of the queues' threads poll, while one of them polls a hundred times.
fn polling(sabotaged: bool) -> usize {
    let rig = Rig::new();
    rig.gpu.sabotage().turn(Switch::OwnPolls, sabotaged);
    let queues = queues(&rig);
    std::thread::sleep(DOZING);
    let before = sleeps();
    assert_eq!(before.len(), queues.len());
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < HANG, "no queue polls");
        std::thread::sleep(DOZING);
        let now = sleeps();
        let more = now.iter().map(|(thread, count)| count - before.get(thread).copied().unwrap_or(0));
        let more: Vec<u64> = more.collect();
        if more.iter().any(|count| *count >= 100) {
            return more.into_iter().filter(|count| *count >= 25).count();
        }
    }
}

/// The process in which no other test has queues.
#[test]
fn one_count() {
    if let Ok(how) = std::env::var(VARIABLE) {
        println!("polling: {}", polling(how == "sabotaged"));
    }
}

#[test]
fn one_of_the_idle_queues_polls() {
    let counted = |how: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", "--nocapture", "idle::one_count"]).env(VARIABLE, how).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split("polling: ").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok())
    };
    assert_eq!(counted("plain"), Some(1));
    assert_eq!(counted("sabotaged"), Some(6));
}
