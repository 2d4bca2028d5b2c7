// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The engines' tests, one program for all files: each program is linked anew.

mod any_code;
mod buffers;
mod by_lane;
mod chains;
mod checks;
mod code;
mod division;
mod eight_bits;
mod fidelity;
mod flow;
mod lanes;
mod lockstep;
mod matrix;
mod memory;
mod modes;
mod past;
mod products;
mod rings;
mod sections;
mod silicon;
mod stored;
mod sums;
mod superblocks;
mod support;
mod tiles;
mod translated;
