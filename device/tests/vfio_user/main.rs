// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The vfio-user server against a small client: what QEMU asks for, and what nobody should.

use rustix::event::{eventfd, EventfdFlags};
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use vkfd_asic::registers::system::{nbio, osssys};
use vkfd_asic::registers::{gc, sdma};
use vkfd_asic::{Asic, Shape, Summary};
use vkfd_device::vfio_user::message::command;
use vkfd_device::vfio_user::server::{Guest, Server};
use vkfd_gpu::{raw::memory_file, Config, Vram};

const VRAM: u64 = 4 << 20;
const EINVAL: u32 = 22;
const ENOTSUP: u32 = 95;

struct Client {
    stream: UnixStream,
    server: Option<JoinHandle<(io::Result<()>, Summary)>>,
    id: u16,
}

impl Client {
    fn new() -> Self {
        let guest = Arc::new(Guest::default());
        let shape = Shape::of(vkfd_host::Target::Gfx90a.model()).unwrap();
        let config = Config { threads: 1, ..Config::default() };
        let asic = Asic::new(shape, config, Vram::create(VRAM).unwrap(), guest.clone(), guest.clone()).unwrap();
        let server = Server::new(asic, guest);
        let (stream, other) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || server.serve(&other));
        Self { stream, server: Some(server), id: 0 }
    }

    fn send(&mut self, command: u16, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        self.id += 1;
        let mut bytes = Vec::new();
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(command.to_le_bytes());
        for word in [u32::try_from(16 + body.len()).unwrap(), flags, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// The reply: its errno, its body, its descriptors.
    fn receive(&mut self) -> (u32, Vec<u8>, Vec<OwnedFd>) {
        let (mut header, mut fds) = ([0; 16], Vec::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&self.stream, &mut [IoSliceMut::new(&mut header)], &mut ancillary, RecvFlags::WAITALL);
        assert_eq!(got.unwrap().bytes, 16);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(u16::from_le_bytes([header[0], header[1]]), self.id);
        let mut body = vec![0; usize::try_from(word(4)).unwrap() - 16];
        self.stream.read_exact(&mut body).unwrap();
        (word(12), body, fds)
    }

    fn ask(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> (u32, Vec<u8>, Vec<OwnedFd>) {
        self.send(command, 0, body, fds);
        self.receive()
    }

    fn read(&mut self, region: u32, offset: u64, len: u32) -> Vec<u8> {
        let body = [&offset.to_le_bytes()[..], &region.to_le_bytes(), &len.to_le_bytes()].concat();
        let (error, body, _) = self.ask(command::REGION_READ, &body, &[]);
        assert_eq!(error, 0);
        body[16..].to_vec()
    }

    /// A write without an answer, as QEMU's.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap();
        let body = [&offset.to_le_bytes()[..], &region.to_le_bytes(), &len.to_le_bytes(), data].concat();
        self.send(command::REGION_WRITE, 0x10, &body, &[]);
    }

    fn register(&mut self, at: u32) -> u32 {
        u32::from_le_bytes(self.read(5, u64::from(at) * 4, 4).try_into().unwrap())
    }

    fn set(&mut self, at: u32, value: u32) {
        self.write(5, u64::from(at) * 4, &value.to_le_bytes());
    }

    fn map(&mut self, start: u64, bytes: u64, offset: u64, fds: &[BorrowedFd<'_>]) -> u32 {
        let body = [&words(&[32, 3])[..], &offset.to_le_bytes(), &start.to_le_bytes(), &bytes.to_le_bytes()].concat();
        self.ask(command::DMA_MAP, &body, fds).0
    }

    fn end(mut self) -> (io::Result<()>, Summary) {
        let server = self.server.take().unwrap();
        drop(self);
        server.join().unwrap()
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_vmm_learns_what_the_device_is() {
    let mut client = Client::new();
    let (error, body, _) = client.ask(command::VERSION, b"\0\0\x01\0{\"capabilities\":{}}\0", &[]);
    assert_eq!((error, &body[..4]), (0, &[0, 0, 1, 0][..]));
    assert!(body.ends_with(b"}}\0") && body.windows(11).any(|part| part == b"max_msg_fds"));
    assert_eq!(client.ask(command::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]), &[]).1, words(&[16, 3, 9, 5]));
    let mut region = |index: u32| {
        let (error, body, fds) =
            client.ask(command::DEVICE_GET_REGION_INFO, &words(&[32, 0, index, 0, 0, 0, 0, 0]), &[]);
        assert_eq!(error, 0);
        (u32::from_le_bytes(body[4..8].try_into().unwrap()), u64::from_le_bytes(body[16..24].try_into().unwrap()), fds)
    };
    let (flags, size, fds) = region(0);
    assert_eq!((flags, size, fds.len()), (7, VRAM, 1), "VRAM comes with its memory");
    let memory = fds.into_iter().next().unwrap();
    assert!(rustix::fs::fcntl_get_seals(&memory).unwrap().contains(rustix::fs::SealFlags::SHRINK));
    assert_eq!((region(2).1, region(5).1, region(6).1, region(7).1, region(1).1), (2 << 20, 512 << 10, 4096, 4096, 0));
    // What the VMM writes there, the device sees.
    rustix::io::pwrite(&memory, &0x1122_3344u32.to_le_bytes(), 0x1000).unwrap();
    client.set(nbio::MM_INDEX, 0x1000);
    assert_eq!(client.register(nbio::MM_DATA), 0x1122_3344);
    assert_eq!(client.read(7, 0, 4), [0x02, 0x10, 0x0f, 0x74]);
    assert_eq!(client.read(6, 0, 2), [0x55, 0xaa]);
    let irq = |client: &mut Client, index| client.ask(command::DEVICE_GET_IRQ_INFO, &words(&[16, 0, index, 0]), &[]).1;
    assert_eq!((irq(&mut client, 1)[12], irq(&mut client, 2)[12]), (1, 0));
    let (served, summary) = client.end();
    served.unwrap();
    assert_eq!(summary.reads, 1);
}

#[test]
fn rings_in_guest_memory_run_and_interrupt() {
    let mut client = Client::new();
    let memory: OwnedFd = memory_file::sealed(c"guest", 0x1_0000).unwrap().into();
    assert_eq!(client.map(0x10_0000, 0x8000, 0x8000, &[memory.as_fd()]), 0);
    let interrupt = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    assert_eq!(client.ask(command::DEVICE_SET_IRQS, &words(&[20, 0x24, 1, 0, 1]), &[interrupt.as_fd()]).0, 0);
    // The interrupt ring is at the start of the guest's memory, a copy ring is in VRAM.
    client.set(osssys::IH_RB_BASE, 0x10_0000 >> 8);
    client.set(osssys::IH_RB_CNTL, 1 << 17 | 10 << 1 | 1);
    let engine = sdma::ENGINES[0];
    client.set(vkfd_asic::registers::hub::mmhub::VM_CONTEXT_START_LO, 0);
    client.set(engine + sdma::GFX_RB_BASE, 0x8000_0000);
    client.set(engine + sdma::GFX_DOORBELL, 1 << 28);
    client.set(engine + sdma::GFX_DOORBELL_OFFSET, 0x200 << 2);
    client.set(engine + sdma::GFX_RB_CNTL, 10 << 1 | 1);
    client.write(0, 0, &words(&[14, gc::SCRATCH_REG0, 77, 6, 5]));
    client.write(2, 0x800, &20u64.to_le_bytes());
    let mut count = [0; 8];
    let start = std::time::Instant::now();
    while rustix::io::read(&interrupt, &mut count).is_err() {
        assert!(start.elapsed().as_secs() < 30, "no interrupt");
        std::thread::yield_now();
    }
    let mut entry = [0; 20];
    rustix::io::pread(&memory, &mut entry, 0x8000).unwrap();
    assert_eq!((entry[0], entry[1], entry[16]), (8, 224, 5));
    assert_eq!(client.register(gc::SCRATCH_REG0), 77);
    // The memory goes, and with it interrupts; the device stays.
    let all = [&words(&[24, 2])[..], &[0; 16]].concat();
    assert_eq!(client.ask(command::DMA_UNMAP, &all, &[]).0, 0);
    client.write(0, 20, &words(&[6, 6]));
    client.write(2, 0x800, &28u64.to_le_bytes());
    assert_eq!(client.ask(command::DEVICE_RESET, &[], &[]).0, 0);
    assert_eq!(client.register(gc::SCRATCH_REG0), 0);
    client.end().0.unwrap();
}

#[test]
fn a_mapping_is_never_refused() {
    let mut client = Client::new();
    let memory: OwnedFd = memory_file::sealed(c"guest", 0x4000).unwrap().into();
    for (start, bytes, offset) in [(0, 0, 0), (u64::MAX, 2, 0), (0x1000, 0x1000, 7), (0, u64::MAX, 0), (0, 0x1000, 0)] {
        assert_eq!(client.map(start, bytes, offset, &[memory.as_fd()]), 0);
        assert_eq!(client.map(start, bytes, offset, &[]), 0);
    }
    client.end().0.unwrap();
}

#[test]
fn requests_that_make_no_sense_get_an_errno() {
    let mut client = Client::new();
    for (number, body, errno) in [
        (0, vec![], ENOTSUP),
        (11, vec![], ENOTSUP),
        (99, vec![0; 64], ENOTSUP),
        (command::VERSION, vec![1], EINVAL),
        (command::VERSION, vec![1, 0, 0, 0], ENOTSUP),
        (command::DMA_MAP, vec![0; 31], EINVAL),
        (command::DEVICE_GET_REGION_INFO, words(&[32, 0, 9, 0]), EINVAL),
        (command::DEVICE_GET_IRQ_INFO, words(&[16, 0, 5, 0]), EINVAL),
        (command::DEVICE_SET_IRQS, words(&[20, 4, 1, 0, 2]), EINVAL),
        (command::DEVICE_SET_IRQS, words(&[20, 4, 1, u32::MAX, 2]), EINVAL),
        (command::DEVICE_SET_IRQS, words(&[20, 0, 1, 0, 1]), EINVAL),
        (command::REGION_READ, words(&[0, 0, 5, u32::MAX]), EINVAL),
        (command::REGION_READ, words(&[0, 0, 9, 4]), EINVAL),
        (command::REGION_WRITE, words(&[0, 0, 5, 8, 1]), EINVAL),
    ] {
        let (error, body, _) = client.ask(number, &body, &[]);
        assert_eq!((error, body.len()), (errno, 0), "command {number}");
    }
    // Accesses anywhere are answered.
    for region in 0..9 {
        for offset in [0, 1, 0xfffd, 1 << 40, u64::MAX] {
            client.write(region, offset, &[0xff; 12]);
            assert_eq!(client.read(region, offset, 12).len(), 12);
        }
    }
    client.end().0.unwrap();
    // Half a message, and one that is none, end the connection with an error.
    for bytes in [&[0; 7][..], &[0; 16], &[0xff; 16]] {
        let client = Client::new();
        rustix::io::write(&client.stream, bytes).unwrap();
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        client.end().0.unwrap_err();
    }
}
