// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The state of a wave.

use vkfd_isa::{Operand, Target};

/// Lanes of a register row; waves of 32 use the first half.
pub const LANES: usize = 64;

/// One vector register: a word per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Row(pub [u32; LANES]);

impl Row {
    pub const ZERO: Row = Row([0; LANES]);
}

/// A rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// To nearest, ties to even.
    Nearest,
    /// Towards plus infinity.
    Up,
    /// Towards minus infinity.
    Down,
    /// Towards zero.
    Zero,
}

/// The MODE register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Mode {
    /// What compilers ask for: round to nearest, all denormals, DX10_CLAMP, IEEE.
    pub const DEFAULT: Mode = Mode(0x3f0);

    fn round(self, shift: u32) -> Round {
        match self.0 >> shift & 3 {
            0 => Round::Nearest,
            1 => Round::Up,
            2 => Round::Down,
            _ => Round::Zero,
        }
    }

    /// Rounding of 32-bit results.
    pub fn round32(self) -> Round {
        self.round(0)
    }

    /// Rounding of 16-bit and 64-bit results.
    pub fn round16_64(self) -> Round {
        self.round(2)
    }

    /// 32-bit denormal inputs are kept.
    pub fn denorm32_in(self) -> bool {
        self.0 & 1 << 4 != 0
    }

    /// 32-bit denormal results are kept.
    pub fn denorm32_out(self) -> bool {
        self.0 & 1 << 5 != 0
    }

    /// 16-bit and 64-bit denormal inputs are kept.
    pub fn denorm16_64_in(self) -> bool {
        self.0 & 1 << 6 != 0
    }

    /// 16-bit and 64-bit denormal results are kept.
    pub fn denorm16_64_out(self) -> bool {
        self.0 & 1 << 7 != 0
    }

    /// Clamping makes zero of NaN.
    pub fn dx10_clamp(self) -> bool {
        self.0 & 1 << 8 != 0
    }

    /// Signalling NaNs are quieted, also by minimum and maximum.
    pub fn ieee(self) -> bool {
        self.0 & 1 << 9 != 0
    }

    /// 16-bit results that overflow are the largest finite number.
    pub fn fp16_overflow(self) -> bool {
        self.0 & 1 << 23 != 0
    }
}

/// A wave.
///
/// Scalar registers, VCC, the trap temporaries, M0 and EXEC lie in one array under
/// [`Operand::Scalar`]'s numbers. Waves of 32 keep the high halves of EXEC and VCC as the program
/// left them; lanes 32 to 63 never run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    /// Whose instructions it runs.
    pub target: Target,
    /// 32 or 64.
    pub lanes: u8,
    /// Program counter.
    pub pc: u64,
    /// Scalar registers; NULL's slot stays zero.
    pub scalar: [u32; 128],
    pub scc: bool,
    pub mode: Mode,
    /// Vector registers, and behind them accumulation registers from `acc` on.
    pub rows: Vec<Row>,
    /// Row of the first accumulation register (CDNA2 and later: ACCUM_OFFSET).
    pub acc: u16,
    /// SGPRs that the program may use.
    pub sgprs: u8,
    /// FLAT_SCRATCH of targets that do not keep it in SGPRs: the wave's scratch.
    pub flat_scratch: u64,
    /// STATUS' and other bits for `s_getreg`: TRAPSTS.
    pub trapsts: u32,
    /// Lanes whose part of the instruction at the program counter is done: an atomic instruction
    /// that missed half way goes on with the others. Zero otherwise.
    pub done: u64,
    /// Index of the wave in its workgroup.
    pub index: u16,
}

impl Wave {
    /// EXEC, of the lanes that there are.
    pub fn exec(&self) -> u64 {
        self.pair(Operand::EXEC) & self.all()
    }

    pub fn vcc(&self) -> u64 {
        self.pair(Operand::VCC)
    }

    /// A bit for each lane there is.
    pub fn all(&self) -> u64 {
        if self.lanes == 32 {
            0xffff_ffff
        } else {
            u64::MAX
        }
    }

    /// Two scalar registers from `index` on.
    pub fn pair(&self, index: u8) -> u64 {
        let at = |index: usize| self.scalar.get(index).map_or(0, |&word| u64::from(word));
        at(index.into()) | at(usize::from(index) + 1) << 32
    }

    /// Sets two scalar registers from `index` on. Writes to NULL are dropped.
    pub fn set_pair(&mut self, index: u8, value: u64) {
        if index == Operand::NULL {
            return;
        }
        for (slot, word) in self.scalar.iter_mut().skip(index.into()).zip([value, value >> 32]) {
            *slot = u32::try_from(word & 0xffff_ffff).unwrap_or(0);
        }
    }
}
