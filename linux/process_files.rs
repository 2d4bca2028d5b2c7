// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `/sys/class/kfd/kfd/proc`: a directory for each process that has KFD's device open, as Linux's
//! `kfd_process.c` has them, for monitors.
//!
//! The files and their numbers are the driver's ([`vkfd_driver::drm::processes`]). The driver
//! notifies when a process or a queue has come or gone. Then the directories are compared with the
//! driver's list, because two notifications may come in another order than their events. A
//! process whose files cannot be made is not shown; it works all the same, as with KFD.
//!
//! The lock (`Rank::Shown`) guards the directories, and is held while they are made and removed.
//! Removing waits for readers, and a reader takes the locks of the process that it asks. So the
//! rank is below those, no reader takes this lock, and the driver notifies without locks of its
//! own. No device is asked under it.
//!
//! A file keeps its process. The driver has a process's files removed before it ends the process.
//! A program that is killed, or executes another one, ends with its last open file.
//!
//! Limits: if the first of several processes of a PID ends, the others get new directories.

use crate::sabotage::SWITCHES;
use crate::sysfs::{Directory, Source, Text};
use core::fmt::Write;
use kernel::device;
use kernel::prelude::*;
use kernel::str::CString;
use kernel::sync::Arc;
use vkfd_driver::base::lock_rank::Rank;
use vkfd_driver::device::Device;
use vkfd_driver::drm::processes::{self, DirectoryName, OnGpuFact, QueueFact, OF_GPU, OF_QUEUE, PASID};
use vkfd_driver::machine::kfd::Kfd;
use vkfd_driver::machine::listing::{self, Listed, QueueFacts};
use vkfd_driver::os::{self, Mutex};
use vkfd_sabotage::Switch;

/// The directories, until this is dropped.
pub(crate) struct ProcessFiles(Arc<Shown>);

struct Shown {
    kfd: Arc<Kfd>,
    directories: Mutex<Directories>,
}

struct Directories {
    /// Each behind the one that it is in.
    made: KVec<Made>,
    /// The directory of all; none once the module goes.
    root: Option<Directory>,
}

/// What was made for a process. The fields go in this order.
struct Made {
    process: Arc<dyn Listed>,
    name: DirectoryName,
    /// By their numbers.
    each_queue: KVec<(u32, Directory)>,
    /// The directory of queues, and those of GPUs.
    parts: KVec<Directory>,
    top: Directory,
}

/// A number of a process on a GPU.
struct OnGpu {
    process: Arc<dyn Listed>,
    gpu: usize,
    fact: OnGpuFact,
}

/// A number of a process's queue.
struct OfQueue {
    process: Arc<dyn Listed>,
    queue: u32,
    fact: QueueFact,
}

impl Source for OnGpu {
    fn write(&self, to: &mut Text) -> Result {
        let number = processes::on_gpu(&*self.process, self.gpu, self.fact).ok_or(ENODEV)?;
        writeln!(to, "{number}").map_err(|_| ENOMEM)
    }
}

impl Source for OfQueue {
    fn write(&self, to: &mut Text) -> Result {
        let queue = queue(&*self.process, self.queue).ok_or(ENODEV)?;
        write!(to, "{}", processes::of_queue(&queue, self.fact)).map_err(|_| ENOMEM)
    }
}

/// A queue by its number.
fn queue(process: &dyn Listed, number: u32) -> Option<QueueFacts> {
    process.queue_from(number).filter(|queue| queue.number == number)
}

impl ProcessFiles {
    /// Makes the directory in that of KFD's `device`, and those of all processes from now on.
    pub(crate) fn new(kfd: &Arc<Kfd>, device: &device::Device) -> Result<Self> {
        let root = Some(Directory::in_device(device, c"proc")?);
        let directories = Mutex::new(Rank::Shown, Directories { made: KVec::new(), root })?;
        let shown = Arc::new(Shown { kfd: kfd.clone(), directories }, GFP_KERNEL)?;
        kfd.listing().show_in(Some(shown.clone()));
        let this = Self(shown);
        // Those that have opened the device meanwhile.
        let mut next = 0;
        while let Some((process, _)) = kfd.listing().from(next) {
            listing::ProcessFiles::processes(&*this.0, process.pid());
            next = process.number() + 1;
        }
        Ok(this)
    }
}

impl Drop for ProcessFiles {
    fn drop(&mut self) {
        // The driver has these files, and they have the driver.
        self.0.kfd.listing().show_in(None);
        let mut directories = self.0.directories.lock();
        while directories.made.pop().is_some() {}
        directories.root = None;
    }
}

impl listing::ProcessFiles for Shown {
    fn processes(&self, pid: u32) {
        let mut directories = self.directories.lock();
        for before in 0.. {
            let process = self.kfd.listing().of_pid(pid, before);
            let name = DirectoryName { pid, before };
            let made = directories.find(name).map(|made| made.process.number());
            if made.is_some() && made == process.as_ref().map(|process| process.number()) {
                continue;
            }
            if process.is_none() && SWITCHES.has(Switch::KeptDirectories) {
                return;
            }
            directories.remove(name);
            // They have no gaps.
            let Some(process) = process else { return };
            if let Err(error) = directories.add(&self.kfd, process, name) {
                return not_shown(pid, error);
            }
        }
    }

    fn queue(&self, process: u64, queue: u32) {
        let mut directories = self.directories.lock();
        let Some(made) = directories.made.iter_mut().find(|made| made.process.number() == process) else { return };
        if let Err(error) = made.look_at(queue) {
            not_shown(made.name.pid, error);
        }
    }
}

fn not_shown(pid: u32, error: Error) {
    os::warn(format_args!("process {pid} is not shown in sysfs, or not all of it: {}", error.to_errno()));
}

impl Directories {
    fn find(&self, name: DirectoryName) -> Option<&Made> {
        self.made.iter().find(|made| made.name == name)
    }

    /// Removes the directory of this name and those behind it.
    fn remove(&mut self, name: DirectoryName) {
        let goes = |made: &Made| made.name.pid == name.pid && made.name.before >= name.before;
        while let Some(last) = self.made.iter().rposition(goes) {
            // It is there.
            let _ = self.made.remove(last);
        }
    }

    fn add(&mut self, kfd: &Kfd, process: Arc<dyn Listed>, name: DirectoryName) -> Result {
        self.made.reserve(1, GFP_KERNEL)?;
        let around = match name.before {
            0 => self.root.as_ref(),
            _ => self.find(DirectoryName { before: 0, ..name }).map(|first| &first.top),
        };
        let top = around.ok_or(ENOENT)?.directory(&text(format_args!("{name}"))?)?;
        let made = Made::new(kfd, process, name, top)?;
        // There is room.
        let _ = self.made.push_within_capacity(made);
        Ok(())
    }
}

impl Made {
    fn new(kfd: &Kfd, process: Arc<dyn Listed>, name: DirectoryName, top: Directory) -> Result<Self> {
        let mut this = Self { process, name, each_queue: KVec::new(), parts: KVec::new(), top };
        this.top.file(c"pasid", Text::new(format_args!("{PASID}"))?)?;
        for device in kfd.devices() {
            this.add_gpu(device)?;
        }
        // The last: queues are looked for in it.
        let queues = this.top.directory(c"queues")?;
        this.parts.push(queues, GFP_KERNEL)?;
        let mut next = 0;
        while let Some(queue) = this.process.queue_from(next) {
            this.look_at(queue.number)?;
            next = queue.number + 1;
        }
        Ok(this)
    }

    fn add_gpu(&mut self, device: &Device) -> Result {
        let (gpu, id) = (device.index(), device.id());
        let mut open = None;
        for file in OF_GPU {
            if !processes::has_on_gpu(&*self.process, device, file.fact) {
                continue;
            }
            let source = OnGpu { process: self.process.clone(), gpu, fact: file.fact };
            let with_id = |name: &CStr| text(format_args!("{}_{id}", name.to_str().unwrap_or_default()));
            let Some(directory) = file.directory else {
                self.top.source(&with_id(file.name)?, source)?;
                continue;
            };
            if open != Some(directory) {
                let made = self.top.directory(&with_id(directory)?)?;
                self.parts.push(made, GFP_KERNEL)?;
                open = Some(directory);
            }
            self.parts.last_mut().ok_or(EINVAL)?.source(file.name, source)?;
        }
        Ok(())
    }

    /// Makes a queue's directory, or removes it, as the queue is there or not.
    fn look_at(&mut self, number: u32) -> Result {
        let is_there = queue(&*self.process, number).is_some();
        match (is_there, self.each_queue.binary_search_by_key(&number, |(number, _)| *number)) {
            (true, Err(at)) => {
                self.each_queue.reserve(1, GFP_KERNEL)?;
                let queues = self.parts.last().ok_or(EINVAL)?;
                let mut directory = queues.numbered(number as usize)?;
                for (name, fact) in OF_QUEUE {
                    directory.source(name, OfQueue { process: self.process.clone(), queue: number, fact })?;
                }
                // There is room.
                let _ = self.each_queue.insert_within_capacity(at, (number, directory));
            }
            (false, Ok(at)) => {
                // It is there.
                let _ = self.each_queue.remove(at);
            }
            _ => {}
        }
        Ok(())
    }
}

/// A name.
fn text(name: core::fmt::Arguments<'_>) -> Result<CString> {
    CString::try_from_fmt(fmt!("{name}"))
}
