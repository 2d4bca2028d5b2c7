// SPDX-License-Identifier: GPL-2.0 OR MIT
//! vkfd's own parts inside a program: a heap, threads, and a check of code that others wait for.
//!
//! vkfd is a guest in a process. A thread of the program may sleep in munmap, madvise or fork until
//! the event reader has read its event. Meanwhile it may hold any lock of the C library: malloc's,
//! stdio's, the loader's. So the reader, and every thread that the reader waits for, must get on
//! without these locks. The same holds for the threads that a call waits for: the call may come
//! from a constructor inside dlopen, with the loader's lock held.
//!
//! | module | what |
//! | --- | --- |
//! | [`heap`] | an allocator that shares no lock with the C library's |
//! | [`thread`] | threads that start and end without the C library's locks |
//! | [`reserve`] | large mappings that stay empty where a program has locked its memory |
//! | [`message`] | lines on stderr without stdio's lock |
//! | [`word`] | a word of each thread, found without the loader's lock and malloc's |
//! | [`section`] | what a thread may not do while the event reader waits for it; debug builds check it |
//!
//! Limits: Linux only. A process that is no program of ours (the client library's user) keeps its
//! own allocator, and relies on [`section`] alone.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod heap;
mod lock;
pub mod message;
pub mod reserve;
pub mod section;
pub mod thread;
pub mod word;
