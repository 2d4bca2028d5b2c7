// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The registers of a gfx90a that this device models, by the names of the kernel's headers.
//!
//! Offsets count 32-bit words from the begin of the register BAR. `cargo xtask asic --check`
//! compares every line of the tables with `include/asic_reg` of a kernel's source. A register
//! outside of the tables is storage; [`mod@file`] counts reads of such registers.

pub mod file;
pub mod gc;
pub mod hub;
pub mod sdma;
pub mod system;

/// A register's place in the BAR, in 32-bit words.
pub type Dword = u32;

/// A line of a table: a register, or several at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// The block, as `aldebaran_ip_offset.h` calls it.
    pub ip: &'static str,
    /// The name. Of several, `{}` stands for the number.
    pub name: &'static str,
    /// The first.
    pub at: Dword,
    /// How many there are.
    pub count: u32,
    /// From one to the next.
    pub stride: u32,
}

impl Register {
    /// The name of the register at `at`, if it is one of these.
    pub fn name_of(&self, at: Dword) -> Option<String> {
        let offset = at.checked_sub(self.at)?;
        let number = offset / self.stride.max(1);
        let own = offset % self.stride.max(1) == 0 && number < self.count;
        own.then(|| format!("{}.{}", self.ip, self.name.replace("{}", &number.to_string())))
    }
}

/// Declares a table: a constant of each register, and the list of them.
macro_rules! registers {
    ($ip:literal: $( $name:ident $([$pattern:literal; $count:literal * $stride:literal])? = $at:literal; )*) => {
        $(pub const $name: $crate::registers::Dword = $at;)*
        /// All of them.
        pub static TABLE: &[$crate::registers::Register] = &[
            $($crate::registers::Register {
                ip: $ip,
                name: registers!(@name $name $($pattern)?),
                at: $at,
                count: registers!(@number $($count)?),
                stride: registers!(@number $($stride)?),
            },)*
        ];
    };
    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $pattern:literal) => { $pattern };
    (@number) => { 1 };
    (@number $number:literal) => { $number };
}
use registers;

/// All tables. Those of copy engines are relative to an engine.
pub fn tables() -> impl Iterator<Item = &'static Register> {
    let blocks = [gc::TABLE, hub::mmhub::TABLE, hub::gfxhub::TABLE];
    let system = [
        system::nbio::TABLE,
        system::osssys::TABLE,
        system::athub::TABLE,
        system::hdp::TABLE,
        system::mp0::TABLE,
        system::smuio::TABLE,
    ];
    blocks.into_iter().chain(system).flatten()
}
