// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The protocol between an ivshmem server and its clients, QEMU among them (QEMU's
//! `docs/specs/ivshmem-spec`).
//!
//! Messages go from server to client only: an 8-byte little-endian number, with or without a file
//! descriptor. A client gets, in this order, the version, its own number, and -1 with the shared
//! memory. Then come every other peer's number with an eventfd a vector, to interrupt it. Last
//! comes its own number with an eventfd a vector, to be interrupted. Here every peer has one
//! vector.

use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

const VERSION: i64 = 0;
const SHARED_MEMORY: i64 = -1;

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its number.
    pub number: i64,
    /// What came with it.
    pub fd: Option<OwnedFd>,
}

/// What a client gets when it connects.
#[derive(Debug)]
pub struct Setup {
    /// The client's number.
    pub own: u16,
    /// The memory behind BAR 2.
    pub memory: OwnedFd,
    /// To be interrupted.
    pub interrupt: OwnedFd,
    /// To interrupt the others.
    pub peers: BTreeMap<u16, OwnedFd>,
}

/// The same, to be sent.
pub struct Offer<'a> {
    /// The client's number.
    pub own: u16,
    /// The memory behind BAR 2.
    pub memory: BorrowedFd<'a>,
    /// To be interrupted.
    pub interrupt: BorrowedFd<'a>,
    /// To interrupt the others.
    pub peers: &'a [(u16, BorrowedFd<'a>)],
}

fn send(stream: &UnixStream, number: i64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = number.to_le_bytes();
    let sent = loop {
        match sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => break sent?,
        }
    };
    // Eight bytes fit or they do not; a part of a message would confuse the client for good.
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Receives a message; `None` when the server has closed the connection.
///
/// # Errors
/// What recvmsg says, UnexpectedEof for half a message, InvalidData for several descriptors.
pub fn receive(stream: &UnixStream) -> io::Result<Option<Message>> {
    let mut bytes = [0; 8];
    let mut have = 0;
    let mut fd = None;
    while have < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let rest = &mut bytes[have..];
        let got = match recvmsg(stream, &mut [IoSliceMut::new(rest)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            got => got?,
        };
        let (got, cut) = (got.bytes, got.flags.contains(ReturnFlags::CTRUNC));
        let mut count = 0_usize;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for one in fds {
                    count += 1;
                    fd = Some(one);
                }
            }
        }
        // All that came are closed.
        if cut || count > 1 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message with several descriptors"));
        }
        match (got, have) {
            (0, 0) => return Ok(None),
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => have += got,
        }
    }
    Ok(Some(Message { number: i64::from_le_bytes(bytes), fd }))
}

/// Sends a client what it needs.
///
/// # Errors
/// What sendmsg says.
pub fn offer(stream: &UnixStream, offer: &Offer<'_>) -> io::Result<()> {
    send(stream, VERSION, None)?;
    send(stream, offer.own.into(), None)?;
    send(stream, SHARED_MEMORY, Some(offer.memory))?;
    for (peer, fd) in offer.peers {
        send(stream, (*peer).into(), Some(*fd))?;
    }
    send(stream, offer.own.into(), Some(offer.interrupt))
}

/// Receives what a server sends first: the client's side.
///
/// # Errors
/// InvalidData if it does not follow the protocol, otherwise as [`receive`].
pub fn accept_offer(stream: &UnixStream) -> io::Result<Setup> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("ivshmem server sent {what}"));
    let next = || receive(stream)?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof));
    let version = next()?.number;
    if version != VERSION {
        return Err(wrong(&format!("protocol version {version}, only {VERSION} is known")));
    }
    let own = u16::try_from(next()?.number).map_err(|_| wrong("no peer number"))?;
    let Message { number: SHARED_MEMORY, fd: Some(memory) } = next()? else {
        return Err(wrong("no shared memory"));
    };
    let mut peers = BTreeMap::new();
    loop {
        let message = next()?;
        let peer = u16::try_from(message.number).map_err(|_| wrong("no peer number"))?;
        let fd = message.fd.ok_or_else(|| wrong("a peer without an eventfd"))?;
        if peer == own {
            return Ok(Setup { own, memory, interrupt: fd, peers });
        }
        peers.insert(peer, fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd, EventfdFlags};
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_offered_is_accepted() {
        let (server, client) = UnixStream::pair().unwrap();
        let [memory, own, other] = [0; 3].map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let peers = [(1, other.as_fd()), (7, other.as_fd())];
        offer(&server, &Offer { own: 3, memory: memory.as_fd(), interrupt: own.as_fd(), peers: &peers }).unwrap();
        let setup = accept_offer(&client).unwrap();
        assert_eq!((setup.own, setup.peers.keys().copied().collect::<Vec<_>>()), (3, vec![1, 7]));
        // The descriptors lead where they should.
        rustix::io::write(&setup.peers[&7], &1u64.to_ne_bytes()).unwrap();
        rustix::io::write(&setup.interrupt, &5u64.to_ne_bytes()).unwrap();
        let mut count = [0; 8];
        rustix::io::read(&other, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        rustix::io::read(&own, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 5);
        drop(server);
        assert!(receive(&client).unwrap().is_none());
    }

    #[test]
    fn a_server_that_does_not_follow_the_protocol_is_refused() {
        let words = |numbers: &[i64]| {
            let (mut server, client) = UnixStream::pair().unwrap();
            for number in numbers {
                server.write_all(&number.to_le_bytes()).unwrap();
            }
            drop(server);
            accept_offer(&client).unwrap_err().kind()
        };
        assert_eq!(words(&[1]), io::ErrorKind::InvalidData, "another version");
        assert_eq!(words(&[0, -5]), io::ErrorKind::InvalidData, "no number");
        assert_eq!(words(&[0, 1, -1]), io::ErrorKind::InvalidData, "no memory");
        assert_eq!(words(&[0, 1]), io::ErrorKind::UnexpectedEof);
        let (mut server, client) = UnixStream::pair().unwrap();
        server.write_all(&[0; 5]).unwrap();
        drop(server);
        assert_eq!(accept_offer(&client).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "half a message");
    }
}
