// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A context whose calls are forwarded, without the guest's side of it: any call with any argument,
//! as a hostile guest makes it.

use std::sync::atomic::Ordering;

use vkfd_remote::protocol::capset;
use vkfd_remote::protocol::control::Command;
use vkfd_remote::protocol::forward::{BlobKind, File, Piece, Request, SLOT_BYTES};

use super::{Guest, OK};

/// Bytes of the response memory: one slot.
const RESPONSES: u64 = 16 << 10;
const _: () = assert!(SLOT_BYTES as u64 == RESPONSES);

/// The memory that comes with a call.
#[derive(Default)]
pub struct Brought {
    /// The arrays that its pointers stand for, in their order.
    pub arrays: Vec<Vec<u8>>,
    pub pieces: Vec<Piece>,
}

impl From<Vec<Piece>> for Brought {
    fn from(pieces: Vec<Piece>) -> Self {
        Self { arrays: Vec::new(), pieces }
    }
}

/// Such a context.
pub struct Forwarded {
    /// Its number.
    pub context: u32,
    responses: u64,
    sequence: u64,
}

impl Forwarded {
    /// Makes it.
    ///
    /// # Panics
    /// When the device refuses it.
    pub fn open(guest: &mut Guest, context: u32) -> Self {
        assert_eq!(guest.command(context, &Command::CreateContext { capset: capset::KFD }), OK);
        let (_, responses) = guest.host_blob(context, BlobKind::Responses.id(), RESPONSES, true);
        Self { context, responses, sequence: 0 }
    }

    /// Makes a call: its errno, and the argument as the call left it.
    ///
    /// # Panics
    /// When there is no answer at once, or the call is none that is offered.
    pub fn call(
        &mut self,
        guest: &mut Guest,
        command: vkfd_uapi::ioctl::Command,
        argument: &[u8],
        brought: impl Into<Brought>,
    ) -> (i32, Vec<u8>) {
        let brought = brought.into();
        self.sequence += 1;
        let mut request =
            Request::new(File::Kfd, command, argument.to_vec(), brought.arrays, brought.pieces).expect("a call");
        let payload = request.encode(self.sequence, 0, 16 << 10);
        assert_eq!(guest.command(self.context, &Command::Submit { payload: &payload }), OK);
        assert_eq!(guest.window.word(self.responses).load(Ordering::Acquire), self.sequence);
        let words = (0..RESPONSES / 8).map(|n| guest.window.word(self.responses + 8 * n).load(Ordering::Relaxed));
        let answer: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let length = request.answer_bytes().min(answer.len());
        let errno = request.take_answer(&answer[..length]).expect("an answer");
        (errno, request.argument)
    }
}
