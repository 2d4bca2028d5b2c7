// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest kernel's virtio-gpu, by its render node.
//!
//! Mechanism: the ioctls of `virtgpu_drm.h`. A command goes with a fence, whose descriptor becomes
//! readable when the host says that the work is done.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use anyhow::{bail, ensure, Context, Result};
use vkfd_remote::guest::virtgpu::{
    Blob, Exec, SeriesUserptrBlob, UserptrBlob, CONTEXT_CAPSET, CONTEXT_INIT, CONTEXT_RINGS, CREATE_BLOB,
    CREATE_USERPTR_BLOB, EXECBUFFER, EXEC_FENCE_OUT, EXEC_RING, FLAG_USERPTR, GEM_CLOSE, GETPARAM, GET_CAPS, MAP,
    PARAM_CAPSETS, RESOURCE_INFO,
};
use vkfd_remote::protocol::blob::MEM_HOST3D_GUEST;

const RINGS: u64 = 64;

/// How long the host may take for a command.
const PATIENCE_MS: i32 = 300_000;

/// A GEM object; closed when dropped.
#[derive(Debug)]
pub struct Gem {
    file: std::sync::Arc<File>,
    handle: u32,
    /// The host's number of it.
    pub resource: u32,
}

impl Drop for Gem {
    fn drop(&mut self) {
        let mut args = [self.handle, 0];
        // SAFETY: the argument is the ioctl's own.
        unsafe { libc::ioctl(self.file.as_raw_fd(), GEM_CLOSE, args.as_mut_ptr()) };
    }
}

/// An open render node with a context.
#[derive(Clone, Debug)]
pub struct Node {
    file: std::sync::Arc<File>,
}

impl Node {
    /// Opens the first virtio-gpu that has `capset`, and makes a context of it.
    pub fn open(capset: u32) -> Result<(Self, Vec<u8>)> {
        for minor in 128..144 {
            let path = format!("/dev/dri/renderD{minor}");
            let Ok(file) = File::options().read(true).write(true).open(&path) else { continue };
            let node = Self { file: file.into() };
            let mut sets = 0_u64;
            let mut args = [PARAM_CAPSETS, (&raw mut sets).expose_provenance() as u64];
            if node.call(GETPARAM, args.as_mut_ptr().cast()).is_err() || sets >> capset & 1 == 0 {
                continue;
            }
            let mut data = vec![0_u8; 24];
            let mut args = [u64::from(capset), data.as_mut_ptr().expose_provenance() as u64, data.len() as u64];
            node.call(GET_CAPS, args.as_mut_ptr().cast()).context("GET_CAPS")?;
            let mut parameters = [CONTEXT_CAPSET, u64::from(capset), CONTEXT_RINGS, RINGS];
            let mut args = [2, parameters.as_mut_ptr().expose_provenance() as u64];
            node.call(CONTEXT_INIT, args.as_mut_ptr().cast()).context("CONTEXT_INIT")?;
            return Ok((node, data));
        }
        bail!("no render node has capability set {capset}: is the device `vkfd virtio-gpu`, and virtio-gpu loaded?")
    }

    fn call(&self, number: u64, args: *mut c_void) -> std::io::Result<()> {
        loop {
            // SAFETY: callers pass the argument that the number declares, with pointers to memory
            // of the sizes in it.
            if unsafe { libc::ioctl(self.file.as_raw_fd(), number, args) } == 0 {
                return Ok(());
            }
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// A blob.
    pub fn blob(&self, memory: u32, flags: u32, size: u64, id: u64) -> std::io::Result<Gem> {
        let mut args = Blob { memory, flags, size, id, ..Blob::default() };
        self.call(CREATE_BLOB, (&raw mut args).cast())?;
        self.made(&args)
    }

    /// A blob over memory of this program.
    pub fn userptr(&self, at: NonNull<c_void>, size: u64, id: u64) -> std::io::Result<Gem> {
        let pointer = at.as_ptr().expose_provenance() as u64;
        let blob = Blob { memory: MEM_HOST3D_GUEST, flags: FLAG_USERPTR, size, id, ..Blob::default() };
        self.userptr_of(UserptrBlob { blob, hints: 0, pointer })
    }

    /// The same with other arguments.
    pub fn userptr_of(&self, mut args: UserptrBlob) -> std::io::Result<Gem> {
        self.call(CREATE_USERPTR_BLOB, (&raw mut args).cast())?;
        self.made(&args.blob)
    }

    /// As a library asks that was built for the posted series.
    pub fn userptr_of_the_series(&self, mut args: SeriesUserptrBlob) -> std::io::Result<Gem> {
        self.call(CREATE_USERPTR_BLOB, (&raw mut args).cast())?;
        self.made(&args.blob)
    }

    fn made(&self, args: &Blob) -> std::io::Result<Gem> {
        let mut gem = Gem { file: self.file.clone(), handle: args.handle, resource: args.resource };
        let mut info = [gem.handle, 0, 0, 0];
        self.call(RESOURCE_INFO, info.as_mut_ptr().cast())?;
        gem.resource = info[1];
        Ok(gem)
    }

    /// Maps a blob, at `at` if given.
    pub fn map(&self, gem: &Gem, at: Option<u64>, size: u64) -> Result<NonNull<c_void>> {
        let mut args = [0_u64, u64::from(gem.handle)];
        self.call(MAP, args.as_mut_ptr().cast()).context("VIRTGPU_MAP")?;
        let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
        let hint = std::ptr::with_exposed_provenance_mut(usize::try_from(at.unwrap_or(0))?);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (size, offset) = (usize::try_from(size)?, i64::try_from(args[0])?);
        // SAFETY: the caller may replace the mapping at a fixed address.
        let mapped =
            unsafe { libc::mmap(hint, size, protection, libc::MAP_SHARED | fixed, self.file.as_raw_fd(), offset) };
        ensure!(mapped != libc::MAP_FAILED, "mmap of a blob: {}", std::io::Error::last_os_error());
        NonNull::new(mapped).context("mmap gave the null page")
    }

    /// Sends a command on a ring and waits for its fence.
    pub fn execute(&self, command: &[u8], ring: u32) -> Result<()> {
        let fence = self.submit(command, ring)?;
        let mut poll = libc::pollfd { fd: fence.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which is alive.
        let ready = unsafe { libc::poll(&raw mut poll, 1, PATIENCE_MS) };
        ensure!(ready == 1, "the host has not done a command in {} s", PATIENCE_MS / 1000);
        Ok(())
    }

    /// Sends a command on a ring. Its fence.
    pub fn submit(&self, command: &[u8], ring: u32) -> Result<OwnedFd> {
        let mut args = Exec {
            flags: EXEC_FENCE_OUT | EXEC_RING,
            size: u32::try_from(command.len())?,
            command: command.as_ptr().expose_provenance() as u64,
            fence: -1,
            ring,
            ..Exec::default()
        };
        self.call(EXECBUFFER, (&raw mut args).cast()).context("EXECBUFFER")?;
        // SAFETY: the kernel gave a descriptor that nobody else has.
        Ok(unsafe { OwnedFd::from_raw_fd(args.fence) })
    }
}
