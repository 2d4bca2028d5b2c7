// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Descriptors that a program sends to a shared machine: one is taken, all others are closed. Their
//! file has a name of its own, because other tests of the process open and close descriptors.

use crate::program;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use program::{call, options, way_over, MIB, SOON};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use vkfd_raw::memory_file;
use vkfd_remote::guest::file_message::receive;
use vkfd_remote::guest::socket::{hello, HELLO_BYTES};
use vkfd_sabotage::{process, Switch};
use vkfd_uapi::command as c;
use vkfd_virtio_gpu::shared_machine::Host;

/// Descriptors of the file that is sent.
fn descriptors() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    // One may be closed by another test meanwhile.
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("/memfd:counted")).count()
}

/// Sends bytes with as many descriptors.
fn send_many(socket: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
}

fn settled(before: usize) {
    let began = Instant::now();
    while descriptors() > before && began.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn a_message_has_one_descriptor_and_all_others_are_closed() {
    let memory = memory_file::sealed(c"counted", MIB).unwrap();
    // The function that reads a message.
    for count in [0, 1, 2, 3, 4, 253] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let before = descriptors();
        send_many(&ours, &hello(MIB), &vec![memory.as_fd(); count]);
        let received = receive(&theirs, &mut [0; HELLO_BYTES]);
        assert_eq!(received.is_ok(), count == 1, "{count}");
        drop(received);
        // Too few bytes.
        send_many(&ours, &[0; 8], &vec![memory.as_fd(); count.min(1)]);
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(receive(&theirs, &mut [0; HELLO_BYTES]).is_err());
        assert_eq!(descriptors(), before, "{count}");
    }
    // A server, as often as it has descriptors.
    let host = Host::new(options()).unwrap();
    let before = descriptors();
    for round in 0..300 {
        let (ours, theirs) = UnixStream::pair().unwrap();
        host.take_in(theirs);
        send_many(&ours, &hello(MIB), &[memory.as_fd(); 4][..[0, 2, 3, 4][round % 4]]);
        assert!(receive(&ours, &mut [0; HELLO_BYTES]).is_err(), "a refused program gets nothing");
    }
    settled(before);
    // A good program still joins.
    let (ours, theirs) = UnixStream::pair().unwrap();
    host.take_in(theirs);
    let way = way_over(ours, options());
    call(&way, c::GET_VERSION, &mut [0_u32; 2]).unwrap();
    drop(way);
    settled(before);
    // The control. In this test, because the switch is the process's, as the descriptors are.
    process().turn(Switch::KeptFiles, true);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let before = descriptors();
    send_many(&ours, &hello(MIB), &[memory.as_fd(); 2]);
    assert!(receive(&theirs, &mut [0; HELLO_BYTES]).is_err());
    process().turn(Switch::KeptFiles, false);
    assert!(descriptors() > before, "files that stay open are not noticed");
}
