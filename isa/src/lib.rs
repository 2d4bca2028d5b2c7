// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The instruction sets of AMD's GPUs: the meaning of machine code.
//!
//! A decoder turns the words at a program counter into an [`Inst`]: an operation ([`Op`]), its
//! operands, and the modifiers of its encoding. Nothing here executes anything, reads memory or
//! knows of a driver.
//!
//! One [`Op`] stands for one meaning on all targets: gfx11's `global_load_b32` and gfx9's
//! `global_load_dword` are the same operation. What the assembler calls it on a target is the
//! disassembler's business.
//!
//! | module | |
//! |---|---|
//! | `op` | the operations of all targets |
//! | `inst`, `operand` | decoded instructions |
//! | `decode`, `tree` | from words to instructions |
//! | `hardware` | what gfx11 takes beyond the tables |
//! | `disasm`, `names` | their text |
//! | `encodings` | the tables as data, for generators of code |
//! | `table`, `tables` | the generated tables, and their form |
//! | `sabotage` | faults in them, for tests |
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod decode;
mod disasm;
mod encodings;
mod hardware;
mod inst;
mod names;
mod op;
mod operand;
#[cfg(debug_assertions)]
pub mod sabotage;
mod table;
mod tables;
mod tree;

pub use decode::{decode, DecodeError, MAX_WORDS};
pub use disasm::disassemble;
pub use encodings::{encodings, BitField, Encoding, Field, FieldKind};
pub use hardware::decode_as_hardware;
pub use inst::{Dpp, DppKind, Extension, Format, Half, Inst, Memory, Mods, Sdwa, SdwaSelect, SdwaUnused};
pub use op::Op;
pub use operand::{first_literal, Operand, Special};
pub use vkfd_targets::{Target, UnknownTarget};
