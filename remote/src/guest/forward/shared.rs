// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The differences on a machine that is shared with other processes. The machine's memory is in its
//! file, files of memory can be made and taken, and the machine's process may end.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use vkfd_rt::message;
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::memory::AllocMemoryOfGpuArgs;
use vkfd_uapi::pod::Pod;

use super::super::sharing::SharedMachine;
use super::{access, File, Process};
use crate::protocol::forward::sharing::{carries, Carries, MAX_PLACES, PLACES, PLACE_BYTES};
use crate::protocol::forward::{calls, Request};
use crate::protocol::{put32, put64, u32_at, u64_at};

impl Process {
    /// A call of [`crate::protocol::forward::sharing`].
    ///
    /// # Safety
    /// As for ioctl.
    pub(super) unsafe fn shared_call(
        &self,
        machine: &SharedMachine,
        command: Command,
        argument: *mut c_void,
    ) -> Result<(), i32> {
        let known = calls::size(File::Sharing, command).map_err(|refused| refused.0)?;
        let theirs = command.size();
        let mut bytes = vec![0; theirs];
        // SAFETY: promised by the caller.
        unsafe { access::read(argument, &mut bytes)? };
        bytes.resize(known, 0);
        let mut request = self.request(File::Sharing, command, bytes)?;
        let done = match carries(command) {
            Carries::Nothing => self.ask(&mut request),
            Carries::In(at) => {
                let fd = i32::try_from(u32_at(&request.argument, at).unwrap_or(u32::MAX)).map_err(|_| libc::EBADF)?;
                let files = machine.files();
                SharedMachine::send_file(&files, fd).map_err(|error| match error.raw_os_error() {
                    Some(libc::EBADF) => libc::EBADF,
                    _ => self.machine_has_gone(),
                })?;
                self.ask(&mut request)
            }
            Carries::Out(at) => {
                let files = machine.files();
                self.ask(&mut request).and_then(|()| {
                    let file = SharedMachine::receive_file(&files).map_err(|_| self.machine_has_gone())?;
                    let flags = u32_at(&request.argument, 8).unwrap_or(0);
                    let export = known == size_of::<vkfd_uapi::memory::ExportDmabufArgs>();
                    if export && flags & libc::O_CLOEXEC.unsigned_abs() == 0 {
                        // SAFETY: a call on an owned descriptor.
                        unsafe { libc::syscall(libc::SYS_fcntl, file.as_raw_fd(), libc::F_SETFD, 0) };
                    }
                    put32(&mut request.argument, at, u32::try_from(file.into_raw_fd()).unwrap_or(0));
                    Ok(())
                })
            }
        };
        for (array, content) in request.arrays.iter().zip(&request.contents).filter(|(array, _)| array.way.writes()) {
            let pointer = u64_at(&request.argument, array.pointer).unwrap_or(0);
            // SAFETY: promised by the caller.
            unsafe { access::write(super::address(pointer), content)? };
        }
        // SAFETY: promised by the caller.
        unsafe { access::write(argument, &request.argument[..theirs.min(known)])? };
        done
    }

    fn ask(&self, request: &mut Request) -> Result<(), i32> {
        self.call(request, self.slots.take(), Some(super::PATIENCE))
    }

    /// ALLOC_MEMORY_OF_GPU of the machine's memory: all of the answer is the driver's.
    pub(super) fn alloc_shared(&self, args: &mut AllocMemoryOfGpuArgs) -> Result<(), i32> {
        let answer = self.ask_for_memory(args.as_bytes(), Vec::new()).map_err(|(errno, _)| errno)?;
        let length = args.as_bytes().len().min(answer.len());
        args.as_bytes_mut()[..length].copy_from_slice(&answer[..length]);
        Ok(())
    }

    /// Where in the machine's file an mmap of `bytes` at `offset` is.
    pub(super) fn places(&self, offset: u64, bytes: u64) -> Result<Vec<(u64, u64)>, i32> {
        let bytes = bytes.checked_next_multiple_of(crate::protocol::PAGE).ok_or(libc::ENOMEM)?;
        let mut places = Vec::new();
        let mut done = 0;
        loop {
            let mut argument = vec![0; 32];
            put64(&mut argument, 0, offset.checked_add(done).ok_or(libc::EINVAL)?);
            put64(&mut argument, 8, bytes - done);
            // Any address: the array comes with the answer.
            put64(&mut argument, 16, 1);
            put32(&mut argument, 28, u32::try_from(MAX_PLACES).unwrap_or(0));
            let room = vec![vec![0; MAX_PLACES * PLACE_BYTES]];
            let request = Request::new(File::Sharing, PLACES, argument, room, Vec::new());
            let mut request = request.map_err(|refused| refused.0)?;
            self.ask(&mut request)?;
            let given = usize::try_from(u32_at(&request.argument, 24).unwrap_or(0)).unwrap_or(0);
            let content = request.contents.first().ok_or(libc::EIO)?;
            for entry in content.chunks_exact(PLACE_BYTES).take(given) {
                let place = (u64_at(entry, 0).unwrap_or(0), u64_at(entry, 8).unwrap_or(0));
                done += place.1;
                places.push(place);
            }
            if given == 0 || done > bytes {
                return Err(libc::EIO);
            }
            if done == bytes {
                return Ok(places);
            }
        }
    }

    /// ENODEV, said once.
    pub(super) fn machine_has_gone(&self) -> i32 {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            message::write(format_args!("vkfd: the machine that this program shares has gone (`vkfd serve` has ended): its calls fail with ENODEV"));
        }
        libc::ENODEV
    }
}
