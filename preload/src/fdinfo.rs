// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What `/proc` says of descriptors of devices: `/proc/PID/fd/N` is a link to the device, and
//! `/proc/PID/fdinfo/N` of a render node has the lines of DRM's drivers.
//!
//! Mechanism: a descriptor of this process is in [`table`]. One of another program of a shared
//! machine is a file of the same inode as this program's. Its place in that file, which the kernel
//! shows, says which device it is ([`mark_of`]). The lines are the answer of a render node
//! ([`INFO_FDINFO`]), behind those that the kernel has for every file.
//!
//! Limits: descriptors of programs with a machine of their own are seen by themselves alone. Paths
//! through `/proc/PID/task`, `/proc/thread-self` and `/dev/fd` show the file that is really there.
//! Of several open files of one node, another program sees the first.

use crate::redirect::Device;
use crate::setting::Mark;
use crate::{device, machine, made_file, own_stack, real, setting, table};
use libc::c_int;
use std::ffi::{CStr, CString};
use vkfd_host::device_file::{mark_of, SHOWN_NAME};
use vkfd_host::sabotage;
use vkfd_sabotage::Switch;
use vkfd_uapi::drm::INFO_FDINFO;

/// Bytes of the lines that the kernel has for every file.
const KERNELS: usize = 1024;

/// A descriptor as `/proc` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    /// 0: this process.
    pid: u32,
    fd: c_int,
    /// The path is that of the file about it.
    about: bool,
}

fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
}

impl Descriptor {
    /// The one that a tidy path names.
    pub(crate) fn of(path: &[u8]) -> Option<Self> {
        let mut parts = path.strip_prefix(b"/proc/")?.split(|byte| *byte == b'/');
        let (process, kind, fd) = (parts.next()?, parts.next()?, number(parts.next()?)?);
        let about = match kind {
            b"fd" => false,
            b"fdinfo" => true,
            _ => return None,
        };
        let pid = if process == b"self" { 0 } else { number(process)? };
        let fd = c_int::try_from(fd).ok().filter(|_| parts.next().is_none())?;
        Some(Self { pid: if pid == std::process::id() { 0 } else { pid }, fd, about })
    }

    fn path(self, kind: &str) -> Option<CString> {
        let (pid, fd) = (self.pid, self.fd);
        let text = if pid == 0 { format!("/proc/self/{kind}/{fd}") } else { format!("/proc/{pid}/{kind}/{fd}") };
        CString::new(text).ok()
    }

    /// What the kernel says about it.
    fn kernels(self) -> Option<Vec<u8>> {
        let path = self.path("fdinfo")?;
        let mut text = vec![0; KERNELS];
        // Not by hooks, which come here. SAFETY: a C string, and room of the length that is said.
        let read = unsafe {
            let fd = real::open()(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            if fd < 0 {
                return None;
            }
            let read = real::read()(fd, text.as_mut_ptr().cast(), text.len());
            real::close()(fd);
            read
        };
        text.truncate(usize::try_from(read).ok()?);
        Some(text)
    }

    /// The device that it is of, if it is this machine's.
    fn device(self) -> Option<Device> {
        if self.pid == 0 {
            return table::get(self.fd).map(|file| file.device());
        }
        // Before anything that costs more: whether it can be one.
        let setting = setting::get().filter(|setting| setting.forward.is_some())?;
        let path = self.path("fd")?;
        if !is_shown_so(&path) {
            return None;
        }
        let shared = own_stack::if_needed(|| machine::get().ok()?.shared_file())?;
        // SAFETY: zeros are a valid structure; the call fills it in.
        let status = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            (real::sys_fstatat(libc::AT_FDCWD, path.as_ptr(), &raw mut status, 0) == 0).then_some(status)?
        };
        if (status.st_dev, status.st_ino) != shared {
            return None;
        }
        let device = Device::marked(mark_of(place(&self.kernels()?)?)?);
        Some(device).filter(|device| device.drm().is_none_or(|gpu| gpu < setting.machine.gpus))
    }

    /// The device that the link leads to; nothing if the path is another, or of no device.
    pub(crate) fn link(&self) -> Option<Device> {
        if self.about || sabotage::has(Switch::ListsAtStart) {
            return None;
        }
        self.device()
    }

    /// A descriptor of the text about it. None for a caller that wants to write, and for a file
    /// that is no render node here.
    pub(crate) fn open(&self, flags: c_int) -> Option<c_int> {
        if !self.about || !made_file::is_read(flags) || sabotage::has(Switch::ListsAtStart) {
            return None;
        }
        let gpu = usize::try_from(self.device()?.drm()?).ok()?;
        let answer = if self.pid == 0 {
            table::get(self.fd)?.fdinfo()?
        } else {
            let (arguments, bytes) = ([self.pid, 0, 0, 0], device::FDINFO_BYTES);
            let ask = || device::ask_machine(machine::get().ok()?, gpu, INFO_FDINFO, arguments, bytes);
            own_stack::if_needed(ask)?
        };
        let (length, lines) = answer.split_first_chunk::<4>()?;
        let lines = lines.get(..usize::try_from(u32::from_ne_bytes(*length)).ok()?)?;
        let mut text = at_zero(&self.kernels()?);
        text.extend_from_slice(lines);
        setting::mark(Mark::Used);
        made_file::open(&text, flags)
    }
}

/// Whether a descriptor's link has the name that all files of devices have.
fn is_shown_so(path: &CStr) -> bool {
    let mut shown = [0; SHOWN_NAME.len() + 1];
    // SAFETY: a C string, and room of the length that is said.
    let read = unsafe { real::readlinkat()(libc::AT_FDCWD, path.as_ptr(), shown.as_mut_ptr().cast(), shown.len()) };
    usize::try_from(read).is_ok_and(|read| shown.get(..read) == Some(SHOWN_NAME))
}

const PLACE: &[u8] = b"pos:";

/// The place that the kernel says.
fn place(text: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(PLACE))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// The same text with the place that a device has.
fn at_zero(text: &[u8]) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.flat_map(|line| if line.starts_with(PLACE) { b"pos:\t0\n" } else { line }).copied().collect()
}
