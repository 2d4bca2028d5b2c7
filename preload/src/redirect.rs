// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Paths. What KFD and DRM show of themselves below `/sys`, `/dev` and `/proc` is below the private
//! directory under the same names.

use crate::fdinfo::Descriptor;
use crate::processes;
use crate::real;
use crate::setting::{self, Mark, Setting};
use crate::usage::{self, Usage};
use libc::{c_char, c_int, AT_FDCWD};
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use vkfd_driver::topology::{location, DRM_MAJOR, FIRST_RENDER_MINOR};
use vkfd_gpu::raw;
use vkfd_host::description::LONGEST_DIRECTORY;
use vkfd_host::sabotage;
use vkfd_sabotage::Switch;

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
const CARD: &[u8] = b"/dev/dri/card";
const DRM_CHARACTER: &[u8] = b"/sys/dev/char/226:";
const PCI: &[u8] = b"/sys/bus/pci/devices/";
const OWN_DESCRIPTORS: &[u8] = b"/proc/self/fd/";
/// Bytes of a path of ours with the directory before it. Shorter than the kernel's longest path,
/// because it is on the caller's stack; what is longer is nothing of ours.
pub(crate) const LONGEST: usize = LONGEST_DIRECTORY + 1024;
/// So much of a path is read at a time.
const PIECE: usize = 128;
/// Directories of the system that have entries of ours, and how those entries are called or begin.
const SYSTEM: [&[u8]; 3] = [b"/sys", b"/dev", b"/proc"];
const ENTRIES: [&[u8]; 8] = [b"vkfd", b"kfd", b"drm", b"dri", b"amdgpu", b"modules", b"0000:", b"226:"];
/// Bytes of such an entry's path: longer ones are not ours.
const LONGEST_ENTRY: usize = 512;
/// Digits of a descriptor's number at most.
const LONGEST_NUMBER: usize = 7;

/// A device file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// `/dev/kfd`.
    Kfd,
    /// The render node of the GPU with this number.
    Render(u32),
    /// The primary node of the GPU with this number. There is no display, so nobody is its master,
    /// and it does what the render node does.
    Card(u32),
}

impl Device {
    /// Its number as stat has it. KFD's major number is dynamic; this is one that is given out
    /// dynamically.
    pub(crate) fn number(self) -> libc::dev_t {
        match self {
            Self::Kfd => libc::makedev(510, 0),
            Self::Render(index) => libc::makedev(DRM_MAJOR, FIRST_RENDER_MINOR + index),
            Self::Card(index) => libc::makedev(DRM_MAJOR, index),
        }
    }

    /// Its path.
    pub(crate) fn path(self) -> String {
        match self {
            Self::Kfd => "/dev/kfd".into(),
            Self::Render(index) => format!("/dev/dri/renderD{}", FIRST_RENDER_MINOR + index),
            Self::Card(index) => format!("/dev/dri/card{index}"),
        }
    }

    /// What its descriptors are marked with, for other processes.
    pub(crate) fn mark(self) -> u32 {
        match self {
            Self::Kfd => 0,
            Self::Render(index) => index.saturating_mul(2).saturating_add(1),
            Self::Card(index) => index.saturating_mul(2).saturating_add(2),
        }
    }

    /// The device whose descriptors have this mark.
    pub(crate) fn marked(mark: u32) -> Self {
        match mark.checked_sub(1) {
            None => Self::Kfd,
            Some(node) if node % 2 == 0 => Self::Render(node / 2),
            Some(node) => Self::Card(node / 2),
        }
    }

    /// The number of the GPU whose render or primary node it is.
    pub(crate) fn drm(self) -> Option<u32> {
        match self {
            Self::Kfd => None,
            Self::Render(index) | Self::Card(index) => Some(index),
        }
    }
}

/// A path as its caller passed it, or another in its place.
///
/// The caller's path is read as the kernel reads it: what cannot be read goes on to libc as it is,
/// and the kernel says EFAULT or ENAMETOOLONG.
pub(crate) struct Path {
    original: *const c_char,
    /// The other path, a C string, once `end` says that there is one. Not initialised before: most
    /// paths need none of this.
    text: MaybeUninit<[u8; LONGEST]>,
    /// Where it ends; 0: the caller's path stays.
    end: usize,
    device: Option<Device>,
    usage: Option<Usage>,
    descriptor: Option<Descriptor>,
}

impl Path {
    /// Looks at a path, which may be null, and may not be readable. Not inlined, so that the caller
    /// has room for one of these and no more.
    #[inline(never)]
    pub(crate) fn new(path: *const c_char) -> Self {
        let mut this =
            Self { original: path, text: MaybeUninit::uninit(), end: 0, device: None, usage: None, descriptor: None };
        if begins_like_ours(path.cast()) {
            this.look_at(path.cast());
        }
        this
    }

    /// As [`Path::new`], for the `*at` functions: a relative path belongs to its directory. One in
    /// a directory of ours is there. An entry of ours in a directory of the system, such as a GPU
    /// in that of all PCI devices, is redirected: libraries walk there from `/` by single names.
    #[inline]
    pub(crate) fn new_at(directory: c_int, path: *const c_char) -> Self {
        let mut this = Self::new(path);
        if directory != AT_FDCWD && !this.is_redirected() && is_entry_of_ours(path.cast()) {
            this.look_in(directory);
        }
        this
    }

    #[cold]
    #[inline(never)]
    fn look_in(&mut self, directory: c_int) {
        let mut whole = [0; LONGEST_ENTRY];
        let Some(end) = path_of(directory, &mut whole) else { return };
        if !SYSTEM.iter().any(|place| whole.starts_with(place)) {
            return;
        }
        let Some((slash, rest)) = whole.get_mut(end..).and_then(<[u8]>::split_first_mut) else { return };
        *slash = b'/';
        // SAFETY: `rest` is this function's own; the caller's memory may be anything.
        let there = unsafe { raw::copy(rest.as_mut_ptr(), self.original.cast(), rest.len()) };
        let there = there.map_or_else(|faulted| faulted.done, |()| rest.len());
        if rest[..there].contains(&0) {
            self.look_at(whole.as_ptr());
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at(&mut self, path: *const u8) {
        let Some(setting) = setting::get() else { return };
        let directory = setting.directory.as_os_str().as_bytes();
        let text = self.text.write([0; LONGEST]);
        let Some(room) = text.get_mut(..directory.len()) else { return };
        room.copy_from_slice(directory);
        let Some(end) = tidy(path, text, directory.len()) else { return };
        let path = &text[directory.len()..end];
        if is_ours(setting, path) {
            self.device = device(setting, path);
            self.usage = usage::of(path);
            let list = processes::rest(path).map(<[u8]>::len);
            self.end = list.and_then(|rest| processes::moved(setting, text, end, rest)).unwrap_or(end);
            vkfd_host::interpose::note_hook();
            setting.mark(Mark::Used);
        } else {
            self.descriptor = Descriptor::of(path);
        }
    }

    /// What to give to libc.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        if self.is_redirected() {
            self.text.as_ptr().cast()
        } else {
            self.original
        }
    }

    /// The device that it names.
    pub(crate) fn device(&self) -> Option<Device> {
        self.device
    }

    /// The descriptor that it names, as a link or as a file about it.
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        self.descriptor.as_ref()
    }

    /// A descriptor of a file whose text is made when it is opened; nothing for another path.
    pub(crate) fn open_made(&self, flags: c_int) -> Option<c_int> {
        let usage = || self.usage?.open(flags);
        usage().or_else(|| self.descriptor.as_ref()?.open(flags))
    }

    /// Whether it is another path than the caller's.
    pub(crate) fn is_redirected(&self) -> bool {
        self.end != 0
    }
}

/// Whether the first two bytes are those of a path that may be one of ours: most end here.
#[inline]
fn begins_like_ours(path: *const u8) -> bool {
    // The second is looked at only if the first is not the end.
    let byte = |at: *const u8| match sabotage::has(Switch::PlainPaths) {
        // SAFETY: none: the switch breaks that.
        true => unsafe { at.read_volatile() },
        // SAFETY: a byte that is read by a routine that may fault; Rust has nothing there.
        false => unsafe { raw::load_u8(at) }.unwrap_or(0),
    };
    !path.is_null() && byte(path) == b'/' && matches!(byte(path.wrapping_add(1)), b's' | b'd' | b'p' | b'/' | b'.')
}

/// Whether a path may be an entry of ours, relative to a directory of the system.
#[inline]
fn is_entry_of_ours(path: *const u8) -> bool {
    let byte = |at: usize| {
        // SAFETY: a byte that is read by a routine that may fault; Rust has nothing there.
        unsafe { raw::load_u8(path.wrapping_add(at)) }.ok()
    };
    // Without the byte after it: what is longer is looked at in full.
    let named = || ENTRIES.iter().any(|entry| (0..).zip(*entry).all(|(at, wanted)| byte(at) == Some(*wanted)));
    // A descriptor among those of a process: a short number.
    let end = || (0..=LONGEST_NUMBER).find(|at| !byte(*at).is_some_and(|digit| digit.is_ascii_digit()));
    let number = || end().is_some_and(|end| end > 0 && byte(end) == Some(0));
    !path.is_null() && (named() || number())
}

/// The path of an open directory, at the beginning of `to`: where it ends.
fn path_of(directory: c_int, to: &mut [u8; LONGEST_ENTRY]) -> Option<usize> {
    let link = CString::new(format!("/proc/self/fd/{directory}")).ok()?;
    // SAFETY: both are this function's own; what is written is within `to`.
    let read = unsafe { real::readlinkat()(AT_FDCWD, link.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
    usize::try_from(read).ok().filter(|end| *end > 1 && *end < to.len())
}

/// Puts the absolute path at `from` into `text` from `at` on, without repeated slashes, single dots
/// and a slash at the end. Where it ends; a zero byte follows. `None` if it cannot be read, or has
/// no room.
fn tidy(from: *const u8, text: &mut [u8; LONGEST], at: usize) -> Option<usize> {
    let (mut end, mut part) = (at, at);
    let mut read = 0;
    loop {
        let mut piece = [0; PIECE];
        // SAFETY: `piece` is this function's own; the caller's memory may be anything.
        let there = match unsafe { raw::copy(piece.as_mut_ptr(), from.wrapping_add(read), PIECE) } {
            Ok(()) => PIECE,
            Err(faulted) => faulted.done,
        };
        if there == 0 {
            return None;
        }
        for byte in &piece[..there] {
            if matches!(byte, b'/' | 0) {
                if &text[part..end] == b"." {
                    end = part;
                }
                if end != part || end == at {
                    *text.get_mut(end)? = b'/';
                    end += 1;
                    part = end;
                }
                if *byte == 0 {
                    // The last slash is one too many.
                    end -= 1;
                    *text.get_mut(end)? = 0;
                    return Some(end);
                }
            } else {
                *text.get_mut(end)? = *byte;
                end += 1;
            }
        }
        read += there;
    }
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
    setting.slots.iter().any(|ours| slot == ours.as_bytes())
}

/// The PCI slot of GPU number `gpu`.
pub(crate) fn slot_name(gpu: u32) -> String {
    let location = location(gpu);
    format!("0000:{:02x}:{:02x}.{}", location >> 8, location >> 3 & 31, location & 7)
}

fn device(setting: &Setting, path: &[u8]) -> Option<Device> {
    if path == KFD {
        return Some(Device::Kfd);
    }
    let below = |limit: u32, index: &u32| *index < limit;
    let number = |prefix: &[u8]| std::str::from_utf8(path.strip_prefix(prefix)?).ok()?.parse::<u32>().ok();
    let gpus = setting.machine.gpus;
    if let Some(index) = number(CARD) {
        return Some(index).filter(|index| below(gpus, index)).map(Device::Card);
    }
    number(RENDER)?.checked_sub(FIRST_RENDER_MINOR).filter(|index| below(gpus, index)).map(Device::Render)
}

/// The number of the GPU whose device a directory is, or is below.
pub(crate) fn gpu_of(directory: &[u8]) -> Option<u32> {
    let number = |part: &[u8], prefix: &[u8]| -> Option<u32> {
        std::str::from_utf8(part.strip_prefix(prefix)?).ok()?.parse().ok()
    };
    let of_render = |minor: u32| minor.checked_sub(FIRST_RENDER_MINOR);
    let of_minor = |minor: u32| of_render(minor).unwrap_or(minor);
    let gpus = setting::get().map_or(FIRST_RENDER_MINOR, |setting| setting.machine.gpus);
    directory.split(|byte| *byte == b'/').rev().find_map(|part| {
        let by_node = number(part, b"renderD").and_then(of_render).or_else(|| number(part, b"card"));
        let by_number = || number(part, b"226:").map(of_minor);
        let by_slot =
            || (part.starts_with(b"0000:")).then(|| (0..gpus).find(|gpu| part == slot_name(*gpu).as_bytes()))?;
        by_node.or_else(by_number).or_else(by_slot).filter(|gpu| *gpu < gpus)
    })
}

/// The path under which the program knows what libc calls `path`.
pub(crate) fn shown(path: &[u8]) -> Option<&[u8]> {
    let directory = setting::get()?.directory.as_os_str().as_bytes();
    let shown = path.strip_prefix(directory).filter(|rest| rest.first() == Some(&b'/'))?;
    Some(processes::shown(shown).unwrap_or(shown))
}

/// The number in `/proc/self/fd/NUMBER`.
pub(crate) fn own_descriptor(path: *const c_char) -> Option<c_int> {
    let mut start = [0; OWN_DESCRIPTORS.len() + 12];
    // SAFETY: `start` is this function's own; the caller's memory may be anything.
    let read = unsafe { raw::copy(start.as_mut_ptr(), path.cast(), start.len()) };
    let there = read.map_or_else(|faulted| faulted.done, |()| start.len());
    let path = start[..there].split(|byte| *byte == 0).next()?;
    // Longer than any number: the end is not in it.
    let number = path.strip_prefix(OWN_DESCRIPTORS).filter(|_| path.len() < there)?;
    std::str::from_utf8(number).ok()?.parse().ok()
}
