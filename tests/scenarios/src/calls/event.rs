// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events: making, setting, waiting.

use vkfd_client::uapi::command;
use vkfd_client::uapi::event::{
    CreateEventArgs, DestroyEventArgs, EventData, ResetEventArgs, SetEventArgs, SignalEventData, WaitEventsArgs,
    EVENT_DEBUG_EVENT, EVENT_HW_EXCEPTION, EVENT_MEMORY, EVENT_SIGNAL,
};
use vkfd_client::uapi::memory::{ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_client::uapi::mmap;
use vkfd_client::uapi::pod::Pod;
use vkfd_client::{CpuVa, Errno, PAGE};

use super::Calls;
use crate::raw::USERPTR;
use crate::Stop;

const GTT: u32 = ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE;

impl Calls {
    fn event(&self, label: &str, event_type: u32, auto_reset: u32, page: u64) -> Result<u32, Errno> {
        let mut args = CreateEventArgs { event_page_offset: page, event_type, auto_reset, ..CreateEventArgs::zeroed() };
        self.call(label, command::CREATE_EVENT, &mut args)?;
        Ok(args.event_id)
    }

    fn set(&self, label: &str, event_id: u32) {
        let _ = self.call(label, command::SET_EVENT, &mut SetEventArgs { event_id, pad: 0 });
    }

    fn reset(&self, label: &str, event_id: u32) {
        let _ = self.call(label, command::RESET_EVENT, &mut ResetEventArgs { event_id, pad: 0 });
    }

    fn destroy(&self, label: &str, event_id: u32) {
        let _ = self.call(label, command::DESTROY_EVENT, &mut DestroyEventArgs { event_id, pad: 0 });
    }

    /// Waits for events, of each the age that is known.
    fn wait(&self, label: &str, ids: &[(u32, u64)], wait_for_all: u32, timeout: u32) {
        let item = |&(event_id, age): &(u32, u64)| EventData {
            event_id,
            payload: SignalEventData { last_event_age: age }.into(),
            ..EventData::zeroed()
        };
        let mut list: Vec<EventData> = ids.iter().map(item).collect();
        let events_ptr = CpuVa::of(list.as_mut_ptr()).0;
        self.record.name(events_ptr, 48 * ids.len() as u64 + 1, "events");
        let num_events = u32::try_from(ids.len()).unwrap_or(0);
        let mut args = WaitEventsArgs { events_ptr, num_events, wait_for_all, timeout, wait_result: 77 };
        let _ = self.call(label, command::WAIT_EVENTS, &mut args);
    }
}

pub(super) fn events(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let page = calls.object("page", GTT, 8 * PAGE)?;
    let _ = calls.event("the first, with a page", EVENT_SIGNAL, 0, page.handle);
    for kind in (0..10).chain([u32::MAX]) {
        let _together = calls.record.together();
        let made = calls.event(&format!("kind {kind}"), kind, 0, 0);
        if let Ok(id) = made {
            calls.set(&format!("set kind {kind}"), id);
            calls.wait(&format!("wait for kind {kind}"), &[(id, 0)], 0, 0);
            calls.reset(&format!("reset kind {kind}"), id);
            calls.wait(&format!("wait for kind {kind}, reset"), &[(id, 0)], 0, 0);
            calls.destroy(&format!("destroy kind {kind}"), id);
            calls.destroy(&format!("destroy kind {kind} again"), id);
        }
    }
    for id in [0, 1, 999, 4095, 4096, 1 << 30, (1 << 30) + 1, u32::MAX] {
        calls.set(&format!("set {id:#x}"), id);
        calls.reset(&format!("reset {id:#x}"), id);
        calls.destroy(&format!("destroy {id:#x}"), id);
        calls.wait(&format!("wait for {id:#x}"), &[(id, 0)], 0, 0);
    }
    let mut bad = CreateEventArgs { node_id: 99, event_type: EVENT_MEMORY, ..CreateEventArgs::zeroed() };
    let _ = calls.call("of no node", command::CREATE_EVENT, &mut bad);
    bad = CreateEventArgs { auto_reset: 9, ..CreateEventArgs::zeroed() };
    let _ = calls.call("reset by 9", command::CREATE_EVENT, &mut bad);
    Ok(())
}

pub(super) fn page(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let page = calls.object("page", GTT, 8 * PAGE)?;
    let small = calls.object("small", GTT, 7 * PAGE)?;
    let large = calls.object("large", GTT, 9 * PAGE)?;
    let memory = calls.memory("memory", 8 * PAGE)?;
    let window = calls.window("window", 8 * PAGE)?;
    let own = calls.alloc("userptr", window.whole().start, 8 * PAGE, memory.whole().start, USERPTR)?;
    let gpu = u64::from(calls.gpu()) << 32;
    for (handle, label) in [
        (1, "a page of number 1"),
        (gpu | 999, "a page of no handle"),
        (u64::from(calls.no_gpu()) << 32 | 1, "a page of no GPU"),
        (mmap::MMAP_TYPE_EVENTS, "a page by its offset"),
        (small.handle, "a page too small"),
        (own.handle, "a page of a client's own"),
        (page.handle, "a page"),
        (page.handle, "a page again"),
        (large.handle, "another page"),
        (0, "no page"),
    ] {
        let _ = calls.event(label, EVENT_SIGNAL, 1, handle);
    }
    let _ = calls.free("free the page, mapped", page.handle);
    let _ = calls.unmap_from_gpu("unmap the page", page.handle);
    let _ = calls.free("free the page", page.handle);
    let mut count = 0;
    let end = loop {
        let mut args = CreateEventArgs::zeroed();
        // Not recorded one by one.
        let sent = crate::raw::send(&*calls.record, command::CREATE_EVENT, CpuVa::of(&raw mut args).0);
        match sent {
            Ok(()) => count += 1,
            Err(errno) => break errno,
        }
        if count > 8192 {
            break Errno::NOMEM;
        }
    };
    calls.record.forget_since("no page");
    calls.record.step("all events");
    calls.record.note("events with a slot", format!("{count} more, then {end:?}"));
    Ok(())
}

pub(super) fn page_in_vram(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let vram = calls.object("vram", ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE, 8 * PAGE)?;
    let _ = calls.event("a page in VRAM", EVENT_SIGNAL, 1, vram.handle);
    Ok(())
}

pub(super) fn wait(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let page = calls.object("page", GTT, 8 * PAGE)?;
    let auto = calls.event("auto", EVENT_SIGNAL, 1, page.handle)?;
    let manual = calls.event("manual", EVENT_SIGNAL, 0, 0)?;
    let memory = calls.event("memory", EVENT_MEMORY, 0, 0)?;
    let hardware = calls.event("hardware", EVENT_HW_EXCEPTION, 0, 0)?;
    let debug = calls.event("debug", EVENT_DEBUG_EVENT, 0, 0)?;
    calls.wait("for none, all", &[], 1, 0);
    calls.wait("for none, any", &[], 0, 0);
    calls.wait("for none, without end", &[], 1, u32::MAX);
    calls.wait("for auto, at once", &[(auto, 0)], 0, 0);
    calls.wait("for auto, 1 ms", &[(auto, 0)], 0, 1);
    calls.wait("for both, at once", &[(auto, 0), (manual, 0)], 1, 0);
    calls.set("set auto", auto);
    calls.wait("for both of which one is set, all", &[(auto, 0), (manual, 0)], 1, 0);
    calls.wait("for both of which one is set, any", &[(auto, 0), (manual, 0)], 0, 0);
    calls.wait("for auto, which has been taken", &[(auto, 0)], 0, 0);
    calls.set("set manual", manual);
    calls.wait("for manual", &[(manual, 0)], 0, 0);
    calls.wait("for manual again", &[(manual, 0)], 0, 0);
    calls.reset("reset manual", manual);
    calls.wait("for manual, reset", &[(manual, 0)], 0, 0);
    // Ages: an event that has come since is not waited for.
    calls.wait("for manual with age 1", &[(manual, 1)], 0, 0);
    calls.wait("for manual with age 2", &[(manual, 2)], 0, 0);
    calls.wait("for manual with age 3", &[(manual, 3)], 0, 0);
    calls.wait("for auto with age 1", &[(auto, 1)], 0, 0);
    calls.wait("for auto with age 2", &[(auto, 2)], 0, 0);
    calls.wait("for auto with age 100", &[(auto, 100)], 0, 0);
    calls.set("set auto twice", auto);
    calls.set("set auto twice, again", auto);
    calls.wait("for auto twice in one list", &[(auto, 0), (auto, 0)], 1, 0);
    calls.wait("for auto after that", &[(auto, 0)], 1, 0);
    calls.wait("for memory", &[(memory, 0)], 0, 0);
    calls.wait("for memory with an age", &[(memory, 5)], 0, 0);
    calls.wait("for hardware and debug", &[(hardware, 0), (debug, 0)], 0, 0);
    calls.wait("for one that is none", &[(auto, 0), (999, 0)], 0, 0);
    calls.set("set auto before", auto);
    calls.wait("for one that is none and one that is set", &[(auto, 0), (999, 0)], 0, 0);
    calls.wait("for auto after one that is none", &[(auto, 0)], 0, 0);
    let mut args = WaitEventsArgs { events_ptr: 1, num_events: 1, wait_for_all: 0, timeout: 0, wait_result: 77 };
    let _ = calls.call("for a list that is nowhere", command::WAIT_EVENTS, &mut args);
    args = WaitEventsArgs { events_ptr: 0, num_events: 0, wait_for_all: 7, timeout: 0, wait_result: 77 };
    let _ = calls.call("for none, all by 7", command::WAIT_EVENTS, &mut args);
    args = WaitEventsArgs { events_ptr: 1, num_events: 5000, wait_for_all: 0, timeout: 0, wait_result: 77 };
    let _ = calls.call("for 5000 nowhere", command::WAIT_EVENTS, &mut args);
    args = WaitEventsArgs { events_ptr: 1, num_events: u32::MAX, wait_for_all: 0, timeout: 0, wait_result: 77 };
    let _ = calls.call("for more than there can be", command::WAIT_EVENTS, &mut args);
    calls.destroy("destroy auto", auto);
    calls.wait("for auto, destroyed", &[(auto, 0)], 0, 0);
    Ok(())
}
