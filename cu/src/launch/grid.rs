// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A launch: a program, the sizes of its grid, its arguments and its scratch, and the state in
//! which its waves begin.
//!
//! Work-items are numbered with the first dimension fastest, over the work-group's actual size. If
//! the grid is no multiple of the work-group, the last group of a dimension has the rest. Source:
//! AMDGPUUsage, "Initial Kernel Execution State".

use super::program::{LaunchError, Program};
use super::spare;
use super::units::lds_given;
use super::workgroup::Workgroup;
use crate::group::{Apertures, Group, Place, Watched};
use crate::lds::Lds;
use crate::wave::{Row, Wave, LANES};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use vkfd_isa::Operand;

/// Most work-items of a work-group.
pub const MAX_GROUP: u64 = 1024;
/// Most LDS of a work-group, in bytes.
pub const MAX_LDS: u64 = 64 << 10;

/// Sizes of a launch in work-items, each dimension at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The grid.
    pub grid: [u32; 3],
    /// A work-group, but for the last of each dimension.
    pub group: [u32; 3],
}

impl Sizes {
    /// Sizes of `dimensions` dimensions; those beyond count as 1.
    ///
    /// # Errors
    /// [`LaunchError::Dimensions`], [`LaunchError::GroupTooLarge`].
    pub fn new(dimensions: u32, grid: [u32; 3], group: [u32; 3]) -> Result<Sizes, LaunchError> {
        let bad = LaunchError::Dimensions { grid, group, dimensions };
        let sizes = match dimensions {
            1 => Sizes { grid: [grid[0], 1, 1], group: [group[0], 1, 1] },
            2 => Sizes { grid: [grid[0], grid[1], 1], group: [group[0], group[1], 1] },
            3 => Sizes { grid, group },
            _ => return Err(bad),
        };
        if sizes.grid.contains(&0) || sizes.group.contains(&0) {
            return Err(bad);
        }
        match product(sizes.group) {
            items if items > u128::from(MAX_GROUP) => {
                Err(LaunchError::GroupTooLarge(u64::try_from(items).unwrap_or(u64::MAX)))
            }
            _ => Ok(sizes),
        }
    }

    /// Work-groups in each dimension.
    pub fn groups(&self) -> [u32; 3] {
        std::array::from_fn(|axis| self.grid[axis].div_ceil(self.group[axis].max(1)))
    }

    /// The work-group's own size.
    fn of(&self, at: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|axis| {
            let start = u64::from(at[axis]) * u64::from(self.group[axis]);
            let left = u64::from(self.grid[axis]).saturating_sub(start);
            u32::try_from(left).unwrap_or(u32::MAX).min(self.group[axis])
        })
    }
}

fn product(sizes: [u32; 3]) -> u128 {
    sizes.into_iter().map(u128::from).product()
}

/// Scratch memory of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Its address.
    pub base: u64,
    /// Bytes of each wave.
    pub wave_bytes: u32,
    /// Waves for which there is room.
    pub waves: u32,
}

/// An engine's own state of work-groups.
pub trait Watcher: fmt::Debug + Send + Sync {
    /// That of a work-group which begins: its id, its waves, and their slots of scratch.
    fn begin(self: Arc<Self>, launch: &Launch, id: [u32; 3], waves: u32, slots: &[u32]) -> Box<dyn Any + Send + Sync>;

    /// No work-group of the launch runs any more.
    fn end(&self) {}
}

/// A launch: all that its work-groups have in common.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program.
    pub program: Program,
    pub sizes: Sizes,
    /// Index of the first work-group in each dimension.
    pub start: [u32; 3],
    /// User SGPRs.
    pub user: Vec<u32>,
    /// LDS of a work-group in bytes.
    pub lds: u32,
    /// Scratch, if the program uses any.
    pub scratch: Option<Scratch>,
    /// Where FLAT finds LDS and scratch.
    pub apertures: Apertures,
    /// Makes the state of its work-groups for an engine with checks.
    pub watch: Option<Arc<dyn Watcher>>,
}

impl Launch {
    /// Checks what firmware checks.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub fn check(&self) -> Result<(), LaunchError> {
        if u64::from(self.lds) > MAX_LDS {
            return Err(LaunchError::Lds(self.lds.into()));
        }
        if self.program.acc > self.program.vgprs || self.user.len() > 32 {
            return Err(LaunchError::Code("the registers overlap"));
        }
        let waves = self.waves(self.sizes.group);
        if !self.program.fits(waves) {
            return Err(LaunchError::Registers { waves, vgprs: self.program.vgprs.into() });
        }
        match self.scratch {
            Some(scratch) if scratch.waves < waves => Err(LaunchError::Code("less scratch than a work-group needs")),
            _ => Ok(()),
        }
    }

    /// How many work-groups there are.
    pub fn groups(&self) -> u64 {
        // Three numbers of 32 bits may have a product that no machine ever counts to.
        u64::try_from(product(self.sizes.groups())).unwrap_or(u64::MAX)
    }

    /// Waves of a work-group of this size.
    fn waves(&self, size: [u32; 3]) -> u32 {
        u32::try_from(product(size).div_ceil(u128::from(self.program.lanes))).unwrap_or(u32::MAX)
    }

    /// Waves of the largest work-group.
    pub fn group_waves(&self) -> u32 {
        self.waves(self.sizes.group)
    }

    /// Work-group number `number`, with scratch for its waves at `slots`, on the compute unit at
    /// `place`.
    pub fn workgroup(&self, number: u64, slots: Vec<u32>, place: Place) -> Workgroup {
        let (id, size) = self.placed(number);
        let waves = self.waves(size);
        let watch = Watched(self.watch.as_ref().map(|watch| watch.clone().begin(self, id, waves, &slots)));
        let lds = Lds::new(usize::try_from(lds_given(self.program.target, self.lds)).unwrap_or(0));
        let group = Group { lds, apertures: self.apertures, watch, place };
        let mut states: Vec<Wave> = (0..waves).map(|_| self.wave()).collect();
        for (index, wave) in (0..waves).zip(&mut states) {
            let slot = slots.get(usize::try_from(index).unwrap_or(usize::MAX)).copied().unwrap_or(0);
            self.begin(wave, (id, size), (index, waves), slot);
        }
        Workgroup::new(id, group, states, slots)
    }

    /// Makes a work-group that has ended the one of this number, which has not more waves. Its old
    /// slots are exchanged for the new ones. Allocates nothing.
    pub(super) fn replace(&self, group: &mut Workgroup, number: u64, slots: &mut Vec<u32>, place: Place) {
        let (id, size) = self.placed(number);
        let waves = self.waves(size);
        group.restart(id, place, (slots, usize::try_from(waves).unwrap_or(0)), |index, wave, slot| {
            wave.rows.iter_mut().for_each(|row| *row = Row::ZERO);
            self.begin(wave, (id, size), (u32::try_from(index).unwrap_or(u32::MAX), waves), slot);
        });
    }

    /// The id and the size of a work-group.
    fn placed(&self, number: u64) -> ([u32; 3], [u32; 3]) {
        let groups = self.sizes.groups().map(u64::from);
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let (x, rest) = (number % groups[0], number / groups[0]);
        let at = [x, rest % groups[1], rest / groups[1]].map(narrow);
        let size = self.sizes.of(at);
        ([0, 1, 2].map(|axis: usize| self.start[axis].wrapping_add(at[axis])), size)
    }

    /// A wave that has not begun, whose rows are zeros.
    fn wave(&self) -> Wave {
        let program = &self.program;
        Wave {
            target: program.target,
            lanes: program.lanes,
            pc: program.entry,
            scalar: [0; 128],
            scc: false,
            mode: program.mode,
            rows: spare::rows(program.vgprs.into()),
            acc: program.acc,
            sgprs: program.sgprs,
            flat_scratch: 0,
            trapsts: 0,
            done: 0,
            index: 0,
        }
    }

    /// Begins wave `index` of `waves` of a work-group of this id and size, whose rows are zeros.
    fn begin(&self, wave: &mut Wave, (id, size): ([u32; 3], [u32; 3]), (index, waves): (u32, u32), slot: u32) {
        let program = &self.program;
        // In place: an array in a tuple would be made elsewhere, and copied.
        wave.scalar.fill(0);
        (wave.pc, wave.scc, wave.mode) = (program.entry, false, program.mode);
        (wave.flat_scratch, wave.trapsts, wave.done) = (0, 0, 0);
        wave.index = u16::try_from(index).unwrap_or(u16::MAX);
        let offset = self.scratch.map_or(0, |scratch| scratch.wave_bytes.wrapping_mul(slot));
        for (register, word) in wave.scalar.iter_mut().zip(&self.user) {
            *register = *word;
        }
        // Behind them, each word where it belongs: one copy of words that were just stored one by
        // one would wait for these stores.
        let mut behind = wave.scalar.iter_mut().skip(program.user_sgprs.into());
        let mut push = |word: u32| {
            if let Some(register) = behind.next() {
                *register = word;
            }
        };
        id.iter().zip(program.group_ids).filter(|(_, wanted)| *wanted).for_each(|(id, _)| push(*id));
        if program.group_info {
            push(u32::from(index == 0) << 31 | waves & 0x3f);
        }
        match self.scratch {
            Some(scratch) if program.target.has_architected_scratch() => {
                wave.flat_scratch = scratch.base.wrapping_add(offset.into());
            }
            _ if program.scratch && !program.target.has_architected_scratch() => push(offset),
            _ => {}
        }
        self.item_ids(wave, size, index);
    }

    /// EXEC and the work-item ids of wave `index` of a work-group of this size.
    fn item_ids(&self, wave: &mut Wave, size: [u32; 3], index: u32) {
        let lanes = u32::from(self.program.lanes);
        let items = u32::try_from(product(size)).unwrap_or(u32::MAX);
        let first = index * lanes;
        let count = items.saturating_sub(first).min(lanes);
        let exec = if count == 64 { u64::MAX } else { (1u64 << count) - 1 };
        let kept = usize::from(self.program.item_ids);
        let packs = self.program.target.packs_work_item_ids();
        // By rows, without a branch per lane: an empty kernel's launch is little more than this.
        let count = usize::try_from(count).unwrap_or(0);
        let [width, height, _] = size;
        if width >= items {
            // One dimension: the others are zero, as the rows are.
            if let Some(row) = wave.rows.first_mut().filter(|_| kept > 0) {
                row.0.iter_mut().take(count).zip(first..).for_each(|(slot, id)| *slot = id);
            }
        } else {
            // Line by line of the work-group: along it one id goes up, the others stay.
            let (mut x, mut y, mut z) = (first % width, first / width % height, first / width / height);
            let mut lane = 0;
            while lane < count.min(LANES) {
                let run = usize::try_from(width - x).unwrap_or(LANES).min(count - lane);
                let lanes = lane..lane + run;
                let ids = [x, y, z];
                if packs {
                    let beside = (1..kept.min(3)).fold(0, |word, axis| word | ids[axis] << (10 * axis));
                    if let Some(row) = wave.rows.first_mut().filter(|_| kept > 0) {
                        row.0[lanes].iter_mut().zip(x..).for_each(|(slot, x)| *slot = beside | x);
                    }
                } else {
                    for (axis, row) in wave.rows.iter_mut().enumerate().take(kept.min(3)) {
                        if axis == 0 {
                            row.0[lanes.clone()].iter_mut().zip(x..).for_each(|(slot, x)| *slot = x);
                        } else {
                            row.0[lanes.clone()].fill(ids[axis]);
                        }
                    }
                }
                (x, y) = (0, y + 1);
                if y == height {
                    (y, z) = (0, z + 1);
                }
                lane += run;
            }
        }
        wave.set_pair(Operand::EXEC, exec);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::workgroup::tests::{Toy, Void};
    use super::super::workgroup::Turn;
    use super::*;
    use crate::exit::Exit;
    use vkfd_isa::Target;

    /// A launch on `target` that asks for everything.
    pub(crate) fn launch(target: Target, grid: [u32; 3], group: [u32; 3]) -> Launch {
        let rsrc2 = 1 | 2 << 1 | 0xf << 7 | 2 << 11;
        let program = Program::new(target, 0x100, [0, rsrc2, 0], target.is_rdna()).unwrap();
        Launch {
            program,
            sizes: Sizes::new(3, grid, group).unwrap(),
            start: [0; 3],
            user: vec![0xaaaa, 0xbbbb],
            lds: 0,
            scratch: Some(Scratch { base: 0x10_0000, wave_bytes: 1024, waves: 32 }),
            apertures: Apertures { shared: 1 << 16, private: 2 << 16 },
            watch: None,
        }
    }

    #[test]
    fn a_partial_group_has_what_remains() {
        let launch = launch(Target::Gfx900, [70, 3, 5], [32, 2, 2]);
        assert_eq!((launch.groups(), launch.group_waves()), (3 * 2 * 3, 2));
        let corner = launch.workgroup(17, vec![3, 5], Place::default());
        let [wave] = corner.waves() else { panic!() };
        assert_eq!(wave.exec(), 0x3f, "six columns, a row, a layer");
        assert_eq!(wave.rows[0].0[..7], [0, 1, 2, 3, 4, 5, 0]);
        assert_eq!(wave.scalar[..8], [0xaaaa, 0xbbbb, 2, 1, 2, 1 << 31 | 1, 3 * 1024, 0]);
        let first = launch.workgroup(0, vec![0, 1], Place::default());
        let [_, second] = first.waves() else { panic!() };
        assert_eq!(second.scalar[5], 2);
        let lane = |row: usize| second.rows[row].0[33];
        assert_eq!([lane(0), lane(1), lane(2)], [1, 1, 1]);
        assert_eq!(second.exec(), u64::MAX);
    }

    #[test]
    fn a_successor_begins_as_a_new_group() {
        let launch = Launch { lds: 512, ..launch(Target::Gfx900, [70, 5, 3], [32, 4, 2]) };
        let place = |number: u64| Place { engine: 1, array: 0, unit: u32::try_from(number).unwrap() };
        let whole = |number: u64| launch.workgroup(number, vec![7, 8, 9, 10], place(number));
        let mut group = whole(0);
        group.may_restart();
        for number in [1, 2, 3, 5, 11, 4, 0] {
            // The one before has left its state.
            let mut spoil = Toy(|wave: &mut Wave, group: &mut Group| {
                wave.rows.iter_mut().for_each(|row| row.0.fill(99));
                (wave.pc, wave.scalar, wave.scc, wave.done, wave.trapsts) = (5, [77; 128], true, 3, 4);
                (wave.flat_scratch, wave.mode.0) = (6, 0);
                group.lds.fill(1);
                Exit::End
            });
            assert_eq!(group.run(&mut spoil, &mut Void::default(), 1), Turn::Done);
            launch.replace(&mut group, number, &mut vec![7, 8, 9, 10], place(number));
            let mut new = whole(number);
            assert_eq!((group.id, group.waves()), (new.id, new.waves()), "{number}");
            let seen = [&mut group, &mut new].map(|group| {
                let mut seen = Vec::new();
                let mut look = Toy(|wave: &mut Wave, group: &mut Group| {
                    seen.push((wave.clone(), group.lds.clone(), group.place));
                    Exit::End
                });
                assert_eq!(group.run(&mut look, &mut Void::default(), 1), Turn::Done);
                seen
            });
            assert_eq!(seen[0], seen[1], "{number}");
        }
    }

    #[test]
    fn ids_are_packed_where_the_target_packs_them() {
        let launch = launch(Target::Gfx1100, [8, 8, 8], [4, 4, 4]);
        let group = launch.workgroup(7, vec![2, 3], Place::default());
        let [_, second] = group.waves() else { panic!() };
        assert_eq!((second.rows[0].0[31], second.rows[1].0[31]), (3 | 3 << 10 | 3 << 20, 0));
        assert_eq!(second.flat_scratch, 0x10_0000 + 3 * 1024);
        assert_eq!(second.scalar[2..7], [1, 1, 1, 2, 0], "no scratch offset in a register");
        assert_eq!((second.exec(), second.lanes), (0xffff_ffff, 32));
    }

    #[test]
    fn what_firmware_refuses_is_refused() {
        assert!(matches!(Sizes::new(0, [1; 3], [1; 3]), Err(LaunchError::Dimensions { .. })));
        assert!(matches!(Sizes::new(1, [0, 1, 1], [1; 3]), Err(LaunchError::Dimensions { .. })));
        assert!(matches!(Sizes::new(2, [1; 3], [1, 0, 1]), Err(LaunchError::Dimensions { .. })));
        assert_eq!(Sizes::new(3, [1; 3], [1024, 2, 1]), Err(LaunchError::GroupTooLarge(2048)));
        assert!(Sizes::new(1, [9, 0, 0], [4, 0, 0]).is_ok());
        let mut big = launch(Target::Gfx900, [1024, 1, 1], [1024, 1, 1]);
        assert_eq!(big.check(), Ok(()));
        big.program.vgprs = 68;
        assert_eq!(big.check(), Err(LaunchError::Registers { waves: 16, vgprs: 68 }));
        big.program.vgprs = 64;
        big.lds = 65537;
        assert_eq!(big.check(), Err(LaunchError::Lds(65537)));
        big.lds = 65536;
        big.scratch = Some(Scratch { base: 0, wave_bytes: 1024, waves: 15 });
        assert!(matches!(big.check(), Err(LaunchError::Code(_))));
    }
}
