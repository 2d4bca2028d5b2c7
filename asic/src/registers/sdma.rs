// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A copy engine's registers, from the engine's base on, and where the five bases are.
//!
//! Names are those of `sdma0_4_2_2_offset.h` without `SDMA0_`; `RLC` queues are for user queues.

use super::{registers, Dword};

registers! {
    "SDMA0":
    UCODE_ADDR = 0x0;
    UCODE_DATA = 0x1;
    POWER_CNTL = 0x1a;
    CLK_CTRL = 0x1b;
    CNTL = 0x1c;
    GB_ADDR_CONFIG = 0x1e;
    GB_ADDR_CONFIG_READ = 0x1f;
    STATUS_REG = 0x25;
    F32_CNTL = 0x2a;
    FREEZE = 0x2b;
    GFX_RB_CNTL = 0x80;
    GFX_RB_BASE = 0x81;
    GFX_RB_BASE_HI = 0x82;
    GFX_RB_RPTR = 0x83;
    GFX_RB_RPTR_HI = 0x84;
    GFX_RB_WPTR = 0x85;
    GFX_RB_WPTR_HI = 0x86;
    GFX_RB_WPTR_POLL_CNTL = 0x87;
    GFX_RB_RPTR_ADDR_HI = 0x88;
    GFX_RB_RPTR_ADDR_LO = 0x89;
    GFX_IB_CNTL = 0x8a;
    GFX_DOORBELL = 0x92;
    GFX_DOORBELL_OFFSET = 0xab;
    RLC_RB_CNTL ["RLC{}_RB_CNTL"; 8 * 88] = 0x130;
    RLC_RB_BASE ["RLC{}_RB_BASE"; 8 * 88] = 0x131;
    RLC_RB_BASE_HI ["RLC{}_RB_BASE_HI"; 8 * 88] = 0x132;
    RLC_RB_RPTR ["RLC{}_RB_RPTR"; 8 * 88] = 0x133;
    RLC_RB_RPTR_HI ["RLC{}_RB_RPTR_HI"; 8 * 88] = 0x134;
    RLC_RB_WPTR ["RLC{}_RB_WPTR"; 8 * 88] = 0x135;
    RLC_RB_WPTR_HI ["RLC{}_RB_WPTR_HI"; 8 * 88] = 0x136;
    RLC_RB_RPTR_ADDR_HI ["RLC{}_RB_RPTR_ADDR_HI"; 8 * 88] = 0x138;
    RLC_RB_RPTR_ADDR_LO ["RLC{}_RB_RPTR_ADDR_LO"; 8 * 88] = 0x139;
    RLC_CONTEXT_STATUS ["RLC{}_CONTEXT_STATUS"; 8 * 88] = 0x141;
    RLC_DOORBELL ["RLC{}_DOORBELL"; 8 * 88] = 0x142;
    RLC_DOORBELL_OFFSET ["RLC{}_DOORBELL_OFFSET"; 8 * 88] = 0x15b;
}

/// Words of an engine's registers.
pub const WORDS: Dword = 0x400;
/// Where the engines' registers are.
pub const ENGINES: [Dword; 5] = [0x1260, 0x1860, 0x1e000, 0x1e400, 0x1e800];
/// User queues of an engine.
pub const QUEUES: u32 = 8;
/// From a register of one user queue to that of the next.
pub const QUEUE_STRIDE: Dword = 0x58;

/// The engine that `at` is in, and the place in it.
pub fn engine_of(at: Dword) -> Option<(usize, Dword)> {
    let inside = |(engine, base): (usize, &Dword)| Some((engine, at.checked_sub(*base).filter(|at| *at < WORDS)?));
    ENGINES.iter().enumerate().find_map(inside)
}

/// The register of a user queue, and the queue, if `at` (in an engine) is one from
/// [`RLC_RB_CNTL`] on.
pub fn queue_of(at: Dword) -> Option<(u32, Dword)> {
    let offset = at.checked_sub(RLC_RB_CNTL)?;
    let queue = offset / QUEUE_STRIDE;
    (queue < QUEUES).then_some((queue, RLC_RB_CNTL + offset % QUEUE_STRIDE))
}
