// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Paths. What KFD and DRM show of themselves below `/sys`, `/dev` and `/proc` is below the private
//! directory under the same names.

use crate::setting::{self, Mark, Setting};
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use vkfd_driver::topology::{location, FIRST_RENDER_MINOR};

/// Everything at and below these is redirected.
const WHOLE: [&[u8]; 7] = [
    b"/sys/devices/virtual/kfd",
    b"/sys/devices/vkfd",
    b"/sys/class/kfd",
    b"/sys/class/drm",
    b"/sys/module/amdgpu",
    b"/dev/dri",
    b"/proc/modules",
];
const KFD: &[u8] = b"/dev/kfd";
const RENDER: &[u8] = b"/dev/dri/renderD";
const DRM_CHARACTER: &[u8] = b"/sys/dev/char/226:";
const PCI: &[u8] = b"/sys/bus/pci/devices/";
const OWN_DESCRIPTORS: &[u8] = b"/proc/self/fd/";
const LONGEST: usize = 4096;

/// A device file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// `/dev/kfd`.
    Kfd,
    /// The render node of the GPU with this number.
    Render(u32),
}

impl Device {
    /// Its number as stat has it. KFD's major number is dynamic; this is one that is given out
    /// dynamically.
    pub(crate) fn number(self) -> libc::dev_t {
        match self {
            Self::Kfd => libc::makedev(510, 0),
            Self::Render(index) => libc::makedev(vkfd_driver::topology::DRM_MAJOR, FIRST_RENDER_MINOR + index),
        }
    }

    /// Its path.
    pub(crate) fn path(self) -> String {
        match self {
            Self::Kfd => "/dev/kfd".into(),
            Self::Render(index) => format!("/dev/dri/renderD{}", FIRST_RENDER_MINOR + index),
        }
    }
}

/// A path as its caller passed it, or another in its place.
pub(crate) struct Path {
    original: *const c_char,
    replaced: Option<[u8; LONGEST]>,
    device: Option<Device>,
}

impl Path {
    /// Looks at a path, which may be null.
    ///
    /// # Safety
    /// `path` is null or a C string.
    pub(crate) unsafe fn new(path: *const c_char) -> Self {
        // SAFETY: promised by the caller.
        let found = unsafe { find(path) };
        match found {
            Some((setting, tidy, length)) => {
                setting.mark(Mark::Used);
                let device = device(setting, &tidy[..length]);
                Self { original: path, replaced: below(setting, &tidy[..length]), device }
            }
            None => Self { original: path, replaced: None, device: None },
        }
    }

    /// As [`Path::new`], for the `*at` functions: a relative path belongs to its directory.
    ///
    /// # Safety
    /// As for [`Path::new`].
    pub(crate) unsafe fn new_at(_directory: c_int, path: *const c_char) -> Self {
        // SAFETY: promised by the caller. A relative path is never redirected; one in a directory
        // of ours is there anyway.
        unsafe { Self::new(path) }
    }

    /// What to give to libc.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.replaced.as_ref().map_or(self.original, |path| path.as_ptr().cast())
    }

    /// The device that it names.
    pub(crate) fn device(&self) -> Option<Device> {
        self.device
    }

    /// Whether it is another path than the caller's.
    pub(crate) fn is_redirected(&self) -> bool {
        self.replaced.is_some()
    }
}

type Tidy = ([u8; LONGEST], usize);

/// The path without repeated slashes and single dots, if it is one of ours.
unsafe fn find(path: *const c_char) -> Option<(&'static Setting, [u8; LONGEST], usize)> {
    if path.is_null() {
        return None;
    }
    // Most paths end here.
    // SAFETY: a C string has at least its end; the second is read only if the first is not that.
    let begins =
        unsafe { *path.cast::<u8>() == b'/' && matches!(*path.add(1).cast::<u8>(), b's' | b'd' | b'p' | b'/' | b'.') };
    if !begins {
        return None;
    }
    let setting = setting::get()?;
    // SAFETY: promised by the caller.
    let (tidy, length) = tidy(unsafe { CStr::from_ptr(path) }.to_bytes())?;
    is_ours(setting, &tidy[..length]).then_some((setting, tidy, length))
}

fn tidy(path: &[u8]) -> Option<Tidy> {
    let mut tidy = [0; LONGEST];
    let mut length = 0;
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        let end = length + 1 + part.len();
        let room = tidy.get_mut(length..end)?;
        room[0] = b'/';
        room[1..].copy_from_slice(part);
        length = end;
    }
    Some((tidy, length))
}

fn is_ours(setting: &Setting, path: &[u8]) -> bool {
    let below =
        |prefix: &&[u8]| path.strip_prefix(*prefix).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')));
    WHOLE.iter().any(below)
        || path == KFD
        || path.starts_with(DRM_CHARACTER)
        || path.strip_prefix(PCI).is_some_and(|rest| is_our_slot(setting, rest))
}

/// `0000:03:00.0` and what is below it.
fn is_our_slot(setting: &Setting, rest: &[u8]) -> bool {
    let slot = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
    (0..setting.machine.gpus).any(|gpu| slot == slot_name(gpu).as_bytes())
}

/// The PCI slot of GPU number `gpu`.
fn slot_name(gpu: u32) -> String {
    let location = location(gpu);
    format!("0000:{:02x}:{:02x}.{}", location >> 8, location >> 3 & 31, location & 7)
}

fn device(setting: &Setting, path: &[u8]) -> Option<Device> {
    if path == KFD {
        return Some(Device::Kfd);
    }
    let number: u32 = std::str::from_utf8(path.strip_prefix(RENDER)?).ok()?.parse().ok()?;
    let index = number.checked_sub(FIRST_RENDER_MINOR)?;
    (index < setting.machine.gpus).then_some(Device::Render(index))
}

/// The path below the private directory. A path too long for that is not redirected.
fn below(setting: &Setting, path: &[u8]) -> Option<[u8; LONGEST]> {
    let directory = setting.directory.as_os_str().as_bytes();
    let mut replaced = [0; LONGEST];
    let length = directory.len() + path.len();
    replaced[..LONGEST - 1].get_mut(..length)?[..directory.len()].copy_from_slice(directory);
    replaced[directory.len()..length].copy_from_slice(path);
    Some(replaced)
}

/// The path under which the program knows what libc calls `path`.
pub(crate) fn shown(path: &[u8]) -> Option<&[u8]> {
    let directory = setting::get()?.directory.as_os_str().as_bytes();
    path.strip_prefix(directory).filter(|rest| rest.first() == Some(&b'/'))
}

/// The number in `/proc/self/fd/NUMBER`.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn own_descriptor(path: *const c_char) -> Option<c_int> {
    if path.is_null() {
        return None;
    }
    // SAFETY: promised by the caller.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    std::str::from_utf8(path.strip_prefix(OWN_DESCRIPTORS)?).ok()?.parse().ok()
}
