// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The layout of vfio-user's messages.
//!
//! All numbers are little-endian. A message is a header of 16 bytes and a body; a reply has the
//! request's number and command.

use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Most bytes of an access to a region.
pub const MAX_ACCESS: usize = 1 << 20;
/// Most bytes of a body: an access with its description.
const MAX_BODY: usize = MAX_ACCESS + 64;
/// Most descriptors of a message; QEMU sends up to 16.
const MAX_FDS: usize = 16;

pub mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DEVICE_RESET: u16 = 13;
}

/// Bits of a header's flags.
const REPLY: u32 = 1;
const NO_REPLY: u32 = 0x10;
const ERROR: u32 = 0x20;
/// The type in a header's flags; 0 is a request.
const TYPE: u32 = 0xf;

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Its number.
    pub id: u16,
    pub command: u16,
    /// The sender waits for an answer.
    pub wants_reply: bool,
    pub body: Vec<u8>,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// The number of `N` bytes at `at`; 0 beyond the end.
macro_rules! number {
    ($name:ident, $type:ty) => {
        /// The number at a byte offset; 0 beyond the end.
        pub fn $name(bytes: &[u8], at: usize) -> $type {
            let part = at.checked_add(size_of::<$type>()).and_then(|end| bytes.get(at..end));
            part.and_then(|part| part.try_into().ok()).map_or(0, <$type>::from_le_bytes)
        }
    };
}
number!(u16_at, u16);
number!(u32_at, u32);
number!(u64_at, u64);

/// Reads the header, with which descriptors come. How much there is of it.
fn receive_header(stream: &UnixStream, header: &mut [u8; HEADER], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut have = 0;
    while have < HEADER {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let rest = header.get_mut(have..).unwrap_or_default();
        let got = match recvmsg(stream, &mut [IoSliceMut::new(rest)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            got => got?,
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
            return Err(invalid("a message with too many descriptors"));
        }
        if got.bytes == 0 {
            break;
        }
        have += got.bytes;
    }
    Ok(have)
}

/// Receives a request; `None` when the other side has gone.
///
/// # Errors
/// What the socket says, UnexpectedEof for a part of a message, InvalidData for one that is none or
/// that is too large.
pub fn receive(stream: &UnixStream) -> io::Result<Option<Request>> {
    let (mut header, mut fds) = ([0; HEADER], Vec::new());
    match receive_header(stream, &mut header, &mut fds)? {
        0 => return Ok(None),
        HEADER => {}
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    }
    let flags = u32_at(&header, 8);
    let size = usize::try_from(u32_at(&header, 4)).unwrap_or(usize::MAX);
    if flags & TYPE != 0 {
        return Err(invalid("a reply to nothing"));
    }
    let Some(length) = size.checked_sub(HEADER).filter(|length| *length <= MAX_BODY) else {
        return Err(invalid("a message of a size that none has"));
    };
    let mut body = vec![0; length];
    (&*stream).read_exact(&mut body)?;
    let (id, command) = (u16_at(&header, 0), u16_at(&header, 2));
    Ok(Some(Request { id, command, wants_reply: flags & NO_REPLY == 0, body, fds }))
}

/// A reply.
#[derive(Debug, Default)]
pub struct Reply<'a> {
    pub body: Vec<u8>,
    /// A descriptor that goes with it.
    pub fd: Option<BorrowedFd<'a>>,
}

impl Reply<'_> {
    /// A reply with a body.
    pub fn of(body: Vec<u8>) -> Self {
        Self { body, fd: None }
    }
}

/// Answers a request.
///
/// # Errors
/// What the socket says.
pub fn answer(stream: &UnixStream, request: &Request, reply: Result<Reply<'_>, Errno>) -> io::Result<()> {
    let (reply, error) = match reply {
        Ok(reply) => (reply, 0),
        Err(errno) => (Reply::default(), errno.raw_os_error().unsigned_abs()),
    };
    let flags = REPLY | if error != 0 { ERROR } else { 0 };
    let size = u32::try_from(HEADER + reply.body.len()).map_err(|_| invalid("a reply that is too large"))?;
    let mut bytes = Vec::with_capacity(HEADER + reply.body.len());
    bytes.extend(request.id.to_le_bytes());
    bytes.extend(request.command.to_le_bytes());
    for word in [size, flags, error] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(&reply.body);
    let mut fds = reply.fd.as_slice();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(invalid("a descriptor that cannot be sent"));
        }
        match sendmsg(stream, &[IoSlice::new(rest)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(sent) => {
                fds = &[];
                rest = rest.get(sent..).unwrap_or_default();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    fn bytes(size: u32, flags: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![7, 0, 9, 0];
        bytes.extend(size.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }

    fn received(bytes: &[u8]) -> io::Result<Option<Request>> {
        let (mut sender, receiver) = UnixStream::pair().unwrap();
        sender.write_all(bytes).unwrap();
        drop(sender);
        receive(&receiver)
    }

    #[test]
    fn requests_are_received_whole_or_not_at_all() {
        let request = received(&bytes(20, NO_REPLY, &[1, 2, 3, 4])).unwrap().unwrap();
        assert_eq!((request.id, request.command, request.wants_reply, request.body.len()), (7, 9, false, 4));
        assert!(received(&[]).unwrap().is_none());
        for cut in [1, 15, 16, 19] {
            let error = received(&bytes(20, 0, &[1, 2, 3, 4])[..cut]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
        }
        for (size, flags) in [(15, 0), (0, 0), (u32::MAX, 0), (16 + (2 << 20), 0), (16, REPLY)] {
            let error = received(&bytes(size, flags, &[])).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{size} {flags}");
        }
    }

    #[test]
    fn descriptors_belong_to_their_message() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let (mut first, second) = (bytes(16, 0, &[]), bytes(16, 0, &[]));
        first.truncate(16);
        let fds = [sender.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&sender, &[IoSlice::new(&first)], &mut ancillary, SendFlags::empty()).unwrap();
        (&sender).write_all(&second).unwrap();
        assert_eq!(receive(&receiver).unwrap().unwrap().fds.len(), 1);
        assert_eq!(receive(&receiver).unwrap().unwrap().fds.len(), 0);
    }

    #[test]
    fn a_reply_has_the_requests_number_and_an_error_its_errno() {
        let (stream, mut other) = UnixStream::pair().unwrap();
        let request = Request { id: 5, command: 8, wants_reply: true, body: Vec::new(), fds: Vec::new() };
        answer(&stream, &request, Err(Errno::INVAL)).unwrap();
        answer(&stream, &request, Ok(Reply::of(vec![1, 2]))).unwrap();
        let mut both = [0; 34];
        other.read_exact(&mut both).unwrap();
        assert_eq!(both[..16], [5, 0, 8, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]);
        assert_eq!(both[16..], [5, 0, 8, 0, 18, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
