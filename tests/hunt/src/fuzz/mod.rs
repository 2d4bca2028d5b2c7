// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the fuzz targets run: functions of bytes that panic when something is wrong. `fuzz/` at the
//! root has a target for each, and `tests/fuzz_smoke.rs` runs each over the corpus and over bytes
//! by chance.

mod asic;
mod bounded;
mod code;
mod packets;
mod walk;

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use vkfd_driver::base::addr::CpuVa;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::machine::kfd::Options;
use vkfd_uapi::command::{self, ALL};
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::vkfd;

use vkfd_sim::caller::{ARGUMENT, CALLER, LIST};
use vkfd_sim::{Form, Rig, SimMm, GPU_ID};

use crate::model::{self, Change, Op, Piece, Shape, Step, Trouble, FIRST_PAGE, VRAM_PAGES};

pub use asic::asic_accesses;
pub use code::{kernel_arguments, kernel_descriptors, machine_code};
pub use packets::{aql_packets, pm4_packets, sdma_packets};
pub use walk::page_walk;

/// A target's name and function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("ioctl_decode", ioctl_decode),
    ("call_sequence", call_sequence),
    ("sdma_packets", sdma_packets),
    ("aql_packets", aql_packets),
    ("pm4_packets", pm4_packets),
    ("asic_accesses", asic_accesses),
    ("page_walk", page_walk),
    ("machine_code", machine_code),
    ("kernel_descriptors", kernel_descriptors),
    ("kernel_arguments", kernel_arguments),
];

/// Bytes of an argument: no structure is longer.
const ARGUMENT_BYTES: usize = 256;

/// Values at the ends of types, and those at which the driver's behaviour changes. Random bytes
/// hardly ever have them.
const EDGES: [u64; 32] = [
    0,
    1,
    u64::MAX,
    u64::MAX - 1,
    u32::MAX as u64,
    u32::MAX as u64 - 1,
    1 << 32,
    (u32::MAX as u64) << 32,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 4095,
    (1 << 47) - 4096,
    1 << 47,
    (1 << 47) + 1,
    1 << 48,
    4095,
    4096,
    4097,
    1 << 21,
    1 << 30,
    1 << 31,
    i32::MAX as u64,
    GPU_ID as u64,
    (GPU_ID as u64) << 32,
    GPU_ID as u64 | (GPU_ID as u64) << 32,
    CALLER,
    CALLER + 0x1000,
    CALLER + 0x8ff8,
    FIRST_PAGE * 4096,
    (FIRST_PAGE + 63) * 4096,
    GPU_ID as u64 | (1 << 31 | 2) << 32,
    GPU_ID as u64 | (1 << 31 | 4) << 32,
];

/// A byte chooses a command (or says that a whole command word follows), then comes the length of
/// the argument, then the argument; and so on. With the byte's high bit set a byte for each 8 bytes
/// of the argument says whether they are one of `EDGES` or follow. The bytes are also what lists in
/// the callers' memory consist of.
pub fn ioctl_decode(data: &[u8]) {
    // The limit that follows from this is half a GiB: no call takes long.
    let options = Options { ram: 2 << 30, diagnosis: true, ..model::options() };
    let rig = Rig::on(SimMm::with_array(), options, 1, VRAM_PAGES);
    rig.mm.map(FIRST_PAGE, 48, true);
    let mut input = Unstructured::new(data);
    rig.mm.put(LIST, &data[..data.len().min(0x8000)]);
    for _ in 0..64 {
        let Ok((command, at_edges)) = command(&mut input) else { break };
        let mut argument = [0; ARGUMENT_BYTES];
        let filled =
            if at_edges { fill_with_edges(&mut input, &mut argument) } else { fill(&mut input, &mut argument) };
        if filled.is_err() {
            break;
        }
        if command.number() == command::WAIT_EVENTS.number() {
            // The timeout: nobody wants to wait.
            argument[16..20].fill(0);
        }
        rig.mm.put(ARGUMENT, &argument);
        let _ = rig.process.ioctl(command.0, CpuVa(ARGUMENT));
    }
    rig.mm.notify(FIRST_PAGE, 64, true);
    rig.settle();
    rig.files.close();
    if let Err(left) = rig.close() {
        panic!("{left}");
    }
}

fn fill(input: &mut Unstructured<'_>, argument: &mut [u8; ARGUMENT_BYTES]) -> Result<()> {
    let len = input.arbitrary::<u8>().map_or(0, usize::from).min(input.len()).min(ARGUMENT_BYTES);
    input.fill_buffer(&mut argument[..len])
}

fn fill_with_edges(input: &mut Unstructured<'_>, argument: &mut [u8; ARGUMENT_BYTES]) -> Result<()> {
    for word in argument.chunks_exact_mut(8).take(8) {
        let choice = usize::from(input.arbitrary::<u8>()?);
        match EDGES.get(choice % (EDGES.len() + 8)) {
            Some(edge) => word.copy_from_slice(&edge.to_le_bytes()),
            None => input.fill_buffer(word)?,
        }
    }
    Ok(())
}

/// Which command, and whether its argument is at the edges.
fn command(input: &mut Unstructured<'_>) -> Result<(Command, bool)> {
    let known = ALL.iter().chain(vkfd::ALL).chain([&vkfd_uapi::batch::KNOWN]);
    let known: Vec<Command> = known.map(|known| known.command).collect();
    let choice = input.arbitrary::<u8>()?;
    let at_edges = choice & 0x80 != 0;
    match known.get(usize::from(choice & 0x7f) % (known.len() + 4)) {
        Some(command) => Ok((*command, at_edges)),
        None => Ok((Command(input.arbitrary()?), at_edges)),
    }
}

/// Calls and changes of memory, as the model test makes them.
pub fn call_sequence(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let per_range = input.ratio(1_u8, 4).unwrap_or(false);
    let shape = Shape { per_range, ..Shape::default() };
    let mut steps = Vec::new();
    while !input.is_empty() && steps.len() < 40 {
        let Ok(step) = step(&mut input, shape) else { break };
        steps.push(step);
    }
    if let Err(why) = model::run(shape, &steps) {
        panic!("{why}\n{steps:?}");
    }
}

fn piece(input: &mut Unstructured<'_>, shape: Shape) -> Result<Piece> {
    Ok((input.int_in_range(0..=shape.pages - 1)?, input.int_in_range(1..=shape.longest)?))
}

fn change(input: &mut Unstructured<'_>) -> Result<Change> {
    Ok(match input.int_in_range(0..=4)? {
        0 => Change::Unmap,
        1 => Change::Renew,
        2 => Change::Protect { writable: true },
        3 => Change::Protect { writable: false },
        _ => Change::Nothing,
    })
}

fn step(input: &mut Unstructured<'_>, shape: Shape) -> Result<Step> {
    let object = input.int_in_range(0..=7)?;
    let gpu = input.int_in_range(0..=1)?;
    let slot = input.int_in_range(0..=shape.slots - 1)?;
    let op = match input.int_in_range(0..=11)? {
        0 => Op::Mmap { piece: piece(input, shape)?, writable: input.ratio(3, 4)? },
        1 => Op::Change { change: change(input)?, piece: piece(input, shape)? },
        2 => Op::Mremap { piece: piece(input, shape)?, to: input.int_in_range(0..=shape.pages - 1)? },
        3 => Op::Hint { piece: piece(input, shape)? },
        4 | 5 => {
            let count = input.int_in_range(1..=9)?;
            let ranges = (0..count).map(|_| piece(input, shape)).collect::<Result<_>>()?;
            let form = *input.choose(&[Form::Batch, Form::Flag, Form::Single])?;
            Op::Register { slot, ranges, writable: input.arbitrary()?, form }
        }
        6 => Op::Alloc { slot, pages: input.int_in_range(1..=8)?, vram: input.arbitrary()? },
        7 => Op::Map { object, gpu },
        8 => Op::Unmap { object, gpu },
        9 => Op::Free { object },
        10 => Op::Fault { object, gpu, page: input.arbitrary::<u16>()?.into(), write: input.arbitrary()? },
        _ => Op::Xnack { on: input.arbitrary()? },
    };
    let trouble = match input.int_in_range(0..=7)? {
        0 | 1 => Trouble::Fail(input.int_in_range(0..=31)?),
        2 => {
            let errno = *input.choose(&[Errno::EBUSY, Errno::EAGAIN, Errno::ENOMEM])?;
            Trouble::Page(input.int_in_range(0..=shape.pages - 1)?, errno)
        }
        3 => Trouble::Race { skip: input.int_in_range(0..=2)?, change: change(input)?, piece: piece(input, shape)? },
        _ => Trouble::None,
    };
    Ok(Step { op, trouble, settle: input.ratio(2, 3)? })
}

/// How long packets and rings run before they are taken away from under the device.
const RUN: Duration = Duration::from_millis(2);
