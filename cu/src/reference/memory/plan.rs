// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the bytes of an access lie, and getting at them.
//!
//! A lane's access is up to sixteen bytes, each with a place of its own: swizzled buffers and
//! scratch are not contiguous, and an unaligned access may cross a page. Bytes that go on in step
//! are one run, accessed by the largest words that its address is aligned to, so that an aligned
//! word is never torn.

use crate::exit::{Exit, Miss};
use crate::few::Few;
use crate::group::Group;
use crate::world::{Access, Reach, Spot, Touch, World};
use vkfd_raw as raw;

/// Where a byte lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At a GPU virtual address.
    Memory(u64),
    /// In LDS. Beyond its end: as `Nowhere`.
    Lds(u32),
    /// Out of range: reads as zero, writes are dropped.
    Nowhere,
}

impl Place {
    /// Has the world know that a lane reaches bytes here; `at` and how many they are in its data.
    pub(super) fn reached<W: World>(self, world: &mut W, lane: usize, (at, len): (usize, usize), touch: Touch) {
        let spot = match self {
            Place::Memory(va) => Spot::Memory(va),
            Place::Lds(at) => Spot::Lds(at),
            Place::Nowhere => return,
        };
        world.reaches(Reach { lane: lane as u8, at: at as u8, len: len as u8, touch, spot });
    }

    /// The place `bytes` further on.
    pub(super) fn plus(self, bytes: usize) -> Place {
        match self {
            Place::Memory(va) => Place::Memory(va.wrapping_add(bytes as u64)),
            Place::Lds(at) => Place::Lds(at.wrapping_add(bytes as u32)),
            Place::Nowhere => Place::Nowhere,
        }
    }
}

impl Touch {
    fn of(access: Access) -> Touch {
        match access {
            Access::Write => Touch::Write,
            Access::Read | Access::Execute => Touch::Read,
        }
    }
}

/// An active lane and where its bytes lie.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    pub(super) lane: usize,
    pub(super) places: [Place; 16],
}

impl Lane {
    /// Contiguous bytes.
    pub(super) fn contiguous(lane: usize, start: Place) -> Lane {
        Lane { lane, places: std::array::from_fn(|byte| start.plus(byte)) }
    }
}

/// What a run is on the host.
#[derive(Clone, Copy)]
enum Host {
    Memory { va: u64, ptr: *mut u8 },
    Lds(usize),
}

/// Bytes `at..at + len` of the lane with an index.
#[derive(Clone, Copy)]
struct Run {
    lane: usize,
    at: usize,
    len: usize,
    host: Host,
}

/// A translated access.
pub(super) struct Plan {
    /// At most one for each byte.
    runs: Few<Run, { 64 * 16 }>,
    access: Access,
}

/// The miss of an address that translated, but whose memory had gone.
pub(super) fn lost(va: u64, access: Access) -> Exit {
    Exit::Miss(Miss { va, access, lost: true, reason: 0 })
}

impl Plan {
    /// Translates the first `bytes` of every lane.
    pub(super) fn new<W: World>(world: &mut W, lanes: &[Lane], bytes: usize, access: Access) -> Result<Plan, Exit> {
        let mut runs = Few::new();
        for (index, lane) in lanes.iter().enumerate() {
            let mut at = 0;
            while let Some(&place) = lane.places.get(at).filter(|_| at < bytes) {
                let follows = |&end: &usize| end == bytes || lane.places.get(end) != Some(&place.plus(end - at));
                let end = (at + 1..=bytes).find(follows).unwrap_or(bytes);
                place.reached(world, lane.lane, (at, end - at), Touch::of(access));
                match place {
                    Place::Memory(va) => pieces(world, va, end - at, access, |from, va, ptr, len| {
                        runs.push(Run { lane: index, at: at + from, len, host: Host::Memory { va, ptr } });
                    })?,
                    Place::Lds(lds) => {
                        runs.push(Run { lane: index, at, len: end - at, host: Host::Lds(lds as usize) });
                    }
                    Place::Nowhere => {}
                }
                at = end;
            }
        }
        world.moved(bytes as u64 * lanes.len() as u64);
        if access == Access::Write && runs.iter().any(|run| matches!(run.host, Host::Memory { .. })) {
            world.wrote();
        }
        Ok(Plan { runs, access })
    }

    /// The bytes of every lane; zeros where there is nothing.
    pub(super) fn read(&self, group: &Group, lanes: usize) -> Result<Few<[u8; 16]>, Exit> {
        let mut data = Few::filled([0; 16], lanes);
        for run in self.runs.iter() {
            let Some(bytes) = data.get_mut(run.lane).and_then(|lane| lane.get_mut(run.at..run.at + run.len)) else {
                continue;
            };
            match run.host {
                Host::Memory { va, ptr } => read(ptr, bytes).map_err(|_| lost(va, self.access))?,
                Host::Lds(at) => {
                    for (index, byte) in bytes.iter_mut().enumerate() {
                        *byte = group.lds.get(at + index).copied().unwrap_or(0);
                    }
                }
            }
        }
        Ok(data)
    }

    /// Writes the bytes of every lane, in the order of the lanes. A lost page leaves some written:
    /// writing again is the same.
    pub(super) fn write(&self, group: &mut Group, data: &[[u8; 16]]) -> Result<(), Exit> {
        for run in self.runs.iter() {
            let Some(bytes) = data.get(run.lane).and_then(|lane| lane.get(run.at..run.at + run.len)) else {
                continue;
            };
            match run.host {
                Host::Memory { va, ptr } => write(ptr, bytes).map_err(|_| lost(va, self.access))?,
                Host::Lds(at) => {
                    for (index, byte) in bytes.iter().enumerate() {
                        if let Some(slot) = group.lds.get_mut(at + index) {
                            *slot = *byte;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Translates `len` bytes from `va` on and calls `each` with the offset, address, host pointer and
/// length of each piece.
pub(super) fn pieces<W: World>(
    world: &mut W,
    va: u64,
    len: usize,
    access: Access,
    mut each: impl FnMut(usize, u64, *mut u8, usize),
) -> Result<(), Exit> {
    let mut done = 0;
    while done < len {
        let at = va.wrapping_add(done as u64);
        let span = world.translate(at, access).map_err(Exit::Miss)?;
        let step = span.len.clamp(1, len - done);
        each(done, at, span.ptr, step);
        done += step;
    }
    Ok(())
}

/// The largest word for the next access: a power of two that divides the address and does not
/// exceed `left`.
fn step(ptr: *const u8, left: usize) -> usize {
    [8, 4, 2].into_iter().find(|size| left >= *size && ptr.addr() % size == 0).unwrap_or(1)
}

/// Reads bytes of a span, by aligned words.
pub(super) fn read(ptr: *const u8, bytes: &mut [u8]) -> Result<(), raw::Faulted> {
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let from = ptr.wrapping_add(done);
        let size = step(from, rest.len());
        // SAFETY: within a span while the gate is held, aligned as `step` checked; no reference to
        // it exists (World).
        let value = unsafe {
            match size {
                8 => raw::load_u64(from.cast())?,
                4 => raw::load_u32(from.cast())?.into(),
                2 => raw::load_u16(from.cast())?.into(),
                _ => raw::load_u8(from)?.into(),
            }
        };
        for (slot, byte) in rest.iter_mut().zip(value.to_le_bytes()).take(size) {
            *slot = byte;
        }
        done += size;
    }
    Ok(())
}

/// Writes bytes to a span, by aligned words.
pub(super) fn write(ptr: *mut u8, bytes: &[u8]) -> Result<(), raw::Faulted> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        let to = ptr.wrapping_add(done);
        let size = step(to, rest.len());
        let mut value = [0; 8];
        for (slot, byte) in value.iter_mut().zip(rest).take(size) {
            *slot = *byte;
        }
        let value = u64::from_le_bytes(value);
        // SAFETY: as in `read`.
        unsafe {
            match size {
                8 => raw::store_u64(to.cast(), value)?,
                4 => raw::store_u32(to.cast(), value as u32)?,
                2 => raw::store_u16(to.cast(), value as u16)?,
                _ => raw::store_u8(to, value as u8)?,
            }
        }
        done += size;
    }
    Ok(())
}
