// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Packets of the driver's own rings.
//!
//! One thread, the firmware's, works off all of these rings in turn, so that none waits for another
//! forever. A packet that waits is tried again later. It reads memory through views of the GPU's
//! VMIDs and takes the device's lock for registers alone.

pub(crate) mod pm4;
pub(crate) mod sdma;

use crate::registers::file::halves;
use crate::ring::Ring;
use crate::state::Shared;
use std::collections::BTreeMap;
use std::sync::Arc;
use vkfd_gpu::{clock, GpuError, View, ViewError, Vmid};

/// Packets of a ring in a row, before the next ring has its turn.
const TURN: u32 = 256;
/// Words of a packet that are looked at in one piece.
pub(crate) const BODY: usize = 16;
/// Bytes that a copy moves in one piece.
const PIECE: usize = 64 << 10;

/// Why a ring does not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PacketError {
    /// A packet that is malformed, unknown, or not what this device does.
    #[error("{0}")]
    Bad(String),
    /// Memory that is not there.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A queue, or a view, that the GPU does not give.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// What has become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is done, and so long.
    Done(u64),
    /// It waits; it is tried again.
    Wait,
    /// Nothing more of the ring has been submitted.
    Empty,
}

/// The words of a packet, as far as they have been read.
pub(crate) struct Words([u32; BODY]);

impl Words {
    pub(crate) fn new(words: [u32; BODY]) -> Self {
        Self(words)
    }

    /// Word `index`; 0 beyond those that were read.
    pub(crate) fn get(&self, index: usize) -> u32 {
        self.0.get(index).copied().unwrap_or(0)
    }

    /// Two words as one number.
    pub(crate) fn wide(&self, index: usize) -> u64 {
        u64::from(self.get(index)) | u64::from(self.get(index + 1)) << 32
    }
}

/// The packet processors.
pub(crate) struct Processor {
    pub(crate) shared: Arc<Shared>,
    views: BTreeMap<u32, View>,
    pub(crate) scheduler: crate::queues::scheduler::Scheduler,
    piece: Vec<u8>,
}

impl Processor {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, views: BTreeMap::new(), scheduler: Default::default(), piece: vec![0; PIECE] }
    }

    /// The memory of a VMID.
    pub(crate) fn view(&mut self, vmid: Vmid) -> Result<&mut View, PacketError> {
        use std::collections::btree_map::Entry;
        match self.views.entry(vmid.0) {
            Entry::Occupied(view) => Ok(view.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(self.shared.gpu.view(vmid)?)),
        }
    }

    pub(crate) fn load(&mut self, vmid: Vmid, va: u64) -> Result<u32, PacketError> {
        Ok(self.view(vmid)?.load_u32(va)?)
    }

    pub(crate) fn store(&mut self, vmid: Vmid, va: u64, value: u32) -> Result<(), PacketError> {
        Ok(self.view(vmid)?.store_u32(va, value)?)
    }

    pub(crate) fn store_wide(&mut self, vmid: Vmid, va: u64, value: u64) -> Result<(), PacketError> {
        Ok(self.view(vmid)?.store_u64(va, value)?)
    }

    /// Writes words, aligned pairs as a whole: they may be entries of a page table in use.
    pub(crate) fn store_words(&mut self, vmid: Vmid, mut va: u64, words: &[u32]) -> Result<(), PacketError> {
        let view = self.view(vmid)?;
        let mut rest = words;
        while let Some((&low, after)) = rest.split_first() {
            match after.split_first().filter(|_| va % 8 == 0) {
                Some((&high, after)) => {
                    view.store_u64(va, u64::from(low) | u64::from(high) << 32)?;
                    (va, rest) = (va.wrapping_add(8), after);
                }
                None => {
                    view.store_u32(va, low)?;
                    (va, rest) = (va.wrapping_add(4), after);
                }
            }
        }
        Ok(())
    }

    /// Writes the time.
    pub(crate) fn store_clock(&mut self, vmid: Vmid, va: u64) -> Result<(), PacketError> {
        self.store_wide(vmid, va, clock())
    }

    pub(crate) fn read_register(&self, at: u32) -> u32 {
        self.shared.read_register(&mut self.shared.lock(), at)
    }

    pub(crate) fn write_register(&self, at: u32, value: u32) {
        self.shared.write_register(&mut self.shared.lock(), at, value);
    }

    /// Counts a packet.
    pub(crate) fn count(&self, name: &str) {
        let mut state = self.shared.lock();
        match state.packets.get_mut(name) {
            Some(count) => *count += 1,
            None => {
                state.packets.insert(name.into(), 1);
            }
        }
    }

    /// The packet's first words.
    pub(crate) fn words(&mut self, ring: &Ring) -> Result<Words, PacketError> {
        let mut words = [0; BODY];
        for (index, word) in (0..ring.available()).zip(&mut words) {
            let (vmid, va) = ring.word(index);
            *word = self.load(vmid, va)?;
        }
        Ok(Words(words))
    }

    /// Word `index` of the packet.
    pub(crate) fn word(&mut self, ring: &Ring, index: u64) -> Result<u32, PacketError> {
        let (vmid, va) = ring.word(index);
        self.load(vmid, va)
    }

    /// Copies memory within a VMID, in ascending order.
    pub(crate) fn copy(&mut self, vmid: Vmid, dst: u64, src: u64, bytes: u64) -> Result<(), PacketError> {
        let mut piece = std::mem::take(&mut self.piece);
        let mut copied = Ok(());
        let mut done = 0;
        while done < bytes && copied.is_ok() {
            let length = usize::try_from(bytes - done).map_or(piece.len(), |left| left.min(piece.len()));
            let part = piece.get_mut(..length).unwrap_or_default();
            copied = self.view(vmid).and_then(|view| {
                view.read(src.wrapping_add(done), part)?;
                Ok(view.write(dst.wrapping_add(done), part)?)
            });
            done += length as u64;
        }
        self.piece = piece;
        copied
    }

    /// Works off a ring for a turn. Whether it has more to do at once.
    pub(crate) fn turn(&mut self, ring: &mut Ring) -> Result<bool, PacketError> {
        for _ in 0..TURN {
            if ring.buffer.is_none() && ring.available() > ring.words {
                let message = format!("{} words are said to be in a ring of {}", ring.available(), ring.words);
                return Err(PacketError::Bad(message));
            }
            let step = match ring.id {
                _ if ring.available() == 0 => Step::Empty,
                crate::ring::RingId::Compute(hqd) => self.pm4(ring, hqd)?,
                crate::ring::RingId::Copy(engine) => self.sdma(ring, engine)?,
            };
            match step {
                Step::Done(words) => {
                    ring.advance(words);
                    if ring.buffer.is_none() {
                        self.report(ring)?;
                    }
                }
                Step::Wait => return Ok(false),
                Step::Empty => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Tells the driver how far a ring is.
    fn report(&mut self, ring: &Ring) -> Result<(), PacketError> {
        if ring.report == 0 {
            return Ok(());
        }
        match ring.id {
            crate::ring::RingId::Compute(_) => {
                let [place, _] = halves(ring.rptr & (ring.words - 1));
                self.store(ring.vmid, ring.report, place)
            }
            crate::ring::RingId::Copy(_) => self.store_wide(ring.vmid, ring.report & !7, ring.rptr * 4),
        }
    }
}

/// Whether all of a packet is there: a ring's may come later, a buffer's would be beyond its end.
pub(crate) fn is_whole(ring: &Ring, words: u64) -> Result<bool, PacketError> {
    match ring.buffer {
        Some(_) if words > ring.available() => {
            Err(PacketError::Bad(format!("a packet of {words} words leaves its buffer")))
        }
        Some(_) => Ok(true),
        None if words > ring.words => {
            Err(PacketError::Bad(format!("a packet of {words} words in a ring of {}", ring.words)))
        }
        None => Ok(words <= ring.available()),
    }
}

/// Whether a packet that waits may go on; `None`: there is no such function.
pub(crate) fn holds(function: u32, value: u32, reference: u32) -> Option<bool> {
    Some(match function {
        0 => true,
        1 => value < reference,
        2 => value <= reference,
        3 => value == reference,
        4 => value != reference,
        5 => value >= reference,
        6 => value > reference,
        _ => return None,
    })
}
