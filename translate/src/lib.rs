// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hot GPU code as code of the host.
//!
//! The crate knows instructions ([`vkfd_isa`]) and how a wave's registers lie in memory. It knows no
//! engine, no memory of a GPU and no launch, and it compiles in seconds.
//!
//! | module | |
//! |---|---|
//! | [`arena`] | memory for code, never writable and executable at once |

pub mod arena;
