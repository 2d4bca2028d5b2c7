// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The blob that guest and host share: how far the host is, and the answers.

/// The blob's number.
pub const BLOB: u64 = 0;
/// Its bytes as AMD's library makes it.
pub const BYTES: u64 = 25 * 4096;
/// Most bytes of one.
pub const MAX_BYTES: u64 = 16 << 20;

/// Where the sequence number is of the last request that is done.
pub const SEQUENCE: u64 = 0;
/// Where the host says where the response area begins.
pub const AREA_OFFSET: u64 = 4;
/// Where the host says what went wrong without anybody waiting for it.
pub const ASYNC_ERROR: u64 = 8;
/// Where the host counts faults.
pub const GLOBAL_FAULTS: u64 = 12;

/// Where this host lets the response area begin.
pub const AREA: u32 = 64;

/// In an answer: the room that the guest has for it, then what came of the request, then the body.
pub const ANSWER_ROOM: u64 = 0;
/// See [`ANSWER_ROOM`].
pub const ANSWER_RESULT: u64 = 4;
/// See [`ANSWER_ROOM`].
pub const ANSWER_BODY: u64 = 8;
