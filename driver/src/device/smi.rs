// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SMI events: changes of a GPU's memory, as lines of text that a client reads from a file.
//!
//! SMI_EVENTS gives a client a file of the host's ([`EventStream`]) for one GPU: to it the client
//! writes which events it wants, and from it reads lines in KFD's format. It learns of its own
//! process; a line that finds no room is lost, whole, as in KFD.
//!
//! Events are sent from invalidations, that is in memory reclaim: nothing is allocated then, and
//! where the invalidation may not block, a lock that is taken costs the event. The list of clients
//! is under a lock of rank `Smi`. With no client an event costs one load.
//!
//! Limits: events of other processes are not given, whatever the mask asks for; of processes that
//! start and end neither.

use crate::base::errno::{Errno, Result};
use crate::base::lock_rank::Rank;
use crate::device::share;
use crate::os::{self, Arc, Mutex, Vec};
use crate::seams::event_stream::EventStream;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};
use vkfd_uapi::smi as abi;

/// At most so many files of a GPU.
const MAX_CLIENTS: usize = 64;

/// Something that clients may learn of. Addresses are page numbers, sizes in pages, locations
/// `gpu_id`s or 0 for system memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A GPU page fault that could not be served.
    VmFault,
    /// Pages are going to move.
    MigrateStart {
        /// First page.
        start: u64,
        /// How many.
        pages: u64,
        /// Where they are.
        from: u32,
        /// Where they go.
        to: u32,
        /// The range's prefetch location.
        prefetch: u32,
        /// The range's preferred location.
        preferred: u32,
        /// `MIGRATE_TRIGGER_*`.
        trigger: u32,
    },
    /// Pages have moved, or not.
    MigrateEnd {
        /// First page.
        start: u64,
        /// How many.
        pages: u64,
        /// Where they were.
        from: u32,
        /// Where they went.
        to: u32,
        /// `MIGRATE_TRIGGER_*`.
        trigger: u32,
        /// 0, or the negative error number.
        error: i32,
    },
    /// A page fault is being served.
    FaultStart {
        /// The page.
        page: u64,
        /// Whether it was a write.
        write: bool,
    },
    /// A page fault has been served.
    FaultEnd {
        /// The page.
        page: u64,
        /// Whether pages have moved for it.
        migrated: bool,
    },
    /// The process's queues were stopped.
    Evicted {
        /// `QUEUE_EVICTION_TRIGGER_*`.
        trigger: u32,
    },
    /// They run again, or could not yet.
    Restored {
        /// Tried, and to be tried again.
        rescheduled: bool,
    },
    /// Entries of an SVM range were cleared.
    Unmapped {
        /// First page.
        start: u64,
        /// How many.
        pages: u64,
        /// `SVM_UNMAP_TRIGGER_*`.
        trigger: u32,
    },
}

impl Event {
    /// Its number in the ABI.
    pub const fn number(&self) -> u32 {
        match self {
            Self::VmFault => abi::SMI_EVENT_VMFAULT,
            Self::MigrateStart { .. } => abi::SMI_EVENT_MIGRATE_START,
            Self::MigrateEnd { .. } => abi::SMI_EVENT_MIGRATE_END,
            Self::FaultStart { .. } => abi::SMI_EVENT_PAGE_FAULT_START,
            Self::FaultEnd { .. } => abi::SMI_EVENT_PAGE_FAULT_END,
            Self::Evicted { .. } => abi::SMI_EVENT_QUEUE_EVICTION,
            Self::Restored { .. } => abi::SMI_EVENT_QUEUE_RESTORE,
            Self::Unmapped { .. } => abi::SMI_EVENT_UNMAP_FROM_GPU,
        }
    }

    fn write(&self, line: &mut Line, gpu_id: u32, who: &Who) -> fmt::Result {
        let (node, pid, ns) = (gpu_id, who.pid, os::now().0);
        write!(line, "{:x} ", self.number())?;
        match *self {
            Self::VmFault => writeln!(line, "{pid:x}:{}", who.name()),
            Self::MigrateStart { start, pages, from, to, prefetch, preferred, trigger } => writeln!(
                line,
                "{ns} -{pid} @{start:x}({pages:x}) {from:x}->{to:x} {prefetch:x}:{preferred:x} {trigger}"
            ),
            Self::MigrateEnd { start, pages, from, to, trigger, error } => {
                writeln!(line, "{ns} -{pid} @{start:x}({pages:x}) {from:x}->{to:x} {trigger} {error}")
            }
            Self::FaultStart { page, write } => {
                writeln!(line, "{ns} -{pid} @{page:x}({node:x}) {}", if write { 'W' } else { 'R' })
            }
            Self::FaultEnd { page, migrated } => {
                writeln!(line, "{ns} -{pid} @{page:x}({node:x}) {}", if migrated { 'M' } else { 'U' })
            }
            Self::Evicted { trigger } => writeln!(line, "{ns} -{pid} {node:x} {trigger}"),
            Self::Restored { rescheduled } => {
                writeln!(line, "{ns} -{pid} {node:x} {}", if rescheduled { 'R' } else { '0' })
            }
            Self::Unmapped { start, pages, trigger } => {
                writeln!(line, "{ns} -{pid} @{start:x}({pages:x}) {node:x} {trigger}")
            }
        }
    }
}

/// Which process an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    /// Its number in this driver ([`crate::process::Process::number`]).
    pub process: u64,
    /// Its process id, as its events show it.
    pub pid: u32,
    /// What it was called when it opened the device, then zeroes.
    pub name: [u8; 16],
}

impl Who {
    fn name(&self) -> &str {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        self.name.get(..end).and_then(|name| core::str::from_utf8(name).ok()).unwrap_or_default()
    }
}

/// Text being formatted, cut at the largest line.
struct Line {
    text: [u8; abi::SMI_EVENT_MSG_SIZE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.text.get_mut(self.len..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(s.as_bytes()) {
            *to = *from;
            self.len = self.len.saturating_add(1);
        }
        Ok(())
    }
}

/// Someone who reads a GPU's events.
struct Client {
    process: u64,
    user: u32,
    /// `None` until its file has been made.
    stream: Option<Arc<dyn EventStream>>,
}

impl Client {
    fn wants(&self, number: u32, process: u64) -> bool {
        let mask = self.stream.as_ref().map_or(0, |stream| stream.mask());
        process == self.process && mask & abi::event_mask(number) != 0
    }

    fn is_closed(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_closed())
    }
}

/// The clients of one GPU.
pub struct Clients {
    list: Mutex<Vec<Client>>,
    /// How many there are.
    count: AtomicU64,
}

impl Clients {
    pub fn new() -> Result<Self> {
        Ok(Self { list: Mutex::new(Rank::Smi, Vec::new())?, count: AtomicU64::new(0) })
    }

    /// Takes a place for a client of process number `process` and forgets those whose file is
    /// closed. ENOSPC when there is none left, or those that are left are for other users
    /// ([`share`]). O(clients).
    pub fn reserve(&self, process: u64, user: u32) -> Result {
        let mut kept = Vec::with_capacity(MAX_CLIENTS)?;
        let mut closed = Vec::with_capacity(MAX_CLIENTS)?;
        let mut list = self.list.lock();
        while let Some(client) = list.pop() {
            let to = if client.is_closed() { &mut closed } else { &mut kept };
            // The list is never longer than either has room for.
            to.push_reserved(client);
        }
        let own = kept.iter().filter(|client: &&Client| client.user == user).count();
        let room = share::allows(MAX_CLIENTS, MAX_CLIENTS.saturating_sub(kept.len()), own)
            && kept.push_reserved(Client { process, user, stream: None });
        core::mem::swap(&mut *list, &mut kept);
        self.count.store(list.len() as u64, Ordering::Release);
        drop(list);
        // What is freed, is without the lock.
        drop((kept, closed));
        if room {
            Ok(())
        } else {
            Err(Errno::ENOSPC.into())
        }
    }

    /// Gives a reserved place of the process its file, which hears nothing until it selects
    /// something; or gives the place back.
    pub fn fill(&self, process: u64, stream: Option<Arc<dyn EventStream>>) {
        let mut list = self.list.lock();
        let at = list.iter().position(|client| client.process == process && client.stream.is_none());
        let removed = match (at, stream) {
            (Some(at), None) => Some(list.swap_remove(at)),
            (Some(at), stream) => {
                if let Some(client) = list.get_mut(at) {
                    client.stream = stream;
                }
                None
            }
            _ => None,
        };
        self.count.store(list.len() as u64, Ordering::Release);
        drop(list);
        drop(removed);
    }

    /// Process number `process` has gone.
    pub fn forget(&self, process: u64) {
        loop {
            let mut list = self.list.lock();
            let at = list.iter().position(|client| client.process == process);
            let removed = at.map(|at| list.swap_remove(at));
            self.count.store(list.len() as u64, Ordering::Release);
            drop(list);
            if removed.is_none() {
                return;
            }
        }
    }

    /// Sends the event to all readers that asked for it. `blockable` as of an invalidation;
    /// elsewhere true.
    pub fn send(&self, gpu_id: u32, who: &Who, event: Event, blockable: bool) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let Some(list) = (if blockable { Some(self.list.lock()) } else { self.list.try_lock() }) else { return };
        let mut wanted = list.iter().filter(|client| client.wants(event.number(), who.process)).peekable();
        if wanted.peek().is_none() {
            return;
        }
        let mut line = Line { text: [0; abi::SMI_EVENT_MSG_SIZE], len: 0 };
        // A line takes whatever is written to it.
        let _ = event.write(&mut line, gpu_id, who);
        for client in wanted {
            if let Some(stream) = &client.stream {
                stream.write(line.text.get(..line.len).unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::string::String;
    use std::sync::Mutex as StdMutex;

    #[derive(Default)]
    struct File {
        mask: AtomicU64,
        closed: AtomicBool,
        text: StdMutex<String>,
    }

    impl EventStream for File {
        fn mask(&self) -> u64 {
            self.mask.load(Ordering::SeqCst)
        }

        fn write(&self, line: &[u8]) {
            self.text.lock().unwrap().push_str(core::str::from_utf8(line).unwrap());
        }

        fn is_closed(&self) -> bool {
            self.closed.load(Ordering::SeqCst)
        }
    }

    fn add(clients: &Clients, process: u64, user: u32, file: Arc<File>) -> Result {
        clients.reserve(process, user)?;
        clients.fill(process, Some(file));
        Ok(())
    }

    fn who() -> Who {
        Who { process: 1, pid: 77, name: *b"task\0\0\0\0\0\0\0\0\0\0\0\0" }
    }

    #[test]
    fn a_client_hears_what_it_selected_of_its_own_process() {
        let clients = Clients::new().unwrap();
        let [mine, other] = [1, 2].map(|process| {
            let file = Arc::new(File::default());
            add(&clients, process, 0, file.clone()).unwrap();
            file
        });
        let evicted = Event::Evicted { trigger: abi::QUEUE_EVICTION_TRIGGER_SVM };
        clients.send(5, &who(), evicted, true);
        for file in [&mine, &other] {
            assert_eq!(*file.text.lock().unwrap(), "", "nothing was selected");
            file.mask.store(abi::event_mask(abi::SMI_EVENT_QUEUE_EVICTION), Ordering::SeqCst);
        }
        clients.send(5, &who(), evicted, true);
        clients.send(5, &who(), Event::Restored { rescheduled: false }, true);
        let line = core::mem::take(&mut *mine.text.lock().unwrap());
        assert!(line.starts_with("9 ") && line.ends_with(" -77 5 0\n") && line.lines().count() == 1, "{line}");
        assert_eq!(*other.text.lock().unwrap(), "");
        clients.forget(1);
        clients.send(5, &who(), evicted, true);
        assert_eq!(*mine.text.lock().unwrap(), "");
        assert_eq!(Arc::strong_count(&mine), 1);
    }

    #[test]
    fn closed_files_make_room() {
        let clients = Clients::new().unwrap();
        let files: [_; MAX_CLIENTS] = core::array::from_fn(|_| Arc::new(File::default()));
        // A user each, as the last ones are only for users who have none.
        (0..).zip(&files).for_each(|(user, file)| add(&clients, 1, user, file.clone()).unwrap());
        let one_more = || add(&clients, 1, 3, Arc::new(File::default()));
        assert_eq!(one_more().unwrap_err().errno, Errno::ENOSPC);
        files[3].closed.store(true, Ordering::SeqCst);
        one_more().unwrap();
        assert_eq!(Arc::strong_count(&files[3]), 1);
    }

    #[test]
    fn one_user_does_not_take_all_and_a_place_comes_back() {
        let clients = Clients::new().unwrap();
        let taken = (0..).take_while(|_| clients.reserve(1, 1).is_ok()).count();
        assert_eq!(taken, MAX_CLIENTS * 3 / 4);
        add(&clients, 2, 2, Arc::new(File::default())).unwrap();
        assert_eq!(clients.reserve(1, 1).unwrap_err().errno, Errno::ENOSPC);
        // The file could not be made.
        clients.fill(1, None);
        clients.fill(1, None);
        clients.reserve(1, 1).unwrap();
        clients.forget(1);
        assert_eq!(clients.list.lock().len(), 1);
    }

    #[test]
    fn lines_are_as_kfds_macros_write_them() {
        let lines = |event: Event| {
            let mut line = Line { text: [0; abi::SMI_EVENT_MSG_SIZE], len: 0 };
            event.write(&mut line, 0xab, &who()).unwrap();
            String::from_utf8(line.text[..line.len].to_vec()).unwrap()
        };
        let event = Event::MigrateStart {
            start: 0x7f00,
            pages: 0x200,
            from: 0,
            to: 0xab,
            prefetch: 0xab,
            preferred: u32::MAX,
            trigger: abi::MIGRATE_TRIGGER_PREFETCH,
        };
        let text = lines(event);
        let rest = text.strip_prefix("5 ").unwrap().split_once(' ').unwrap().1;
        assert_eq!(rest, "-77 @7f00(200) 0->ab ab:ffffffff 0\n");
        assert_eq!(lines(Event::VmFault), "1 4d:task\n");
    }
}
