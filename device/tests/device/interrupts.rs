// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Interrupts: events, errors, and more of them than the ring holds while the driver is busy.

use crate::guest::{until, Report};
use crate::machine::Machine;
use crate::queue::Space;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vkfd_driver::seams::gpu::{QueueKind, Vmid};
use vkfd_wire::layout::RING_ENTRIES;

const TRAP: u32 = 6;

#[test]
fn an_event_arrives_and_a_queue_error_says_why() {
    Machine::each(|machine| {
        let space = Space::new(machine, 7, false);
        let mut queue = space.queue(QueueKind::Sdma, 0);
        queue.submit(&[TRAP, 42]);
        assert_eq!(machine.report(), Report::Event(Vmid(7), 42));
        // No event of the driver has such a number.
        queue.submit(&[TRAP, 4096]);
        queue.submit(&[TRAP, 4095]);
        assert_eq!(machine.report(), Report::Event(Vmid(7), 4095));
        queue.submit(&[0xff]);
        let Report::Error(hw, message) = machine.report() else { panic!() };
        assert_eq!(hw, queue.hw);
        assert!(message.starts_with("packet at byte 0x18 of the ring"), "{message}");
    });
}

/// What a queue of one VM raised is of that VM, also when the driver takes it after the next VM has
/// got the number.
#[test]
fn an_interrupt_says_whose_it_is_however_late_it_comes() {
    Machine::each(|machine| {
        let (before, after) = (Vmid::new(7, 0), Vmid::new(7, 1));
        let busy = Arc::new(Mutex::new(()));
        let held = busy.lock().unwrap();
        let gate = busy.clone();
        *machine.sink.hook.lock().unwrap() = Some(Box::new(move |_| drop(gate.lock())));
        let first = Space::new(machine, before.0, false);
        let mut queue = first.queue(QueueKind::Sdma, 0);
        queue.submit(&[TRAP, 41, TRAP, 42]);
        queue.wait();
        drop(queue);
        let second = Space::with_vram(machine, after.0, false, first.vram.clone());
        let mut queue = second.queue(QueueKind::Sdma, 1);
        queue.submit(&[TRAP, 43]);
        queue.wait();
        drop(held);
        let reports = [41, 42, 43].map(|_| machine.report());
        let wanted = [Report::Event(before, 41), Report::Event(before, 42), Report::Event(after, 43)];
        assert_eq!(reports, wanted);
    });
}

#[test]
fn more_events_than_the_ring_holds_wait_for_the_driver_and_hold_up_nobody() {
    Machine::each(|machine| {
        let space = Space::new(machine, 7, false);
        let busy = Arc::new(Mutex::new(()));
        let held = busy.lock().unwrap();
        let gate = busy.clone();
        *machine.sink.hook.lock().unwrap() = Some(Box::new(move |_| drop(gate.lock())));
        let mut queue = space.queue(QueueKind::Sdma, 0);
        let many = u32::try_from(RING_ENTRIES).unwrap() * 3;
        for event in 1..=many {
            queue.submit(&[TRAP, event]);
            // Again and again: once is enough while it has not been taken.
            queue.submit(&[TRAP, many]);
        }
        // The queue goes on, although the driver takes nothing.
        queue.wait();
        let start = Instant::now();
        drop(queue);
        assert!(
            // The driver itself would wait for longer.
            start.elapsed() < Duration::from_secs(10),
            "ending a queue waited for the driver: {:?}",
            start.elapsed()
        );
        drop(held);
        let mut seen = BTreeSet::new();
        let mut repeated = 0;
        while seen.len() < many as usize {
            let Report::Event(Vmid(7), event) = machine.report() else { panic!() };
            repeated += u32::from(!seen.insert(event));
        }
        assert_eq!(seen.first().zip(seen.last()), Some((&1, &many)));
        assert!(u64::from(repeated) <= RING_ENTRIES, "{repeated} were not put together");
    });
}

#[test]
fn faults_of_many_queues_find_their_queue() {
    Machine::each(|machine| {
        let space = Space::new(machine, 7, true);
        let mut queues: Vec<_> = (0..20).map(|number| space.queue(QueueKind::Sdma, number)).collect();
        for (number, queue) in (1u64..).zip(&mut queues) {
            queue.fence(number << 21, 1);
        }
        for _ in &queues {
            let Report::Fault(fault) = machine.report() else { panic!() };
            let number = usize::try_from(fault.va.0 >> 21).unwrap();
            assert_eq!(fault.queue, queues[number - 1].hw);
            assert!(fault.retry);
        }
        // They are taken away while they wait.
        let start = Instant::now();
        queues.clear();
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        until("nothing more", || machine.reports.try_recv().is_err());
    });
}
