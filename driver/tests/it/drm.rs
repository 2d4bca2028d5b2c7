// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What libdrm asks a render node.

use std::cell::RefCell;
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::CpuVa;
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::drm::usage::{self, Fact};
use vkfd_driver::drm::{Caller, RenderFile};
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::seams::gpu::Work;
use vkfd_sim::{Rig, GPU_ID};

/// Memory from 0x1000 on.
pub(crate) struct Memory(RefCell<Vec<u8>>);

pub(crate) const BASE: u64 = 0x1000;

impl Memory {
    fn new() -> Self {
        Self::of(1024)
    }

    /// So many bytes.
    pub(crate) fn of(bytes: usize) -> Self {
        Self(RefCell::new(vec![0xee; bytes]))
    }

    /// All of it.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0.into_inner()
    }

    fn place(&self, at: CpuVa, bytes: usize) -> Result<std::ops::Range<usize>> {
        let start = at.0.checked_sub(BASE).and_then(|start| usize::try_from(start).ok()).ok_or(Errno::EFAULT)?;
        let end = start.checked_add(bytes).filter(|end| *end <= self.0.borrow().len()).ok_or(Errno::EFAULT)?;
        Ok(start..end)
    }

    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        self.write(CpuVa(BASE + offset), bytes).unwrap();
    }

    fn get<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(CpuVa(BASE + offset), &mut bytes).unwrap();
        bytes
    }
}

impl Caller for Memory {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        to.copy_from_slice(&self.0.borrow()[self.place(from, to.len())?]);
        Ok(())
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        let place = self.place(to, from.len())?;
        self.0.borrow_mut()[place].copy_from_slice(from);
        Ok(())
    }
}

/// `_IOWR('d', number, bytes)`.
fn command(number: u32, bytes: u32) -> u32 {
    3 << 30 | bytes << 16 | u32::from(b'd') << 8 | number
}

fn call(rig: &Rig, memory: &Memory, command: u32) -> std::result::Result<(), Errno> {
    let file = RenderFile::new(rig.process.kfd(), 0).unwrap();
    file.ioctl(memory, None, command, CpuVa(BASE)).map_err(|error| error.errno)
}

#[test]
fn the_driver_is_amdgpu_and_texts_are_cut_to_their_room() {
    let (rig, memory) = (Rig::new(Options::default()), Memory::new());
    memory.put(0, &[0; 64]);
    // Room for four letters of the name, none for the others.
    memory.put(16, &4_u64.to_ne_bytes());
    memory.put(24, &(BASE + 512).to_ne_bytes());
    assert_eq!(call(&rig, &memory, command(0x00, 64)), Ok(()));
    assert_eq!(u32::from_ne_bytes(memory.get(0)), 3);
    assert_eq!((&memory.get::<5>(512), u64::from_ne_bytes(memory.get(16))), (b"amdg\xee", 6));
    memory.put(24, &1_u64.to_ne_bytes());
    memory.put(16, &4_u64.to_ne_bytes());
    assert_eq!(call(&rig, &memory, command(0x00, 64)), Err(Errno::EFAULT));
}

#[test]
fn answers_are_no_longer_than_the_caller_has_room_for() {
    let (rig, memory) = (Rig::new(Options::default()), Memory::new());
    let ask = |query: u32, size: u32| {
        memory.put(0, &(BASE + 256).to_ne_bytes());
        memory.put(8, &size.to_ne_bytes());
        memory.put(12, &query.to_ne_bytes());
        memory.put(256, &[0xee; 64]);
        call(&rig, &memory, command(0x45, 32))
    };
    // Whether it works.
    assert_eq!(ask(0x00, 4), Ok(()));
    assert_eq!(memory.get::<8>(256), [1, 0, 0, 0, 0xee, 0xee, 0xee, 0xee]);
    // How much memory: eight bytes of the answer.
    assert_eq!(ask(0x14, 8), Ok(()));
    let vram = rig.process.kfd().device(GPU_ID).unwrap().properties().vram_bytes;
    assert_eq!((u64::from_ne_bytes(memory.get(256)), memory.get::<1>(264)), (vram, [0xee]));
    assert_eq!(ask(0x777, 8), Err(Errno::EINVAL));
    // What there is to submit to: a block of each kind, and no ring.
    for (kind, count) in [(0_u32, 1), (1, 1), (2, 1), (3, 0), (8, 0)] {
        memory.put(16, &kind.to_ne_bytes());
        assert_eq!(ask(0x03, 4), Ok(()));
        assert_eq!(u32::from_ne_bytes(memory.get(256)), count, "{kind}");
        assert_eq!(ask(0x02, 32), Ok(()));
        let (major, rings) = (u32::from_ne_bytes(memory.get(256)), u32::from_ne_bytes(memory.get(280)));
        assert_eq!((major, rings), (9 * count, 0), "{kind}");
    }
    memory.put(16, &9_u32.to_ne_bytes());
    assert_eq!(ask(0x03, 4), Err(Errno::EINVAL));
    memory.put(0, &0_u64.to_ne_bytes());
    memory.put(12, &0_u32.to_ne_bytes());
    assert_eq!(call(&rig, &memory, command(0x45, 32)), Err(Errno::EFAULT));
}

#[test]
fn the_load_is_a_sensor_and_a_bit_of_a_register() {
    let (rig, memory) = (Rig::new(Options::default()), Memory::new());
    let ask = |query: u32, which: u32| {
        memory.put(0, &(BASE + 256).to_ne_bytes());
        memory.put(8, &4_u32.to_ne_bytes());
        memory.put(12, &query.to_ne_bytes());
        memory.put(16, &which.to_ne_bytes());
        call(&rig, &memory, command(0x45, 32)).map(|()| u32::from_ne_bytes(memory.get(256)))
    };
    let (sensor, register, load, status) = (0x1d, 0x15, 4, 0x2004);
    assert_eq!(ask(register, status), Ok(0));
    // It has worked longer than there was time.
    *rig.gpu.work.lock().unwrap() = Work { nanoseconds: u64::MAX / 2, now: true };
    let begun = Instant::now();
    while ask(sensor, load) != Ok(100) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", ask(sensor, load));
    }
    assert_eq!(usage::number(rig.process.kfd(), 0, Fact::Busy).map_err(|error| error.errno), Ok(100));
    assert_eq!(ask(register, status), Ok(1 << 31));
    assert_eq!(ask(register, status + 1), Ok(0), "another register");
    // Temperature.
    assert_eq!(ask(sensor, 3), Err(Errno::EOPNOTSUPP));
    *rig.gpu.work.lock().unwrap() = Work { nanoseconds: u64::MAX / 2, now: false };
    assert_eq!(ask(register, status), Ok(0));
    while ask(sensor, load) != Ok(0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", ask(sensor, load));
    }
    assert_eq!(usage::number(rig.process.kfd(), 9, Fact::Busy).map_err(|error| error.errno), Err(Errno::ENODEV));
}

#[test]
fn what_is_not_there_is_said_so() {
    let (rig, memory) = (Rig::new(Options::default()), Memory::new());
    memory.put(0, &[0; 64]);
    // Everyone is authenticated, and nobody else is shown.
    assert_eq!(call(&rig, &memory, command(0x05, 40)), Ok(()));
    assert_eq!(u32::from_ne_bytes(memory.get(4)), 1);
    memory.put(0, &1_u32.to_ne_bytes());
    assert_eq!(call(&rig, &memory, command(0x05, 40)), Err(Errno::EINVAL));
    // A context to render in, and another driver's commands.
    assert_eq!(call(&rig, &memory, command(0x42, 16)), Err(Errno::EOPNOTSUPP));
    assert_eq!(call(&rig, &memory, 0x4b01), Err(Errno::ENOTTY));
    assert_eq!(RenderFile::new(rig.process.kfd(), 9).err().map(|error| error.errno), Some(Errno::ENODEV));
}
