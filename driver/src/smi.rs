// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SMI events: lines of text about faults, evictions and restores, for who has opened a file for them.
//!
//! A stream is of one GPU and one process, and gets that process's events on that GPU; a line that does not fit is lost, as in KFD. A lock of
//! rank `Smi` guards the list; events come from reclaim, so nothing is allocated under it.
//!
//! Limits: events of other processes are not given, whatever the mask asks for.

use crate::errno::{Errno, Result};
use crate::files::EventStream;
use crate::gpu::PageFault;
use crate::lock_rank::Rank;
use crate::os::{self, Arc, Mutex, Vec};
use crate::process::Process;
use core::fmt::{self, Write};
use vkfd_uapi::smi as abi;

/// At most so many files of a process.
const MAX_STREAMS: usize = 64;

type Stream = (usize, Arc<dyn EventStream>);

/// A process's streams, with the number of their GPU.
pub struct Streams {
    list: Mutex<Vec<Stream>>,
    /// Of the process that opened the device.
    pid: u32,
    name: [u8; 16],
}

/// A line, cut at its longest.
struct Line {
    bytes: [u8; abi::SMI_EVENT_MSG_SIZE],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let len = text.len().min(room.len());
        for (to, from) in room.iter_mut().zip(text.as_bytes()) {
            *to = *from;
        }
        self.len += len;
        Ok(())
    }
}

impl Streams {
    /// None, for the calling process.
    pub fn new() -> Result<Self> {
        let (pid, name) = os::process();
        Ok(Self { list: Mutex::new(Rank::Smi, Vec::new())?, pid, name })
    }

    /// Adds one, and forgets those that were closed. ENOSPC for too many.
    fn add(&self, gpu: usize, stream: Arc<dyn EventStream>) -> Result {
        let mut kept = Vec::with_capacity(MAX_STREAMS)?;
        let mut list = self.list.lock();
        for (gpu, stream) in list.iter().filter(|(_, stream)| !stream.is_closed()) {
            kept.push_reserved((*gpu, stream.clone()));
        }
        let room = kept.len() < MAX_STREAMS;
        if room {
            kept.push_reserved((gpu, stream));
        }
        core::mem::swap(&mut *list, &mut kept);
        drop(list);
        drop(kept);
        if room {
            Ok(())
        } else {
            Err(Errno::ENOSPC.into())
        }
    }

    /// Tells who wants to know of event `number` on GPU number `gpu` (on all of them: `None`). Allowed in reclaim.
    pub fn emit(&self, gpu: Option<usize>, number: u32, what: fmt::Arguments<'_>) {
        let list = self.list.lock();
        if list.is_empty() {
            return;
        }
        let mut line = Line { bytes: [0; abi::SMI_EVENT_MSG_SIZE], len: 0 };
        // A line takes what there is room for.
        let _ = write!(line, "{number:x} ").and_then(|()| line.write_fmt(what));
        for (_, stream) in list.iter().filter(|(of, _)| gpu.is_none_or(|gpu| gpu == *of)) {
            if stream.mask() & abi::event_mask(number) != 0 {
                stream.write(line.bytes.get(..line.len).unwrap_or_default());
            }
        }
    }

    fn name(&self) -> &str {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        self.name.get(..end).and_then(|name| core::str::from_utf8(name).ok()).unwrap_or_default()
    }

    /// Lets all go.
    pub fn close(&self) {
        let list = core::mem::take(&mut *self.list.lock());
        drop(list); // without the lock
    }
}

impl Process {
    /// Opens a file of events of a GPU: its descriptor.
    pub(crate) fn open_smi(&self, gpu_id: u32) -> Result<u32> {
        let gpu = self.kfd().device(gpu_id)?.index();
        let (file, stream) = self.kfd().files().event_stream()?;
        // A file that is not on the list says nothing, and is the caller's to close.
        self.smi().add(gpu, stream)?;
        Ok(file)
    }

    fn gpu_id(&self, gpu: usize) -> u32 {
        self.kfd().devices().get(gpu).map_or(0, |d| d.id())
    }

    /// A fault that was not served.
    pub(crate) fn smi_vm_fault(&self, gpu: usize) {
        let smi = self.smi();
        smi.emit(Some(gpu), abi::SMI_EVENT_VMFAULT, format_args!("{:x}:{}\n", smi.pid, smi.name()));
    }

    /// A fault that is about to be served.
    pub(crate) fn smi_fault_start(&self, gpu: usize, fault: &PageFault) {
        let (pid, id, rw) = (self.smi().pid, self.gpu_id(gpu), if fault.write { 'W' } else { 'R' });
        let line = format_args!("{} -{pid} @{:x}({id:x}) {rw}\n", os::now().0, fault.va.0 >> 12);
        self.smi().emit(Some(gpu), abi::SMI_EVENT_PAGE_FAULT_START, line);
    }

    /// It was served, or not: its pages were updated.
    pub(crate) fn smi_fault_end(&self, gpu: usize, fault: &PageFault) {
        let (pid, id) = (self.smi().pid, self.gpu_id(gpu));
        let line = format_args!("{} -{pid} @{:x}({id:x}) U\n", os::now().0, fault.va.0 >> 12);
        self.smi().emit(Some(gpu), abi::SMI_EVENT_PAGE_FAULT_END, line);
    }

    /// The queues were stopped, for one of `QUEUE_EVICTION_TRIGGER_*`. Allowed in reclaim.
    pub(crate) fn smi_eviction(&self, trigger: u32) {
        for gpu in 0..self.gpu_count() {
            let (pid, id) = (self.smi().pid, self.gpu_id(gpu));
            let line = format_args!("{} -{pid} {id:x} {trigger}\n", os::now().0);
            self.smi().emit(Some(gpu), abi::SMI_EVENT_QUEUE_EVICTION, line);
        }
    }

    /// The queues go on; or a restore has to be tried again.
    pub(crate) fn smi_restore(&self, again: bool) {
        for gpu in 0..self.gpu_count() {
            let (pid, id, how) = (self.smi().pid, self.gpu_id(gpu), if again { 'R' } else { '0' });
            let line = format_args!("{} -{pid} {id:x} {how}\n", os::now().0);
            self.smi().emit(Some(gpu), abi::SMI_EVENT_QUEUE_RESTORE, line);
        }
    }
}
