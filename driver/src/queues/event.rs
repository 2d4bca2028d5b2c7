// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events of a process: made, set and reset by calls, signalled by its GPUs, waited for by its
//! threads.
//!
//! Signal and debug events have a slot in the *signal page*: a word that the GPU's packet fills
//! before it interrupts, and that is all ones otherwise. The number of such an event is its slot's.
//! The page is the client's if it brought one (libhsakmt allocates GTT memory for it), otherwise
//! the driver's own. Other events have numbers from [`FIRST_OTHER`] on and no slot.
//!
//! A lock of rank `Event` guards the table; one condition wakes all waiters, and each checks its
//! own events.

use crate::base::errno::{Errno, Result};
use crate::base::lock_rank::Rank;
use crate::collections::handle::Handles;
use crate::os::{self, Arc, Condvar, Mutex, MutexGuard, Vec};
use crate::seams::gpu::{DmaMemory, Gpu};
use core::time::Duration;
use vkfd_uapi::event as abi;
use vkfd_uapi::pod::Pod;

struct Event {
    kind: u32,
    auto_reset: bool,
    signaled: bool,
    /// How many wait for it.
    waiters: u32,
    /// Tells it from one that had its number before.
    serial: u64,
    /// Counts signals; a waiter passes the age that it knows and is not put to sleep when there was
    /// one since.
    age: u64,
    payload: abi::EventPayload,
}

/// Number of the first event without a slot, as in KFD.
pub const FIRST_OTHER: u32 = 1 << 30;
/// Most events without a slot, which each exception looks at under the lock. KFD has as many
/// numbers as a positive `int` has.
const MAX_OTHERS: usize = 1 << 16;
/// Bytes of the signal page.
pub const PAGE_BYTES: u64 = abi::SIGNAL_EVENT_LIMIT as u64 * 8;
/// What a slot has that nothing was written to.
const UNSIGNALED: u64 = u64::MAX;

struct Table {
    /// With a slot, by its number.
    signals: Handles<Event>,
    /// Without, by their number from `FIRST_OTHER`.
    others: Handles<Event>,
    page: Option<Arc<dyn DmaMemory>>,
    next_serial: u64,
    closed: bool,
}

/// What a waiter knows of one of its events.
#[derive(Clone, Copy, Default)]
struct Known {
    serial: u64,
    age: u64,
    came: bool,
}

impl Table {
    fn get(&self, number: u32) -> Option<&Event> {
        match number.checked_sub(FIRST_OTHER) {
            Some(other) => self.others.get(other),
            None => self.signals.get(number),
        }
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Event> {
        match number.checked_sub(FIRST_OTHER) {
            Some(other) => self.others.get_mut(other),
            None => self.signals.get_mut(number),
        }
    }

    /// Signals an event with a slot, and empties the slot. Whether there is such an event.
    fn signal_slot(&mut self, number: u32) -> bool {
        let Some(event) = self.signals.get_mut(number) else { return false };
        event.signal();
        if let Some(page) = &self.page {
            page.write_u64(u64::from(number) * 8, UNSIGNALED);
        }
        true
    }
}

/// A process's events.
pub struct Events {
    table: Mutex<Table>,
    changed: Condvar,
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// One, or all, of the events came.
    Complete,
    /// None in time.
    Timeout,
    /// One of the events does not exist, or the process is ending.
    Unknown,
    /// One of the events was destroyed meanwhile.
    Destroyed,
    /// No memory to wait with.
    NoMemory,
    /// The thread has a signal to handle. So many milliseconds were left (`u32::MAX`: for ever).
    Interrupted(u32),
}

impl Events {
    /// None. Number 0 is never given out: a mailbox value of 0 means "no event".
    pub fn new() -> Result<Self> {
        let mut signals = Handles::new();
        signals.reserve()?;
        let table = Table { signals, others: Handles::new(), page: None, next_serial: 0, closed: false };
        Ok(Self { table: Mutex::new(Rank::Event, table)?, changed: Condvar::new()? })
    }

    /// Makes an event; whether it has a slot. EINVAL for an unknown kind, ENOSPC when the signal
    /// page is full.
    pub fn create(&self, kind: u32, auto_reset: bool) -> Result<(u32, bool)> {
        if kind > abi::EVENT_MEMORY {
            return Err(Errno::EINVAL.into());
        }
        // A fresh event has age 1, so that a client that knows nothing yet (age 0) is not confused
        // with one that does.
        let mut table = self.table.lock();
        let (serial, payload) = (table.next_serial, abi::EventPayload::zeroed());
        table.next_serial = serial.wrapping_add(1);
        let event = Event { kind, auto_reset, signaled: false, waiters: 0, serial, age: 1, payload };
        if !matches!(kind, abi::EVENT_SIGNAL | abi::EVENT_DEBUG_EVENT) {
            if table.others.len() >= MAX_OTHERS {
                return Err(Errno::ENOSPC.into());
            }
            let number = table.others.reserve()?;
            table.others.fill(number, event);
            return Ok((FIRST_OTHER | number, false));
        }
        let number = table.signals.reserve()?;
        if number >= abi::SIGNAL_EVENT_LIMIT {
            table.signals.remove(number);
            return Err(Errno::ENOSPC.into());
        }
        table.signals.fill(number, event);
        if let Some(page) = &table.page {
            page.write_u64(u64::from(number) * 8, UNSIGNALED);
        }
        Ok((number, true))
    }

    /// Takes memory of the client for the signal page. EINVAL if there is one already, or if it is
    /// too small.
    pub fn bring_page(&self, page: &Arc<dyn DmaMemory>) -> Result {
        let mut table = self.table.lock();
        if table.page.is_some() || page.bytes() < PAGE_BYTES {
            return Err(Errno::EINVAL.into());
        }
        for slot in 0..u64::from(abi::SIGNAL_EVENT_LIMIT) {
            page.write_u64(slot.saturating_mul(8), UNSIGNALED);
        }
        table.page = Some(page.clone());
        Ok(())
    }

    /// Ends an event; its waiters fail. EINVAL when there is none.
    pub fn destroy(&self, number: u32) -> Result {
        let mut table = self.table.lock();
        let removed = match number.checked_sub(FIRST_OTHER) {
            Some(other) => table.others.remove(other),
            None => table.signals.remove(number),
        };
        drop(table);
        self.changed.notify_all();
        removed.map(|_| ()).ok_or(Errno::EINVAL.into())
    }

    /// Changes an event that a client may signal. EINVAL when there is none, or it is of another
    /// kind.
    fn change(&self, number: u32, f: impl FnOnce(&mut Event)) -> Result {
        let mut table = self.table.lock();
        f(table.get_mut(number).filter(|event| event.kind == abi::EVENT_SIGNAL).ok_or(Errno::EINVAL)?);
        drop(table);
        self.changed.notify_all();
        Ok(())
    }

    /// Signals an event. EINVAL when there is none, or it is not for clients to signal.
    pub fn set(&self, number: u32) -> Result {
        self.change(number, Event::signal)
    }

    /// Takes a signal back.
    pub fn reset(&self, number: u32) -> Result {
        self.change(number, |event| event.signaled = false)
    }

    /// A GPU signals an event. When it names none, all are signalled whose slot was written. O(1),
    /// else O(slots).
    pub fn signal(&self, number: u32) {
        let mut table = self.table.lock();
        if !table.signal_slot(number) {
            let page = table.page.clone();
            for slot in 1..abi::SIGNAL_EVENT_LIMIT {
                if page.as_ref().is_some_and(|page| page.read_u64(u64::from(slot) * 8) != UNSIGNALED) {
                    table.signal_slot(slot);
                }
            }
        }
        drop(table);
        self.changed.notify_all();
    }

    fn exception(&self, kind: u32, payload: abi::EventPayload) {
        let mut table = self.table.lock();
        for event in table.others.iter_mut().filter(|e| e.kind == kind) {
            event.payload = payload;
            event.signal();
        }
        drop(table);
        self.changed.notify_all();
    }

    /// A GPU access faulted for good: all memory events are signalled with its address and reason.
    pub fn memory_exception(&self, data: abi::MemoryExceptionData) {
        self.exception(abi::EVENT_MEMORY, data.into());
    }

    /// A queue stopped on something it cannot do.
    pub fn hw_exception(&self, gpu_id: u32) {
        let data = abi::HwExceptionData {
            reset_type: abi::HW_EXCEPTION_PER_ENGINE_RESET,
            reset_cause: abi::HW_EXCEPTION_GPU_HANG,
            memory_lost: 0,
            gpu_id,
        };
        self.exception(abi::EVENT_HW_EXCEPTION, data.into());
    }

    /// Waits for one event, or for all; `timeout_ms` of `u32::MAX` means for ever. Fills in the
    /// data of those that came. A signal goes to all that wait for the event at that time; an
    /// auto-reset event keeps it only if there is none. O(events) each time any event of the
    /// process changes.
    pub fn wait(&self, list: &mut Vec<abi::EventData>, all: bool, timeout_ms: u32) -> Waited {
        let Ok(mut known) = Vec::filled(Known::default(), list.len()) else { return Waited::NoMemory };
        let mut table = self.table.lock();
        if table.closed || list.iter().any(|item| table.get(item.event_id).is_none()) {
            return Waited::Unknown;
        }
        for (item, known) in list.iter().zip(known.iter_mut()) {
            if let Some(event) = table.get_mut(item.event_id) {
                *known = event.begin_wait(item);
            }
        }
        let (mut table, waited) = self.sleep(table, list, &mut known, all, timeout_ms);
        for (item, known) in list.iter_mut().zip(known.iter()) {
            if let Some(event) = table.get_mut(item.event_id).filter(|event| event.serial == known.serial) {
                event.end_wait(item, *known, waited);
            }
        }
        waited
    }

    fn sleep<'a>(
        &'a self,
        mut table: MutexGuard<'a, Table>,
        list: &[abi::EventData],
        known: &mut [Known],
        all: bool,
        timeout_ms: u32,
    ) -> (MutexGuard<'a, Table>, Waited) {
        let forever = timeout_ms == u32::MAX;
        let until = os::now().after(Duration::from_millis(timeout_ms.into()));
        let mut interrupted = false;
        loop {
            let mut came = 0usize;
            for (item, known) in list.iter().zip(known.iter_mut()) {
                let Some(event) = table.get(item.event_id).filter(|event| event.serial == known.serial) else {
                    return (table, Waited::Destroyed);
                };
                known.came |= event.age != known.age;
                known.age = event.age;
                came = came.saturating_add(known.came.into());
            }
            if came == list.len() || (came > 0 && !all) {
                return (table, Waited::Complete);
            }
            if table.closed {
                return (table, Waited::Unknown);
            }
            let now = os::now();
            if !forever && now >= until {
                return (table, Waited::Timeout);
            }
            let left =
                if forever { Duration::from_secs(3600) } else { Duration::from_nanos(until.0.saturating_sub(now.0)) };
            if interrupted {
                let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX - 1);
                return (table, Waited::Interrupted(if forever { u32::MAX } else { left }));
            }
            (table, interrupted) = self.changed.wait(table, left);
        }
    }

    /// The signal page, made when it is first wanted.
    pub fn page(&self, gpu: &dyn Gpu) -> Result<Arc<dyn DmaMemory>> {
        if let Some(page) = &self.table.lock().page {
            return Ok(page.clone());
        }
        let fresh = gpu.alloc_dma(PAGE_BYTES)?;
        for slot in 0..u64::from(abi::SIGNAL_EVENT_LIMIT) {
            fresh.write_u64(slot.saturating_mul(8), UNSIGNALED);
        }
        Ok(self.table.lock().page.get_or_insert(fresh).clone())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        let table = self.table.lock();
        table.signals.len().saturating_add(table.others.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fails all waiters, now and from now on, and lets the signal page go.
    pub fn close(&self) {
        let mut table = self.table.lock();
        table.closed = true;
        let page = table.page.take();
        drop(table);
        self.changed.notify_all();
        // Without the lock: this may be the last reference.
        drop(page);
    }
}

impl Event {
    fn signal(&mut self) {
        // A thread that waits already sees the changed age.
        self.signaled = !self.auto_reset || self.waiters == 0;
        self.age = self.age.wrapping_add(1);
    }

    /// A waiter comes. Signal events may pass the age they know.
    fn begin_wait(&mut self, item: &abi::EventData) -> Known {
        let age = if self.kind == abi::EVENT_SIGNAL { item.payload.signal().last_event_age } else { 0 };
        let came = self.signaled || (age != 0 && age != self.age);
        if came && self.auto_reset {
            self.signaled = false;
        }
        self.waiters = self.waiters.saturating_add(1);
        Known { serial: self.serial, age: self.age, came }
    }

    /// It goes, and takes along what came.
    fn end_wait(&mut self, item: &mut abi::EventData, known: Known, waited: Waited) {
        self.waiters = self.waiters.saturating_sub(1);
        match waited {
            Waited::Complete if known.came => match self.kind {
                abi::EVENT_MEMORY | abi::EVENT_HW_EXCEPTION => item.payload = self.payload,
                abi::EVENT_SIGNAL if item.payload.signal().last_event_age != 0 => {
                    item.payload = abi::SignalEventData { last_event_age: self.age }.into();
                }
                _ => {}
            },
            Waited::Complete => {}
            // Not delivered: it stays for the next waiter.
            _ => self.signaled |= known.came,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ids: &[u32]) -> Vec<abi::EventData> {
        let mut v = Vec::new();
        for id in ids {
            v.push(abi::EventData { event_id: *id, ..abi::EventData::zeroed() }).unwrap();
        }
        v
    }

    #[test]
    fn auto_reset_wakes_once_and_manual_reset_until_it_is_reset() {
        let events = Events::new().unwrap();
        let (auto, manual) = (events.create(0, true).unwrap().0, events.create(0, false).unwrap().0);
        assert_eq!(events.wait(&mut list(&[auto]), true, 0), Waited::Timeout);
        events.signal(auto);
        events.set(manual).unwrap();
        assert_eq!(events.wait(&mut list(&[auto, manual]), true, 0), Waited::Complete);
        assert_eq!(events.wait(&mut list(&[auto]), true, 0), Waited::Timeout);
        assert_eq!(events.wait(&mut list(&[auto, manual]), false, 0), Waited::Complete);
        events.reset(manual).unwrap();
        assert_eq!(events.wait(&mut list(&[auto, manual]), false, 0), Waited::Timeout);
        events.destroy(auto).unwrap();
        assert_eq!(events.wait(&mut list(&[auto]), true, u32::MAX), Waited::Unknown);
        assert!(events.destroy(auto).is_err());
        // Nothing to wait for has come.
        assert_eq!(events.wait(&mut list(&[]), true, u32::MAX), Waited::Complete);
    }

    #[test]
    fn a_memory_exception_says_where() {
        let events = Events::new().unwrap();
        let (id, slot) = events.create(abi::EVENT_MEMORY, false).unwrap();
        assert!(id >= FIRST_OTHER && !slot);
        // Only the driver says what is wrong with the memory.
        assert!(events.set(id).is_err() && events.reset(id).is_err());
        let data = abi::MemoryExceptionData { va: 0x1234_5000, gpu_id: 7, ..abi::MemoryExceptionData::zeroed() };
        events.memory_exception(data);
        let mut items = list(&[id]);
        assert_eq!(events.wait(&mut items, true, 0), Waited::Complete);
        assert_eq!(items[0].payload.memory_exception(), data);
    }

    struct Page(Mutex<Vec<u64>>);

    impl DmaMemory for Page {
        fn bytes(&self) -> u64 {
            self.0.lock().len() as u64 * 8
        }
        fn page(&self, _: u64) -> crate::base::addr::PhysAddr {
            crate::base::addr::PhysAddr(0)
        }
        fn write_u64(&self, at: u64, value: u64) {
            self.0.lock()[crate::base::addr::index(at / 8)] = value;
        }
        fn read_u64(&self, at: u64) -> u64 {
            self.0.lock()[crate::base::addr::index(at / 8)]
        }
        fn as_any(&self) -> &dyn core::any::Any {
            self
        }
    }

    fn page(words: usize) -> Arc<dyn DmaMemory> {
        Arc::new(Page(Mutex::new(Rank::Offset, Vec::filled(0, words).unwrap()).unwrap()))
    }

    #[test]
    fn slots_of_a_page_that_was_brought_are_acknowledged() {
        let events = Events::new().unwrap();
        let page = page(4096);
        assert!(events.bring_page(&self::page(4095)).is_err(), "too small");
        events.bring_page(&page).unwrap();
        assert!(events.bring_page(&page).is_err(), "once only");
        let (a, b) = (events.create(0, true).unwrap().0, events.create(0, true).unwrap().0);
        assert_eq!(page.read_u64(u64::from(a) * 8), u64::MAX);
        // The GPU writes the slot and names the event.
        page.write_u64(u64::from(a) * 8, u64::from(a));
        events.signal(a);
        assert_eq!(page.read_u64(u64::from(a) * 8), u64::MAX);
        assert_eq!(events.wait(&mut list(&[a]), true, 0), Waited::Complete);
        // It names none: whose slot was written.
        page.write_u64(u64::from(b) * 8, u64::from(b));
        events.signal(0);
        assert_eq!(events.wait(&mut list(&[a]), true, 0), Waited::Timeout);
        assert_eq!(events.wait(&mut list(&[b]), true, 0), Waited::Complete);
        assert_eq!(page.read_u64(u64::from(b) * 8), u64::MAX);
    }

    /// As KFD: an auto-reset event's signal goes to all waiting threads, and not to later ones. A
    /// client's threads wait for each other's events too; one that signalled and waits again must
    /// not take the signal from the other.
    #[test]
    fn a_signal_goes_to_who_waits_and_not_to_who_comes_later() {
        extern crate std;
        let events = Events::new().unwrap();
        let id = events.create(0, true).unwrap().0;
        let waiting = |count| while events.table.lock().get(id).unwrap().waiters != count {};
        for _ in 0..200 {
            std::thread::scope(|scope| {
                let waiters = [0, 1].map(|_| scope.spawn(|| events.wait(&mut list(&[id]), true, 60_000)));
                waiting(2);
                events.set(id).unwrap();
                assert_eq!(events.wait(&mut list(&[id]), true, 0), Waited::Timeout);
                for waiter in waiters {
                    assert_eq!(waiter.join().unwrap(), Waited::Complete);
                }
            });
            waiting(0);
        }
        // With nobody there it is kept for the first, also if that one waited for more than came.
        let other = events.create(0, true).unwrap().0;
        events.set(id).unwrap();
        assert_eq!(events.wait(&mut list(&[id, other]), true, 0), Waited::Timeout);
        assert_eq!(events.wait(&mut list(&[id]), true, 0), Waited::Complete);
        assert_eq!(events.wait(&mut list(&[id]), true, 0), Waited::Timeout);
    }

    #[test]
    fn a_destroyed_event_fails_who_waits_for_it() {
        extern crate std;
        let events = Events::new().unwrap();
        let (gone, other) = (events.create(0, true).unwrap().0, events.create(0, true).unwrap().0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| events.wait(&mut list(&[gone, other]), false, u32::MAX - 1));
            while !waiter.is_finished() {
                // Whenever it begins to wait.
                std::thread::sleep(Duration::from_millis(20));
                let _ = events.destroy(gone);
                events.changed.notify_all();
            }
            assert!(matches!(waiter.join().unwrap(), Waited::Destroyed | Waited::Unknown));
        });
    }
}
