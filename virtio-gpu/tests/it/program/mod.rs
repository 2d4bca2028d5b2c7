// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A program whose KFD is forwarded, without a virtual machine: our client library on one end of a
//! socket, the device on the other.
#![allow(dead_code, missing_docs)]

use std::ffi::{c_int, c_void};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use vkfd_client::{
    Buffer, Client, ClientError, Errno, GpuId, GpuInfo, MmapFile, Node, RegisterOptions, Transport, UserptrRange,
};
use vkfd_remote::guest::forward::{File, Process};
use vkfd_remote::guest::socket::Connection;
use vkfd_uapi::pod::Pod;
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::socket_server;

pub const PAGE: u64 = 4096;
pub const SOON: Duration = Duration::from_secs(60);
pub const MIB: u64 = 1 << 20;

pub fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

pub fn options() -> Options {
    let mut options = Options { window: 256 << 20, ..Options::default() };
    options.machine.vram = 64 << 20;
    options
}

/// The client library's way to a forwarded KFD.
pub struct Way {
    pub process: Process,
    pub nodes: Vec<Node>,
}

impl Transport for Way {
    unsafe fn ioctl(&self, command: u32, arg: *mut c_void) -> Result<(), Errno> {
        // SAFETY: promised by the caller.
        unsafe { self.process.ioctl(File::Kfd, command, arg) }.map_err(Errno)
    }

    unsafe fn mmap(
        &self,
        _what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, Errno> {
        // SAFETY: promised by the caller.
        unsafe { self.process.mmap(addr, len, prot, flags, offset) }.map_err(Errno)
    }

    fn topology(&self) -> Result<Vec<Node>, ClientError> {
        Ok(self.nodes.clone())
    }

    fn render_fd(&self, _gpu: GpuId) -> Result<u32, ClientError> {
        Ok(0)
    }
}

/// A device at the other end of a socket.
pub struct Host(pub Option<JoinHandle<std::io::Result<()>>>);

impl Host {
    /// Waits for its end: all that programs had must be gone by then.
    pub fn finish(mut self) {
        self.0.take().unwrap().join().unwrap().unwrap();
    }
}

pub fn way(options: Options) -> (Way, Host) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let host = std::thread::spawn(move || socket_server::connection(&theirs, options));
    (way_over(ours, options), Host(Some(host)))
}

/// Over a socket that has a device, or a shared machine, at its other end.
pub fn way_over(ours: UnixStream, options: Options) -> Way {
    let process = Process::new(Arc::new(Connection::over(ours).unwrap())).unwrap();
    let machine: vkfd_host::Description = process.machine().parse().unwrap();
    assert_eq!(machine, options.machine);
    let gpu = |number: u32| {
        let properties = machine.options().gpu_properties(number);
        let gfx_target_version = properties.gfx_target_version;
        let info = GpuInfo {
            id: GpuId(properties.gpu_id),
            node: number + 1,
            vram_bytes: properties.vram_bytes,
            gfx_target_version,
            xcc: 1,
            ..GpuInfo::default()
        };
        Node { number: number + 1, gpu: Some(info), ..Node::default() }
    };
    let first = Node { number: 0, cpu_cores: 1, memory_bytes: 1 << 30, gpu: None };
    let nodes = std::iter::once(first).chain((0..machine.gpus).map(gpu)).collect();
    Way { process, nodes }
}

pub fn client(options: Options) -> Result<(Client, Host), ClientError> {
    let (way, host) = way(options);
    Ok((Client::with_transport(Arc::new(way))?, host))
}

/// The test's anonymous memory.
pub struct Memory(pub NonNull<u64>, pub u64);

impl Memory {
    pub fn new(bytes: u64) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), size(bytes), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(NonNull::new(at.cast()).unwrap(), bytes)
    }

    pub fn fill(&self, seed: u64) {
        for word in 0..self.1 / 8 {
            // SAFETY: within the mapping, of which no reference exists.
            unsafe { self.0.as_ptr().add(size(word)).write_volatile(seed + word) };
        }
    }

    pub fn word(&self, word: u64) -> u64 {
        assert!(word < self.1 / 8);
        // SAFETY: as above.
        unsafe { self.0.as_ptr().add(size(word)).read_volatile() }
    }

    /// The first word that is not as `fill` leaves it.
    pub fn wrong(&self, seed: u64) -> Option<u64> {
        (0..self.1 / 8).find(|word| self.word(*word) != seed + word)
    }

    pub fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    pub fn range(&self, first_page: u64, pages: u64) -> UserptrRange {
        UserptrRange { start: self.address() + first_page * PAGE, size: pages * PAGE }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size(self.1)) };
    }
}

pub fn register(client: &Client, ranges: &[UserptrRange]) -> Result<Buffer, ClientError> {
    // SAFETY: the memory outlives the buffer, and nothing has a reference to it.
    unsafe { client.register_ranges(ranges, &RegisterOptions::default()) }
}

pub fn call<T: Pod>(way: &Way, command: vkfd_uapi::ioctl::Command, args: &mut T) -> Result<(), i32> {
    // SAFETY: the argument is the command's own, with pointers to live memory of the sizes in it.
    unsafe { way.process.ioctl(File::Kfd, command.0, std::ptr::from_mut(args).cast()) }
}
