// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages that carry one file, over a socket of this computer.
//!
//! Every descriptor that the kernel installs while a message is read is owned at once, so that what
//! is refused is closed, however many came. A message has one file or is refused.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use vkfd_sabotage::{process, Switch};

/// Writes bytes with a file. A socket that has ended is an error and no signal.
///
/// # Errors
/// The system's, and WriteZero when not all bytes had room.
pub fn send(socket: &UnixStream, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<()> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let sent = loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => break sent?,
        }
    };
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Reads as many bytes, and the file that came with them.
///
/// # Errors
/// The system's, UnexpectedEof, and InvalidData for fewer bytes, or for another number of files
/// than one; all of them are closed.
pub fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<File> {
    let length = bytes.len();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            got => break got?,
        }
    };
    let kept = process().has(Switch::KeptFiles);
    let (mut file, mut count) = (None, 0_usize);
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            for one in files {
                count += 1;
                if let Some(before) = file.replace(one).filter(|_| kept) {
                    std::mem::forget(before);
                }
            }
        }
    }
    let whole = got.bytes == length && count == 1 && !got.flags.contains(ReturnFlags::CTRUNC);
    if kept && !whole {
        std::mem::forget(file.take());
    }
    match file.filter(|_| whole) {
        _ if got.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(file) => Ok(file.into()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}
