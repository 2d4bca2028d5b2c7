// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The library that `vkfd run` loads into a program (LD_PRELOAD). The program finds `/dev/kfd`,
//! render nodes, and the topology in sysfs. It has a machine of its own behind them: the driver and
//! its GPUs, in its process, from the first open on. Instead it may be one that processes share
//! (`vkfd serve`), or, in a guest, the host's.
//!
//! | module | what |
//! | --- | --- |
//! | `setting` | what `vkfd run` said, in the environment |
//! | `reach` | whether the program's calls get to the hooks |
//! | `redirect` | paths: what lies below the private directory, what is a device |
//! | `processes` | the list of processes below `/sys/class/kfd/kfd/proc` |
//! | `fdinfo` | what `/proc` says of descriptors of devices |
//! | `made_file` | a file whose text is made when it is opened |
//! | `usage` | files that say how much memory is in use |
//! | `table` | which descriptors are devices |
//! | `device` | the open files behind them |
//! | `backend` | what is behind devices: one of two machines |
//! | `machine` | the machine in this process |
//! | `forwarded` | the host's machine, or one that processes share |
//! | `own_stack` | deep calls, which a small thread has no room for |
//! | `message` | what the driver has to say, on stderr |
//! | `trace` | the record of calls |
//! | `runtime_tool` | what is replaced in AMD's runtime |
//! | `signal_wait` | how the runtime waits for the GPU |
//! | `real` | libc's own functions |
//! | `hooks` | the functions that the program calls instead; `mmap` and its relatives are in `vkfd_host::interpose` |
//!
//! # How it keeps out of the way
//!
//! A path that is none of ours costs a comparison, a descriptor one atomic load; then libc's
//! function is called with the caller's arguments. What is read from sysfs are real files, or
//! memory files in their place, so nothing of reading is emulated. Descriptors of devices are real
//! ones, of the file that has all memory that a client maps ([`vkfd_host::device_file`]).
//!
//! The driver's threads and this library call libc through the same hooks, with paths and
//! descriptors of no device, so there is no recursion to guard against. No lock is held while libc
//! or the driver is called, and none in the hooks' own fast paths. Hooks may be called from malloc,
//! from constructors, and in a child between fork and exec.
//!
//! # Limits
//!
//! Raw system calls that open, and libc's internal calls (glob, nftw, `posix_spawn`'s file
//! actions), see the real system. A path through `..` out of a directory of ours leads nowhere.
//! Each process has a machine of its own, forked children too, unless it joined one. A child of
//! vfork, or of a raw `clone`, cannot open a device; what it executes can.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod backend;
mod device;
mod event_wait;
mod fdinfo;
mod forwarded;
mod hooks;
mod machine;
mod made_file;
mod message;
mod own_stack;
mod processes;
mod reach;
mod real;
mod redirect;
mod runtime_tool;
mod setting;
mod signal_wait;
mod table;
mod trace;
mod usage;

/// What this library allocates shares no lock with the program's allocator: see [`vkfd_rt`].
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<vkfd_rt::heap::Heap> = vkfd_rt::section::Checked(vkfd_rt::heap::Heap);
