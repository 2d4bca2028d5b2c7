// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Doorbells: the guest writes them in the window, which is memory like any other, and the driver's
//! are elsewhere.
//!
//! Mechanism: a thread for each context that has queues looks at their doorbells. When one has
//! changed, it copies the write pointer (for queues whose pointers the host keeps), writes the
//! driver's doorbell and tells the driver. It also shows the guest how far the GPU has read. An
//! empty doorbell is all ones, which no queue writes: an AQL queue's first value is 0.
//!
//! It looks all the time while there is something to see, then ever more seldom, up to [`SLOWEST`].
//!
//! Lock: `doors`, held while the thread looks; a leaf. Places that the guest gives up leave the
//! list before they go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vkfd_client::{Buffer, Embedded};

use super::kfd::{self, Doorbell};
use super::window::Place;

/// A doorbell that was not written.
pub const EMPTY: u64 = u64::MAX;
/// How long the thread looks without a pause after it has seen something.
const EAGER: Duration = Duration::from_micros(500);
/// The first pause.
const FIRST: Duration = Duration::from_micros(50);
/// The longest.
pub const SLOWEST: Duration = Duration::from_millis(1);

/// A queue's doorbell.
pub struct Door {
    /// The page in the window, if the guest has mapped it, and where in it.
    pub page: Option<Arc<Place>>,
    pub at: u64,
    pub last: u64,
    /// The driver's.
    pub bell: Doorbell,
    /// The pointers, where the host keeps them.
    pub pointers: Option<Pointers>,
    /// Which page it is in.
    pub node: u32,
}

/// Read and write pointer of a queue, in the guest and for the driver.
pub struct Pointers {
    pub guest: Option<Arc<Place>>,
    pub host: Arc<Buffer>,
    pub shown: u64,
}

/// Where in its page, the guest's and the driver's, the write pointer is.
pub const WRITE_POINTER: u64 = 0;
/// And the read pointer.
pub const READ_POINTER: u64 = 0x80;

/// A 64-bit word of the driver's copy.
pub fn host_word(buffer: &Buffer, at: u64) -> Option<&AtomicU64> {
    let base = buffer.cpu_ptr().filter(|_| at % 8 == 0 && at + 8 <= buffer.len())?;
    // SAFETY: an aligned word of memory that stays mapped as long as the buffer and is accessed
    // atomically only.
    Some(unsafe { AtomicU64::from_ptr(base.byte_add(super::window::size(at)).cast().as_ptr()) })
}

#[derive(Default)]
struct State {
    doors: Mutex<HashMap<u32, Door>>,
    /// Told when the list is no longer empty, or at the end.
    changed: Condvar,
    stop: AtomicBool,
}

/// The thread and its list, by the queues' numbers.
pub struct Relay {
    state: Arc<State>,
    file: Arc<Embedded>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Without a thread, until there is a queue.
    pub fn new(file: Arc<Embedded>) -> Self {
        Self { state: Arc::default(), file, thread: None }
    }

    /// Changes the list.
    pub fn with<R>(&self, change: impl FnOnce(&mut HashMap<u32, Door>) -> R) -> R {
        let mut doors = self.state.doors.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut doors);
        self.state.changed.notify_one();
        result
    }

    /// Adds a queue; the thread begins with the first.
    pub fn add(&mut self, queue: u32, door: Door) -> std::io::Result<()> {
        if self.thread.is_none() {
            let (state, file) = (self.state.clone(), self.file.clone());
            let thread = std::thread::Builder::new().name("gpu-doorbells".into());
            self.thread = Some(thread.spawn(move || run(&state, &file))?);
        }
        self.with(|doors| doors.insert(queue, door));
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        self.with(HashMap::clear);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(state: &State, file: &Embedded) {
    let mut active = Instant::now();
    let mut pause = FIRST;
    let mut doors = state.doors.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        while doors.is_empty() && !state.stop.load(Ordering::Acquire) {
            doors = state.changed.wait(doors).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop.load(Ordering::Acquire) {
            return;
        }
        let (mut rung, mut moved) = (false, false);
        for door in doors.values_mut() {
            rung |= door.look();
            moved |= door.show();
        }
        drop(doors);
        if rung {
            kfd::ringed(file);
        }
        if rung || moved {
            (active, pause) = (Instant::now(), FIRST);
        }
        match active.elapsed() < EAGER {
            true => std::thread::yield_now(),
            false => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(SLOWEST);
            }
        }
        doors = state.doors.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

impl Door {
    /// Relays the guest's writes. Whether it had.
    fn look(&mut self) -> bool {
        let Some(word) = self.page.as_ref().and_then(|page| page.word(self.at)) else { return false };
        let value = word.load(Ordering::Acquire);
        if value == self.last {
            return false;
        }
        self.last = value;
        if let Some(pointers) = &self.pointers {
            let guest = pointers.guest.as_ref().and_then(|place| place.word(WRITE_POINTER));
            // A guest that has not mapped the page writes the doorbell alone.
            let position = guest.map_or(value, |word| word.load(Ordering::Acquire));
            if let Some(host) = host_word(&pointers.host, WRITE_POINTER) {
                host.store(position, Ordering::Release);
            }
        }
        self.bell.word().store(value, Ordering::Release);
        true
    }

    /// Shows the guest how far the GPU has read. Whether it has moved.
    fn show(&mut self) -> bool {
        let Some(pointers) = &mut self.pointers else { return false };
        let Some(host) = host_word(&pointers.host, READ_POINTER) else { return false };
        let position = host.load(Ordering::Acquire);
        if position == pointers.shown {
            return false;
        }
        if let Some(guest) = pointers.guest.as_ref().and_then(|place| place.word(READ_POINTER)) {
            guest.store(position, Ordering::Release);
            pointers.shown = position;
            return true;
        }
        false
    }
}
