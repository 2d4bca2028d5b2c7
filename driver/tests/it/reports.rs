// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The driver writes its report of a fault before it wakes the client. A client that ends its
//! process on a fault, as ROCR does, would end the driver in it too. A separate process, because
//! the driver's log is set once.

use std::sync::{Arc, Mutex, PoisonError};

use vkfd_driver::base::addr::GpuVa;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::os;
use vkfd_driver::process::Process;
use vkfd_driver::queues::event::Waited;
use vkfd_driver::seams::gpu::{FaultReason, HwQueue, Interrupts, PageFault, Vmid};
use vkfd_sabotage::{Switch, Switches};
use vkfd_sim::{Rig, GPU_ID};
use vkfd_uapi::event::{EventData, EVENT_HW_EXCEPTION, EVENT_MEMORY};
use vkfd_uapi::pod::Pod;

/// The client, and the events that it waits for.
static CLIENT: Mutex<Option<(Arc<Process>, [u32; 2])>> = Mutex::new(None);
/// Each line, and which of the events had come before it.
static LINES: Mutex<Vec<(String, [bool; 2])>> = Mutex::new(Vec::new());

fn came(process: &Process, event: u32) -> bool {
    let mut list = os::Vec::new();
    list.push(EventData { event_id: event, ..EventData::zeroed() }).unwrap();
    process.events().wait(&mut list, true, 0) == Waited::Complete
}

/// The lines of a GPU that reports a fault, before it wakes the client or after that, on a driver
/// with these switches, and whether the client was woken.
fn reported(first: bool, sabotage: Switches) -> (Vec<(String, [bool; 2])>, bool) {
    // The log is the process's.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::new(Options { sabotage, ..Options::default() });
    let process = rig.process.clone();
    let events = [EVENT_MEMORY, EVENT_HW_EXCEPTION].map(|kind| process.events().create(kind, false).unwrap().0);
    *CLIENT.lock().unwrap() = Some((process.clone(), events));
    os::set_log(|line| {
        let client = CLIENT.lock().unwrap();
        let Some((process, events)) = &*client else { return };
        LINES.lock().unwrap().push((line.to_string(), events.map(|event| came(process, event))));
    });
    // As the GPU calls: the message first, then what wakes the client.
    let (vmid, queue) = (Vmid::new(1, 0), HwQueue(77));
    let (va, reason) = (GpuVa(0xdead_b000), FaultReason::NotPresent);
    let kfd = process.kfd();
    let stops = || kfd.queue_stops(GPU_ID, vmid, queue, "kernel fill: page fault");
    if first {
        stops();
    }
    kfd.page_fault(GPU_ID, PageFault { vmid, queue, va, write: true, reason, retry: false });
    kfd.queue_error(GPU_ID, vmid, queue);
    if !first {
        stops();
    }
    let woken = events.iter().all(|event| came(&process, *event));
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    CLIENT.lock().unwrap().take();
    (lines, woken)
}

#[test]
fn a_fault_is_reported_before_the_client_is_woken() {
    let (lines, woken) = reported(true, Switches::NONE);
    assert!(woken);
    for words in ["kernel fill: page fault", "write at 0xdeadb000"] {
        assert_eq!(before(&lines, words), Some([false; 2]), "{words}: {lines:?}");
    }
}

/// Which events had come before the line with these words.
fn before(lines: &[(String, [bool; 2])], words: &str) -> Option<[bool; 2]> {
    lines.iter().find(|(line, _)| line.contains(words)).map(|(_, came)| *came)
}

/// The controls: a GPU that says only afterwards why its queue stops, and a driver that does.
#[test]
fn a_report_after_the_client_was_woken_is_noticed() {
    let (lines, _) = reported(false, Switches::NONE);
    assert_eq!(before(&lines, "kernel fill: page fault"), Some([true; 2]), "{lines:?}");
    let (lines, _) = reported(true, Switch::LateMessage.into());
    assert_eq!(before(&lines, "write at 0xdeadb000"), Some([true, false]), "{lines:?}");
}
