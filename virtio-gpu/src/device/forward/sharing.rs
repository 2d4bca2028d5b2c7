// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Calls of a process that shares its machine with others: files that it is given and brings, names
//! for memory, places in the machine's file.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use vkfd_remote::guest::file_message::{receive, send};
use vkfd_remote::protocol::forward::sharing::{
    carries, Carries, IPC_EXPORT, IPC_IMPORT, MAX_PLACES, PLACES, PLACE_BYTES,
};
use vkfd_remote::protocol::{put32, put64, u32_at, u64_at};
use vkfd_uapi::command as c;
use vkfd_uapi::memory::{AllocMemoryOfGpuArgs, ExportDmabufArgs, GetDmabufInfoArgs, ImportDmabufArgs};
use vkfd_uapi::pod::Pod;

use super::super::sharing::Name;
use super::call::Call;
use super::memory::{kfd, MAX_OBJECTS};
use super::Forward;

/// Word of an argument that has one there.
fn word(argument: &[u8], at: usize) -> u32 {
    u32_at(argument, at).unwrap_or(0)
}

fn long(argument: &[u8], at: usize) -> u64 {
    u64_at(argument, at).unwrap_or(0)
}

fn number(file: &impl AsRawFd) -> u32 {
    u32::try_from(file.as_raw_fd()).unwrap_or(u32::MAX)
}

impl Forward {
    /// ENOTTY for a process that does not share its machine.
    pub(super) fn sharing(&mut self, call: &mut Call) -> Result<(), i32> {
        if self.shared.sharing.is_none() {
            return Err(libc::ENOTTY);
        }
        let command = call.request().head.command;
        let is = |known: vkfd_uapi::ioctl::Command| command.number() == known.number();
        match carries(command) {
            Carries::In(at) => self.with_file(call, at),
            Carries::Out(at) if command.same_call(c::EXPORT_DMABUF) => {
                let asked: ExportDmabufArgs = call.argument();
                let bo = self.bos.get(&asked.handle).ok_or(libc::EINVAL)?;
                call.change(|args: &mut ExportDmabufArgs| args.handle = bo.handle);
                let done = self.pass_on(call);
                call.change(|args: &mut ExportDmabufArgs| args.handle = asked.handle);
                done.and_then(|()| self.give_file(call, at))
            }
            Carries::Out(at) => {
                self.pass_on(call)?;
                self.give_file(call, at)
            }
            Carries::Nothing if is(IPC_EXPORT) => self.offer(call),
            Carries::Nothing if is(IPC_IMPORT) => self.import_named(call),
            Carries::Nothing if command.kind() == PLACES.kind() && is(PLACES) => self.places(call),
            Carries::Nothing => Err(libc::ENOTTY),
        }
    }

    /// The call has made a file here: it becomes the process's.
    fn give_file(&self, call: &mut Call, at: usize) -> Result<(), i32> {
        let fd = RawFd::try_from(word(&call.request().argument, at)).map_err(|_| libc::EIO)?;
        // SAFETY: the driver gave the descriptor to the caller, which is this function.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = &self.shared.sharing.as_ref().ok_or(libc::ENOTTY)?.files;
        send(socket, &[0; 8], file.as_fd()).map_err(|_| libc::ENOMEM)
    }

    /// A call about a file that the process has sent before. EBADF when there is none.
    fn with_file(&mut self, call: &mut Call, at: usize) -> Result<(), i32> {
        let theirs = word(&call.request().argument, at);
        let socket = &self.shared.sharing.as_ref().ok_or(libc::ENOTTY)?.files;
        let file = receive(socket, &mut [0; 8]).map_err(|_| libc::EBADF)?;
        let done = if call.request().head.command.same_call(c::IMPORT_DMABUF) {
            let asked: ImportDmabufArgs = call.argument();
            let imported = self.import(&file, asked.gpu_id, asked.va_addr);
            imported.map(|(handle, _)| call.change(|args: &mut ImportDmabufArgs| args.handle = handle))
        } else {
            call.change(|args: &mut GetDmabufInfoArgs| args.dmabuf_fd = number(&file));
            self.pass_on(call)
        };
        put32(call.argument_mut(), at, theirs);
        done
    }

    /// Makes an object of a file's memory: its handle, and where the CPU maps it.
    fn import(&mut self, file: &impl AsRawFd, gpu_id: u32, va_addr: u64) -> Result<(u64, u64), i32> {
        if self.bos.len() >= MAX_OBJECTS {
            return Err(libc::ENOMEM);
        }
        let dmabuf_fd = number(file);
        let mut info = GetDmabufInfoArgs { dmabuf_fd, ..GetDmabufInfoArgs::zeroed() };
        kfd(&self.file, c::GET_DMABUF_INFO, &mut info)?;
        let mut args = ImportDmabufArgs { va_addr, handle: 0, gpu_id, dmabuf_fd };
        kfd(&self.file, c::IMPORT_DMABUF, &mut args)?;
        let mmap_offset = self.file.file().process().mmap_offset(args.handle).map_err(|error| error.errno.0)?;
        let (size, flags) = (info.size, info.flags);
        let asked = AllocMemoryOfGpuArgs { va_addr, size, handle: 0, mmap_offset, gpu_id, flags };
        let bo = self.bo(args.handle, &asked, vec![], vec![]);
        Ok((self.enter(bo), mmap_offset))
    }

    /// IPC_EXPORT. The same object has the same name.
    fn offer(&mut self, call: &mut Call) -> Result<(), i32> {
        let handles = self.shared.sharing.as_ref().ok_or(libc::ENOTTY)?.handles.clone();
        let bo = self.bos.get_mut(&long(&call.request().argument, 0)).ok_or(libc::EINVAL)?;
        if bo.offer.is_none() {
            let mut args = ExportDmabufArgs { handle: bo.handle, flags: libc::O_CLOEXEC.unsigned_abs(), dmabuf_fd: 0 };
            kfd(&self.file, c::EXPORT_DMABUF, &mut args)?;
            let fd = RawFd::try_from(args.dmabuf_fd).map_err(|_| libc::EIO)?;
            // SAFETY: the driver gave the descriptor to its caller.
            let file = unsafe { OwnedFd::from_raw_fd(fd) };
            bo.offer = Some(Box::new(handles.offer(file).map_err(|_| libc::ENOMEM)?));
        }
        if let Some(offer) = &bo.offer {
            call.argument_mut()[8..24].copy_from_slice(offer.name());
        }
        Ok(())
    }

    /// IPC_IMPORT. EINVAL for a name of nothing.
    fn import_named(&mut self, call: &mut Call) -> Result<(), i32> {
        let argument = &call.request().argument;
        let (va, gpu_id) = (long(argument, 8), word(argument, 40));
        let name: Name = argument.get(24..40).and_then(|bytes| bytes.try_into().ok()).ok_or(libc::EINVAL)?;
        let file = self.shared.sharing.as_ref().and_then(|sharing| sharing.handles.find(&name)).ok_or(libc::EINVAL)?;
        let (handle, mmap_offset) = self.import(&*file, gpu_id, va)?;
        let argument = call.argument_mut();
        put64(argument, 0, handle);
        put64(argument, 16, mmap_offset);
        Ok(())
    }

    fn places(&mut self, call: &mut Call) -> Result<(), i32> {
        let argument = &call.request().argument;
        let (offset, bytes, room) = (long(argument, 0), long(argument, 8), word(argument, 28));
        let places = self.file.file().places(offset, bytes)?;
        let room = usize::try_from(room).unwrap_or(0).min(MAX_PLACES);
        let given = places.len().min(room);
        if given == 0 {
            return Err(libc::EINVAL);
        }
        let content = call.contents_mut(0).ok_or(libc::EINVAL)?;
        for (entry, (start, bytes)) in content.chunks_exact_mut(PLACE_BYTES).zip(&places[..given]) {
            put64(entry, 0, *start);
            put64(entry, 8, *bytes);
        }
        put32(call.argument_mut(), 24, u32::try_from(given).unwrap_or(0));
        Ok(())
    }
}
