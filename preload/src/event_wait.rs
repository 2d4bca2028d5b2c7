// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A wait for events that would return at once, again and again, leaves the processors to the GPU.
//!
//! KFD counts an event's signals: its age. A caller passes the age that it knows, and the wait
//! returns at once where the event has another. AMD's runtime has a thread that waits for several
//! signals. ROCm 6.4 takes two equal events out of its list, and then passes age 1 for those behind
//! them, whatever KFD told. While the signal of such an event is not done, the thread spins in
//! WAIT_EVENTS. Beside hardware that is a processor of many. Here the GPU's threads want it.
//!
//! Mechanism: each thread remembers the ages that its last wait returned. A wait for the same
//! events that passes others waits first with the remembered ages, for [`LONGEST`] at most. Then
//! the caller's own wait follows, which returns at once as ever. The caller has looked at its
//! signals since it was told these ages, and misses nothing: a signal since then ends the first
//! wait.
//!
//! Limits: lists of more than [`MOST`] events, lists with events of exceptions, and waits for all
//! events are the driver's alone.

use libc::{c_int, c_void};
use std::cell::Cell;
use vkfd_driver::queues::event::FIRST_OTHER;
use vkfd_uapi::event::{EventData, SignalEventData, WaitEventsArgs, WAIT_RESULT_COMPLETE};
use vkfd_uapi::pod::{slice_as_bytes_mut, Pod};

/// In milliseconds: much less than a processor's time, and soon enough if this module is wrong.
const LONGEST: u32 = 1;
/// AMD's runtime has seven signals in such a list while llama.cpp runs.
const MOST: usize = 32;

/// Numbers of events and their ages.
#[derive(Clone, Copy)]
struct List {
    events: [(u32, u64); MOST],
    count: usize,
}

const NOTHING: List = List { events: [(0, 0); MOST], count: 0 };

thread_local! {
    /// What this thread's last wait returned.
    static TOLD: Cell<List> = const { Cell::new(NOTHING) };
}

/// WAIT_EVENTS, which `call` forwards. `read` reads the program's memory.
pub(crate) fn wait(
    argument: *mut c_void,
    read: impl Fn(*const c_void, &mut [u8]) -> Result<(), c_int>,
    call: impl Fn(*mut c_void) -> Result<(), c_int>,
) -> Result<(), c_int> {
    let told = TOLD.replace(NOTHING);
    let Some((args, list)) = asked(argument, &read) else { return call(argument) };
    if told.is_newer_than(&list) {
        told.wait(args, &call);
    }
    call(argument)?;
    if let Some((args, list)) = asked(argument, &read) {
        if args.wait_result == WAIT_RESULT_COMPLETE {
            TOLD.set(list);
        }
    }
    Ok(())
}

/// The caller's argument and its list, if this module knows what to do with them.
fn asked(
    argument: *mut c_void,
    read: impl Fn(*const c_void, &mut [u8]) -> Result<(), c_int>,
) -> Option<(WaitEventsArgs, List)> {
    let mut args = WaitEventsArgs::zeroed();
    read(argument, args.as_bytes_mut()).ok()?;
    let count = args.num_events as usize;
    if !(1..=MOST).contains(&count) || args.timeout == 0 || (args.wait_for_all != 0 && count > 1) {
        return None;
    }
    let mut items = [EventData::zeroed(); MOST];
    let at = std::ptr::with_exposed_provenance(usize::try_from(args.events_ptr).ok()?);
    read(at, slice_as_bytes_mut(&mut items[..count])).ok()?;
    let mut list = List { count, ..NOTHING };
    for (event, item) in list.events.iter_mut().zip(&items[..count]) {
        *event = (item.event_id, item.payload.signal().last_event_age);
    }
    let are_signals = list.all().iter().all(|(number, age)| *number < FIRST_OTHER && *age != 0);
    are_signals.then_some((args, list))
}

impl List {
    fn all(&self) -> &[(u32, u64)] {
        &self.events[..self.count]
    }

    /// Whether the ages of these same events were told, and others are asked with.
    fn is_newer_than(&self, asked: &Self) -> bool {
        let numbers = |list: &Self| list.events.map(|(number, _)| number);
        self.count == asked.count && numbers(self) == numbers(asked) && self.all() != asked.all()
    }

    /// Waits until there is a newer signal. The caller's own wait follows, and has the result.
    fn wait(&self, args: WaitEventsArgs, call: impl Fn(*mut c_void) -> Result<(), c_int>) {
        let mut items = [EventData::zeroed(); MOST];
        for (item, (number, age)) in items.iter_mut().zip(self.all()) {
            let payload = SignalEventData { last_event_age: *age }.into();
            *item = EventData { event_id: *number, payload, ..*item };
        }
        let mut args = WaitEventsArgs {
            events_ptr: items.as_mut_ptr().expose_provenance() as u64,
            timeout: args.timeout.min(LONGEST),
            ..args
        };
        let _ = call((&raw mut args).cast());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// What a wait makes of it: for each call, the list and the milliseconds. Each call tells the
    /// ages `now`.
    fn calls(asked: &[(u32, u64)], all: bool, milliseconds: u32, now: &[u64]) -> Vec<(Vec<(u32, u64)>, u32)> {
        let mut items: Vec<_> = asked
            .iter()
            .map(|(event_id, age)| {
                let payload = SignalEventData { last_event_age: *age }.into();
                EventData { event_id: *event_id, payload, ..EventData::zeroed() }
            })
            .collect();
        let mut args = WaitEventsArgs {
            events_ptr: items.as_mut_ptr().expose_provenance() as u64,
            num_events: u32::try_from(items.len()).unwrap(),
            wait_for_all: all.into(),
            timeout: milliseconds,
            wait_result: 7,
        };
        let seen = RefCell::new(Vec::new());
        let read = |from: *const c_void, to: &mut [u8]| {
            // SAFETY: the module reads the arguments and the list, which are this function's.
            unsafe { std::ptr::copy_nonoverlapping(from.cast(), to.as_mut_ptr(), to.len()) };
            Ok(())
        };
        let call = |argument: *mut c_void| {
            // SAFETY: the arguments of this function, or the module's own.
            unsafe {
                let args = argument.cast::<WaitEventsArgs>();
                (*args).wait_result = WAIT_RESULT_COMPLETE;
                let items = std::ptr::with_exposed_provenance_mut(usize::try_from((*args).events_ptr).unwrap());
                let items = std::slice::from_raw_parts_mut::<EventData>(items, (*args).num_events as usize);
                let list = items.iter().map(|item| (item.event_id, item.payload.signal().last_event_age));
                seen.borrow_mut().push((list.collect(), (*args).timeout));
                for (item, age) in items.iter_mut().zip(now) {
                    item.payload = SignalEventData { last_event_age: *age }.into();
                }
            }
            Ok(())
        };
        wait((&raw mut args).cast(), read, call).unwrap();
        seen.into_inner()
    }

    #[test]
    fn a_wait_with_older_ages_than_it_was_told_waits_with_these_first() {
        TOLD.set(NOTHING);
        let (old, told) = ([(4, 14), (3, 1), (5, 1)], [(4, 14), (3, 1), (5, 2)]);
        let for_ever = u32::MAX - 1;
        assert_eq!(calls(&old, false, for_ever, &[14, 1, 2]), [(old.to_vec(), for_ever)]);
        for _ in 0..3 {
            let expected = [(told.to_vec(), LONGEST), (old.to_vec(), for_ever)];
            assert_eq!(calls(&old, false, for_ever, &[14, 1, 2]), expected);
        }
        assert_eq!(calls(&told, false, for_ever, &[14, 1, 2]).len(), 1, "it passes what it was told");
        assert_eq!(calls(&old, false, for_ever, &[14, 1, 2]).len(), 2);
    }

    #[test]
    fn other_waits_are_the_drivers() {
        let one = |asked: &[(u32, u64)], all, milliseconds| {
            TOLD.set(NOTHING);
            let told: Vec<u64> = asked.iter().map(|(_, age)| age + 1).collect();
            calls(asked, all, milliseconds, &told);
            calls(asked, all, milliseconds, &told).len()
        };
        assert_eq!(one(&[(5, 1), (6, 1)], false, 100), 2);
        assert_eq!(one(&[(5, 1)], true, 100), 2, "all of one");
        assert_eq!(one(&[(5, 1), (6, 1)], true, 100), 1, "for all");
        assert_eq!(one(&[(5, 1), (6, 1)], false, 0), 1, "a look");
        assert_eq!(one(&[(5, 1), (FIRST_OTHER, 0)], false, 100), 1, "an exception's event");
        assert_eq!(one(&[(5, 0), (6, 0)], false, 100), 1, "without ages");
        assert_eq!(one(&[(5, 1); MOST + 1], false, 100), 1, "many");
        assert_eq!(one(&[], false, 100), 1, "none");
        TOLD.set(NOTHING);
        calls(&[(5, 1)], false, 100, &[2]);
        assert_eq!(calls(&[(6, 1)], false, 100, &[2]).len(), 1, "other events");
    }
}
