// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events of a process: made, set and reset by calls, signalled by its GPUs, waited for by its threads.
//!
//! A lock of rank `Event` guards the table; one condition wakes all waiters, who look at their own events.

use crate::errno::{Errno, Result};
use crate::gpu::{DmaMemory, Gpu};
use crate::handle::Handles;
use crate::lock_rank::Rank;
use crate::os::{self, Arc, Condvar, Mutex, Vec};
use core::time::Duration;
use vkfd_uapi::event as abi;
use vkfd_uapi::pod::Pod;

struct Event {
    kind: u32,
    auto_reset: bool,
    signaled: bool,
    /// Counts signals; a waiter passes the age that it knows and is not put to sleep when there was one since.
    age: u64,
    payload: abi::EventPayload,
}

struct Table {
    events: Handles<Event>,
    /// The signal page: a word an event, for clients that map it instead of bringing one.
    page: Option<Arc<dyn DmaMemory>>,
    closed: bool,
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
    /// One of the events does not exist, or went meanwhile.
    Fail,
    /// The thread has a signal to handle. So many milliseconds were left (`u32::MAX`: for ever).
    Interrupted(u32),
}

impl Events {
    /// None. Number 0 is never given out: a mailbox value of 0 means "no event".
    pub fn new() -> Result<Self> {
        let mut events = Handles::new();
        events.reserve()?;
        Ok(Self {
            table: Mutex::new(Rank::Event, Table { events, page: None, closed: false })?,
            changed: Condvar::new()?,
        })
    }

    /// Makes an event. EINVAL for an unknown kind, ENOSPC when the signal page is full.
    pub fn create(&self, kind: u32, auto_reset: bool) -> Result<u32> {
        if kind > abi::EVENT_MEMORY {
            return Err(Errno::EINVAL.into());
        }
        let mut table = self.table.lock();
        let number = table.events.reserve()?;
        if number >= abi::SIGNAL_EVENT_LIMIT {
            table.events.remove(number);
            return Err(Errno::ENOSPC.into());
        }
        let payload = abi::EventPayload::zeroed();
        // A fresh event has age 1, so that a client that knows nothing yet (age 0) is not confused with one that does.
        table.events.fill(number, Event { kind, auto_reset, signaled: false, age: 1, payload });
        Ok(number)
    }

    /// Ends an event; its waiters fail. EINVAL when there is none.
    pub fn destroy(&self, number: u32) -> Result {
        let removed = self.table.lock().events.remove(number);
        self.changed.notify_all();
        removed.map(|_| ()).ok_or(Errno::EINVAL.into())
    }

    fn change(&self, number: u32, f: impl FnOnce(&mut Event)) -> Result {
        let mut table = self.table.lock();
        f(table.events.get_mut(number).ok_or(Errno::EINVAL)?);
        drop(table);
        self.changed.notify_all();
        Ok(())
    }

    /// Signals an event. EINVAL when there is none.
    pub fn set(&self, number: u32) -> Result {
        self.change(number, Event::signal)
    }

    /// Takes a signal back.
    pub fn reset(&self, number: u32) -> Result {
        self.change(number, |event| event.signaled = false)
    }

    /// A GPU signals an event. One that does not exist (any more) is nothing to a GPU.
    pub fn signal(&self, number: u32) {
        let _ = self.set(number);
    }

    fn exception(&self, kind: u32, payload: abi::EventPayload) {
        let mut table = self.table.lock();
        for event in table.events.iter_mut().filter(|e| e.kind == kind) {
            event.payload = payload;
            event.signal();
        }
        drop(table);
        self.changed.notify_all();
    }

    /// A GPU access faulted for good: all memory events are signalled with where and why.
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

    /// Waits for one event, or for all; `timeout_ms` of `u32::MAX` means for ever. Fills in the data of those that came.
    pub fn wait(&self, list: &mut Vec<abi::EventData>, all: bool, timeout_ms: u32) -> Waited {
        let forever = timeout_ms == u32::MAX;
        let until = os::now().after(Duration::from_millis(timeout_ms.into()));
        let mut table = self.table.lock();
        let mut interrupted = false;
        loop {
            if table.closed {
                return Waited::Fail;
            }
            let mut came = 0;
            for item in list.iter() {
                let Some(event) = table.events.get(item.event_id) else { return Waited::Fail };
                came += usize::from(event.came(item));
            }
            if came == list.len() || (came > 0 && !all) {
                for item in list.iter_mut() {
                    if let Some(event) = table.events.get_mut(item.event_id) {
                        event.collect(item);
                    }
                }
                return Waited::Complete;
            }
            let now = os::now();
            if !forever && now >= until {
                return Waited::Timeout;
            }
            let left = if forever { Duration::from_secs(3600) } else { Duration::from_nanos(until.0 - now.0) };
            if interrupted {
                let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX - 1);
                return Waited::Interrupted(if forever { u32::MAX } else { left });
            }
            (table, interrupted) = self.changed.wait(table, left);
        }
    }

    /// The signal page, made when it is first wanted.
    pub fn page(&self, gpu: &dyn Gpu) -> Result<Arc<dyn DmaMemory>> {
        if let Some(page) = &self.table.lock().page {
            return Ok(page.clone());
        }
        let fresh = gpu.alloc_dma(u64::from(abi::SIGNAL_EVENT_LIMIT) * 8)?;
        Ok(self.table.lock().page.get_or_insert(fresh).clone())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.lock().events.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fails all waiters, now and from now on.
    pub fn close(&self) {
        self.table.lock().closed = true;
        self.changed.notify_all();
    }
}

impl Event {
    fn signal(&mut self) {
        self.signaled = true;
        self.age += 1;
    }

    /// Whether a waiter with this item need not sleep. Signal events may pass the age they know.
    fn came(&self, item: &abi::EventData) -> bool {
        let known = if self.kind == abi::EVENT_SIGNAL { item.payload.signal().last_event_age } else { 0 };
        self.signaled || (known != 0 && known != self.age)
    }

    fn collect(&mut self, item: &mut abi::EventData) {
        if !self.came(item) {
            return;
        }
        match self.kind {
            abi::EVENT_MEMORY | abi::EVENT_HW_EXCEPTION => item.payload = self.payload,
            abi::EVENT_SIGNAL if item.payload.signal().last_event_age != 0 => {
                item.payload = abi::SignalEventData { last_event_age: self.age }.into();
            }
            _ => {}
        }
        if self.auto_reset {
            self.signaled = false;
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
        let (auto, manual) = (events.create(0, true).unwrap(), events.create(0, false).unwrap());
        assert_eq!(events.wait(&mut list(&[auto]), true, 0), Waited::Timeout);
        events.signal(auto);
        events.set(manual).unwrap();
        assert_eq!(events.wait(&mut list(&[auto, manual]), true, 0), Waited::Complete);
        assert_eq!(events.wait(&mut list(&[auto]), true, 0), Waited::Timeout);
        assert_eq!(events.wait(&mut list(&[auto, manual]), false, 0), Waited::Complete);
        events.reset(manual).unwrap();
        assert_eq!(events.wait(&mut list(&[auto, manual]), false, 0), Waited::Timeout);
        events.destroy(auto).unwrap();
        assert_eq!(events.wait(&mut list(&[auto]), true, u32::MAX), Waited::Fail);
        assert!(events.destroy(auto).is_err());
    }

    #[test]
    fn a_memory_exception_says_where() {
        let events = Events::new().unwrap();
        let id = events.create(abi::EVENT_MEMORY, false).unwrap();
        let data = abi::MemoryExceptionData { va: 0x1234_5000, gpu_id: 7, ..abi::MemoryExceptionData::zeroed() };
        events.memory_exception(data);
        let mut items = list(&[id]);
        assert_eq!(events.wait(&mut items, true, 0), Waited::Complete);
        assert_eq!(items[0].payload.memory_exception(), data);
    }
}
