// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The processes and the open render nodes of a machine, for programs that show them: monitors.
//!
//! Mechanism: a process is listed from its open of `/dev/kfd` until its release, a render node as
//! long as it is open. The machine is below processes and knows them as [`Listed`]. Facts are made
//! when somebody asks.
//!
//! A host may have files about processes ([`ProcessFiles`]). It is notified when a process or a
//! queue has come or gone.
//!
//! Three locks of rank `Listing` guard the lists and the host's files. They are never held
//! together, nor over a question to a process or a notification. Both lists are in the order of
//! their numbers, which only grow.
//!
//! Limits: processes in another PID namespace have the numbers that this one sees.

use crate::base::errno::{Errno, Result};
use crate::base::lock_rank::Rank;
use crate::os::{Arc, Mutex, Vec};
use crate::seams::gpu::Share;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// What a process has of one GPU, and has been through there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OnGpu {
    /// Bytes of VRAM: of objects that it allocated, and of SVM memory.
    pub vram: u64,
    /// Bytes of VRAM that files have brought.
    pub imported_vram: u64,
    /// Bytes of VRAM with page tables.
    pub tables: u64,
    /// Bytes of system memory that the GPU reaches: the driver's, and registered memory.
    pub gtt: u64,
    /// Bytes of registered memory that no GPU has mapped.
    pub cpu: u64,
    /// How long its queues were stopped.
    pub stopped: Duration,
    /// How much the GPU has worked for it, if the GPU counts that.
    pub work: Option<Share>,
    /// Faults, pages in and pages out of SVM memory; none where there is no such memory.
    pub svm: Option<[u64; 3]>,
}

/// A queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueFacts {
    /// Its number.
    pub number: u32,
    /// Its GPU's.
    pub gpu_id: u32,
    /// Bytes of its ring.
    pub bytes: u64,
    /// Its type as KFD's files have it.
    pub kind: u32,
}

/// A process, as the machine knows it.
pub trait Listed: Send + Sync {
    /// A number that no other process of the machine has had.
    fn number(&self) -> u64;
    /// Its number in the system.
    fn pid(&self) -> u32;
    /// Of GPU number `gpu`. O(buffer objects and blocks of SVM memory).
    fn on_gpu(&self, gpu: usize) -> OnGpu;
    /// Compute units of GPU number `gpu` that its waves would fill; none where nobody counts them.
    fn occupied(&self, gpu: usize) -> Option<u64>;
    /// The first queue from number `number` on.
    fn queue_from(&self, number: u32) -> Option<QueueFacts>;
}

/// A host's files about processes: of those that are listed, as long as they are.
///
/// The driver calls without locks of its own. So two notifications may come in another order than
/// their events, and the host asks the listing for the present state.
pub trait ProcessFiles: Send + Sync {
    /// A process with this PID has come or gone. One that has gone is not asked any more when this
    /// returns.
    fn processes(&self, pid: u32);
    /// The process with number `process` has a queue more or less: number `queue`.
    fn queue(&self, process: u64, queue: u32);
}

/// An open render node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client {
    /// A number that no other of the machine has had.
    pub id: u64,
    /// The process that opened it; 0: none of this system.
    pub pid: u32,
    /// Which GPU's.
    pub gpu: usize,
}

/// See the module.
pub struct Listing {
    processes: Mutex<Vec<Arc<dyn Listed>>>,
    clients: Mutex<Vec<Client>>,
    files: Mutex<Option<Arc<dyn ProcessFiles>>>,
    next_client: AtomicU64,
}

impl Listing {
    /// Nobody is listed.
    pub fn new() -> Result<Self> {
        Ok(Self {
            processes: Mutex::new(Rank::Listing, Vec::new())?,
            clients: Mutex::new(Rank::Listing, Vec::new())?,
            files: Mutex::new(Rank::Listing, None)?,
            next_client: AtomicU64::new(1),
        })
    }

    /// From now on the driver notifies these files, or none. The host itself makes those of
    /// processes that are listed already.
    pub fn show_in(&self, files: Option<Arc<dyn ProcessFiles>>) {
        let before = core::mem::replace(&mut *self.files.lock(), files);
        drop(before); // without the lock
    }

    fn files(&self) -> Option<Arc<dyn ProcessFiles>> {
        self.files.lock().clone()
    }

    /// A queue of a process has come or gone.
    pub(crate) fn queue_changed(&self, process: u64, queue: u32) {
        if let Some(files) = self.files() {
            files.queue(process, queue);
        }
    }

    /// A process is there.
    pub(crate) fn enter(&self, process: Arc<dyn Listed>) -> Result {
        let (number, pid) = (process.number(), process.pid());
        let mut all = self.processes.lock();
        let at = all.partition_point(|other| other.number() < number);
        if all.get(at).is_some_and(|other| other.number() == number) {
            return Ok(());
        }
        all.push(process)?;
        if let Some(rest) = all.get_mut(at..) {
            rest.rotate_right(1);
        }
        drop(all);
        if let Some(files) = self.files() {
            files.processes(pid);
        }
        Ok(())
    }

    /// And not any more.
    pub(crate) fn leave(&self, number: u64) {
        let mut all = self.processes.lock();
        let Some(at) = all.iter().position(|process| process.number() == number) else { return };
        // The order stays.
        if let Some(rest) = all.get_mut(at..) {
            rest.rotate_left(1);
        }
        let gone = all.pop();
        drop(all);
        let files = self.files();
        if let (Some(files), Some(gone)) = (&files, &gone) {
            files.processes(gone.pid());
        }
        drop(gone);
    }

    /// The first process from number `number` on, and how many of the same PID are before it.
    pub fn from(&self, number: u64) -> Option<(Arc<dyn Listed>, usize)> {
        let all = self.processes.lock();
        let at = all.partition_point(|process| process.number() < number);
        let found = all.get(at)?.clone();
        let pid = found.pid();
        let before = all.iter().take(at).filter(|process| process.pid() == pid).count();
        Some((found, before))
    }

    /// The process with this PID that so many are before.
    pub fn of_pid(&self, pid: u32, before: usize) -> Option<Arc<dyn Listed>> {
        self.processes.lock().iter().filter(|process| process.pid() == pid).nth(before).cloned()
    }

    /// A render node is open from now on.
    pub(crate) fn open(&self, pid: u32, gpu: usize) -> Result<Client> {
        let client = Client { id: self.next_client.fetch_add(1, Ordering::Relaxed), pid, gpu };
        self.clients.lock().push(client)?;
        Ok(client)
    }

    /// And not any more.
    pub(crate) fn close(&self, client: Client) {
        let mut all = self.clients.lock();
        if let Some(at) = all.iter().position(|other| *other == client) {
            all.swap_remove(at);
        }
    }

    /// The first render node of GPU number `gpu` that a process has opened and has open. ENOENT
    /// where there is none.
    pub fn client(&self, pid: u32, gpu: usize) -> Result<Client> {
        let all = self.clients.lock();
        let own = all.iter().filter(|client| client.pid == pid && client.gpu == gpu);
        own.min_by_key(|client| client.id).copied().ok_or(Errno::ENOENT.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Process(u64, u32);

    impl Listed for Process {
        fn number(&self) -> u64 {
            self.0
        }
        fn pid(&self) -> u32 {
            self.1
        }
        fn on_gpu(&self, _: usize) -> OnGpu {
            OnGpu::default()
        }
        fn occupied(&self, _: usize) -> Option<u64> {
            None
        }
        fn queue_from(&self, _: u32) -> Option<QueueFacts> {
            None
        }
    }

    #[test]
    fn processes_are_in_the_order_of_their_numbers() {
        let listing = Listing::new().unwrap();
        for (number, pid) in [(7, 70), (3, 30), (5, 70), (3, 30)] {
            listing.enter(Arc::new(Process(number, pid))).unwrap();
        }
        let all = || {
            let (mut next, mut all) = (0, Vec::new());
            while let Some((process, before)) = listing.from(next) {
                all.push((process.number(), before)).unwrap();
                next = process.number() + 1;
            }
            all
        };
        assert_eq!(all()[..], [(3, 0), (5, 0), (7, 1)]);
        assert_eq!(listing.of_pid(70, 0).map(|process| process.number()), Some(5));
        assert_eq!(listing.of_pid(70, 1).map(|process| process.number()), Some(7));
        assert!(listing.of_pid(70, 2).is_none() && listing.of_pid(71, 0).is_none());
        listing.leave(5);
        listing.leave(5);
        assert_eq!(all()[..], [(3, 0), (7, 0)]);
    }

    #[test]
    fn a_process_has_its_first_client_of_each_gpu() {
        let listing = Listing::new().unwrap();
        let [first, second, other] = [(70, 0), (70, 0), (70, 1)].map(|(pid, gpu)| listing.open(pid, gpu).unwrap());
        assert_eq!((listing.client(70, 0), listing.client(70, 1)), (Ok(first), Ok(other)));
        listing.close(first);
        assert_eq!(listing.client(70, 0), Ok(second));
        assert_eq!(listing.client(71, 0).map_err(|error| error.errno), Err(Errno::ENOENT));
    }
}
