// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A queue's port to memory: accesses by GPU virtual address.
//!
//! Every operation is a series of accesses (see [`vmid`](crate::state::vmid)), each of at most
//! [`CHUNK`] bytes. Between two accesses the VMID can be suspended, flushed, its tables changed, or
//! the queue removed; the operation then continues. Faults are settled between accesses too. A
//! retry fault waits for the driver's answer, and vanished host memory is reported to the host. In
//! both cases the address is translated again.

use crate::base::counters::count;
use crate::base::fault::{Access, FaultReason, PageFault};
use crate::base::lock::lock;
use crate::base::queue_error::{QueueError, Stop};
use crate::memory::bus::{BusError, HostSpan};
use crate::memory::pte::{Target, PAGE_BYTES};
use crate::memory::walk::{extend, walk_leaf, Translation};
use crate::raw::{self, Faulted};
use crate::state::control::{Control, Ring};
use crate::state::opening::Opening;
use crate::state::shared::Shared;
use crate::state::tlb::Tlb;
use crate::state::vmid::{Epoch, FaultOutcome, SlotClaim, VmidState};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;
use vkfd_sabotage::Switch;

/// Most bytes touched in one access: what suspending waits for.
pub(crate) const CHUNK: usize = 256 << 10;

/// Pieces of a copy that are translated before they are copied.
const PIECES: usize = 16;

/// Values of [`Switch::Panic`]: in a packet processor, in a kernel on its queue's own thread, in a
/// kernel on a worker.
const PANIC_IN_PACKET: u64 = 1;
pub(crate) const PANIC_IN_KERNEL: u64 = 2;
pub(crate) const PANIC_IN_WORKER: u64 = 3;

/// How often the same bytes may be lost in a row before the access faults.
const MAX_LOST: u32 = 1000;

/// Why an access did nothing.
enum Miss {
    Fault(FaultReason),
    Lost(Target),
}

/// One side of an access: an address and what to do there.
#[derive(Clone, Copy)]
struct Side {
    va: u64,
    access: Access,
}

impl Side {
    fn advance(self, bytes: u64) -> Side {
        Side { va: self.va.wrapping_add(bytes), ..self }
    }
}

#[derive(Clone, Copy)]
struct Place {
    span: HostSpan,
    target: Target,
}

/// What both translations of a copy cover.
#[derive(Clone, Copy)]
struct Piece {
    src: Place,
    dst: Place,
    /// Bytes of the copy up to its end.
    end: u64,
}

impl Piece {
    fn goes_on_in(&self, next: &Piece) -> bool {
        let follows = |a: &HostSpan, b: &HostSpan| a.ptr.wrapping_add(self.dst.span.len) == b.ptr;
        follows(&self.src.span, &next.src.span) && follows(&self.dst.span, &next.dst.span)
    }

    fn extend(&mut self, next: &Piece) {
        self.dst.span.len += next.dst.span.len;
        self.end = next.end;
    }

    fn copy(&self) -> Result<usize, Faulted> {
        let len = self.dst.span.len;
        // SAFETY: only within the access that located the piece, for which the bus and the VRAM
        // keep both spans; no reference to them exists.
        part(len, unsafe { raw::copy(self.dst.span.ptr, self.src.span.ptr, len) })
    }
}

/// Memory as one queue sees it, on one thread.
pub(crate) struct Port {
    pub(crate) shared: Arc<Shared>,
    pub(crate) control: Arc<Control>,
    slot: SlotClaim,
    tlb: Tlb,
    /// TLB hits and walks of the access under way; counted when it ends, because an atomic addition
    /// waits for the copies before it.
    hits: u64,
    walks: u64,
    pub(crate) opening: Opening,
}

impl Port {
    /// The port of a thread whose slot is `slot`.
    pub(crate) fn new(shared: Arc<Shared>, control: Arc<Control>, slot: SlotClaim) -> Port {
        let tlb = Tlb::new(shared.config.tlb_entries);
        slot.bind(control.vmid.0, control.id);
        Port { shared, control, slot, tlb, hits: 0, walks: 0, opening: Opening::default() }
    }

    /// The port is that of another queue from now on. What the TLB has stays good: epochs tell
    /// VMIDs apart.
    pub(crate) fn bind(&mut self, control: &Arc<Control>) {
        if !Arc::ptr_eq(&self.control, control) {
            self.slot.bind(control.vmid.0, control.id);
            self.control = control.clone();
        }
    }

    /// The queue's ring as it is now.
    pub(crate) fn ring(&self) -> Ring {
        *lock(&self.control.ring)
    }

    pub(crate) fn vmid(&self) -> &VmidState {
        self.shared.vmid_of(&self.control)
    }

    /// Whether the queue is being removed.
    pub(crate) fn check_removed(&self) -> Result<(), Stop> {
        if self.control.removed.load(SeqCst) {
            Err(Stop::Removed)
        } else {
            Ok(())
        }
    }

    /// Begins an access; waits while the VMID is suspended or the queue disabled.
    fn enter(&mut self) -> Result<Epoch, Stop> {
        loop {
            if let Some(epoch) = self.enter_within(None)? {
                return Ok(epoch);
            }
        }
    }

    /// Begins an access; waits while the VMID is suspended or the queue disabled, but no longer
    /// than `patience`.
    pub(crate) fn enter_within(&mut self, patience: Option<Duration>) -> Result<Option<Epoch>, Stop> {
        loop {
            if let Some(epoch) = self.try_enter()? {
                return Ok(Some(epoch));
            }
            let control = &self.control;
            let in_time = self.vmid().park_while_within(patience, || {
                let closed = self.vmid().open().is_none() || !control.enabled.load(SeqCst);
                closed && !control.removed.load(SeqCst)
            });
            if !in_time {
                return Ok(None);
            }
        }
    }

    /// Begins an access, if the VMID is not suspended and the queue not disabled.
    fn try_enter(&mut self) -> Result<Option<Epoch>, Stop> {
        self.check_removed()?;
        self.shared.bus.settle();
        self.slot.begin();
        let changes = self.vmid().changes();
        match self.vmid().open() {
            Some(epoch) if self.control.enabled.load(SeqCst) => {
                if self.shared.sabotage.has(Switch::AllocateInAccess) {
                    // More than the C library's cache of a thread.
                    drop(std::hint::black_box(vec![0u8; 64 << 10]));
                }
                if !self.shared.sabotage.has(Switch::KeptPages) {
                    self.opening.find((self.control.vmid.0, changes));
                }
                Ok(Some(epoch))
            }
            _ => {
                self.slot.end();
                Ok(None)
            }
        }
    }

    /// Whether the access under way is to end soon.
    pub(crate) fn wanted(&self) -> bool {
        self.slot.wanted()
    }

    /// Ends an access.
    pub(crate) fn leave(&mut self) {
        self.slot.end();
        for (tally, cell) in
            [(&mut self.hits, &self.shared.counters.tlb_hits), (&mut self.walks, &self.shared.counters.walks)]
        {
            if *tally != 0 {
                count(cell, std::mem::take(tally));
            }
        }
    }

    /// Ends the access that a panic left open, if one did.
    pub(crate) fn abandon(&mut self) {
        if self.shared.sabotage.has(Switch::OpenSlot) {
            self.slot.forget_access();
        } else {
            self.slot.close();
        }
        (self.hits, self.walks) = (0, 0);
        self.opening.forget();
    }

    /// Panics within an access, if that is provoked in this place.
    pub(crate) fn provoked(&self, place: u64) {
        assert!(self.shared.sabotage.value(Switch::Panic) != Some(place), "provoked");
    }

    fn translate(&mut self, epoch: Epoch, side: Side) -> Result<Translation, Miss> {
        // A cached entry that forbids the access is looked up again, so that granting a permission
        // needs no flush.
        if let Some(hit) = self.tlb.find(side.va, epoch).filter(|hit| hit.permits(side.access)) {
            self.hits += 1;
            return Ok(hit);
        }
        self.walks += 1;
        let walked = match self.tlb.table(side.va, epoch) {
            Some(table) => walk_leaf(&self.shared.fabric, table, side.va),
            None => self.vmid().walk(&self.shared.fabric, side.va),
        };
        let mut walked = walked.map_err(|miss| Miss::Fault(miss.reason))?;
        extend(&self.shared.fabric, &mut walked);
        if !walked.found.permits(side.access) {
            return Err(Miss::Fault(FaultReason::Permission));
        }
        self.tlb.insert(side.va, epoch, &walked);
        Ok(walked.found)
    }

    /// Host memory behind `side`, at most `max` bytes. Only within an access.
    fn locate(&mut self, epoch: Epoch, side: Side, max: usize) -> Result<Place, Miss> {
        let (target, max) = self.block(epoch, side, max)?;
        self.resolve(target, max, side.access)
    }

    /// What `side` translates to, and for how many bytes at most `max`. Only within an access.
    fn block(&mut self, epoch: Epoch, side: Side, max: usize) -> Result<(Target, usize), Miss> {
        let block = self.translate(epoch, side)?;
        let offset = side.va - block.base;
        let max = usize::try_from(block.span - offset).unwrap_or(CHUNK).min(max).min(CHUNK);
        Ok((block.target.offset(offset), max))
    }

    /// Host memory behind a target, at most `max` bytes. Only within an access.
    fn resolve(&self, target: Target, max: usize, access: Access) -> Result<Place, Miss> {
        let span = match target {
            Target::System(pa) => self.shared.bus.resolve(pa, max, access == Access::Write).map_err(|error| {
                Miss::Fault(match error {
                    BusError::Stale => FaultReason::Stale,
                    BusError::NoMemory => FaultReason::NoMemory,
                })
            }),
            Target::Vram(addr) => {
                let found = self.shared.fabric.resolve(addr).and_then(|(vram, offset)| vram.span(offset, max).ok());
                found.map(|(ptr, len)| HostSpan { ptr, len }).ok_or(Miss::Fault(FaultReason::NoMemory))
            }
        }?;
        if span.len == 0 {
            return Err(Miss::Fault(FaultReason::NoMemory));
        }
        Ok(Place { span: HostSpan { ptr: span.ptr, len: span.len.min(max) }, target })
    }

    /// Deals with a miss, outside the access. Returns when it makes sense to try again.
    fn settle(&mut self, side: Side, miss: &Miss, lost: &mut u32) -> Result<(), Stop> {
        self.opening.forget();
        match *miss {
            Miss::Fault(reason) => self.fault(side, reason),
            Miss::Lost(target) => {
                count(&self.shared.counters.lost, 1);
                *lost += 1;
                match target {
                    Target::System(pa) if *lost < MAX_LOST => {
                        self.shared.bus.lost(pa, side.access == Access::Write);
                        Ok(())
                    }
                    _ => self.fault(side, FaultReason::NoMemory),
                }
            }
        }
    }

    fn fault(&mut self, side: Side, reason: FaultReason) -> Result<(), Stop> {
        let recoverable = matches!(reason, FaultReason::NotPresent | FaultReason::Permission);
        let retry = recoverable && self.vmid().retry_faults() && !self.is_final(side.va);
        let (vmid, queue) = (self.control.vmid, self.control.id);
        let mut fault = PageFault { vmid, va: side.va, access: side.access, reason, retry, queue };
        if retry {
            count(&self.shared.counters.retries, 1);
            let waiter = self.slot.index();
            self.vmid().begin_fault(waiter, side.va);
            self.shared.irq.page_fault(fault);
            let control = self.control.clone();
            match self.vmid().wait_fault(waiter, || control.removed.load(SeqCst)) {
                Some(FaultOutcome::Retry) => return Ok(()),
                Some(FaultOutcome::Fail) => fault.retry = false,
                None => return Err(Stop::Removed),
            }
        }
        // Reported by the queue's thread when it halts: several may fault at once.
        Err(QueueError::Fault(fault).into())
    }

    /// Whether the tables say that faults at `va` are final.
    fn is_final(&self, va: u64) -> bool {
        self.vmid().walk(&self.shared.fabric, va).is_ok_and(|walked| walked.found.entry.is_final())
    }

    /// Host memory behind `va`, to the end of its page: more takes looking at each page that
    /// follows, and engines ask again for each. Only within an access.
    pub(crate) fn span(&mut self, epoch: Epoch, va: u64, access: Access) -> Result<HostSpan, FaultReason> {
        let page = usize::try_from(PAGE_BYTES - va % PAGE_BYTES).unwrap_or(CHUNK);
        match self.locate(epoch, Side { va, access }, page) {
            Ok(place) => Ok(place.span),
            Err(Miss::Fault(reason)) => Err(reason),
            Err(Miss::Lost(_)) => Err(FaultReason::NoMemory),
        }
    }

    /// Whether `va` is in the host's memory. Only within an access.
    pub(crate) fn is_host(&mut self, epoch: Epoch, va: u64) -> bool {
        let found = self.block(epoch, Side { va, access: Access::Read }, 1);
        matches!(found, Ok((Target::System(_), _)))
    }

    /// Deals with a fault, outside of any access.
    pub(crate) fn settle_fault(&mut self, va: u64, access: Access, reason: FaultReason) -> Result<(), Stop> {
        self.settle(Side { va, access }, &Miss::Fault(reason), &mut 0)
    }

    /// Deals with host memory that vanished under `va`, for the `lost`th time in a row, outside of
    /// any access.
    pub(crate) fn settle_lost(&mut self, va: u64, access: Access, lost: &mut u32) -> Result<(), Stop> {
        let side = Side { va, access };
        let epoch = self.enter()?;
        let found = self.block(epoch, side, 1);
        self.leave();
        let miss = match found {
            Ok((target, _)) => Miss::Lost(target),
            Err(miss) => miss,
        };
        self.settle(side, &miss, lost)
    }

    /// Runs `op` on the memory at `side` within an access, until it succeeds. An `op` that can do a
    /// part returns what it did.
    fn touch<R>(
        &mut self,
        side: Side,
        max: usize,
        mut op: impl FnMut(HostSpan) -> Result<R, Faulted>,
    ) -> Result<R, Stop> {
        let mut lost = 0;
        loop {
            let epoch = self.enter()?;
            self.provoked(PANIC_IN_PACKET);
            let outcome =
                self.locate(epoch, side, max).and_then(|place| op(place.span).map_err(|_| Miss::Lost(place.target)));
            self.leave();
            match outcome {
                Ok(done) => return Ok(done),
                Err(miss) => self.settle(side, &miss, &mut lost)?,
            }
        }
    }

    /// Reads `dst.len()` bytes at `va`.
    pub(crate) fn read(&mut self, va: u64, dst: &mut [u8]) -> Result<(), Stop> {
        self.read_as(va, dst, Access::Read)
    }

    /// Reads with the permission to execute.
    pub(crate) fn read_code(&mut self, va: u64, dst: &mut [u8]) -> Result<(), Stop> {
        self.read_as(va, dst, Access::Execute)
    }

    fn read_as(&mut self, va: u64, dst: &mut [u8], access: Access) -> Result<(), Stop> {
        let mut rest = dst;
        let mut side = Side { va, access };
        while !rest.is_empty() {
            let done = self.touch(side, rest.len(), |span| {
                // SAFETY: the bus and the VRAM keep the span until the access ends; `rest` is ours
                // and long enough.
                part(span.len, unsafe { raw::copy(rest.as_mut_ptr(), span.ptr, span.len) })
            })?;
            count(&self.shared.counters.bytes_accessed, done as u64);
            rest = rest.get_mut(done..).unwrap_or_default();
            side = side.advance(done as u64);
        }
        Ok(())
    }

    /// Reads `dst.len()` bytes at `va` if they are there; never faults. Whether they are.
    pub(crate) fn peek(&mut self, va: u64, dst: &mut [u8]) -> Result<bool, Stop> {
        let mut rest = dst;
        let mut side = Side { va, access: Access::Read };
        while !rest.is_empty() {
            let done = self.try_touch(side, rest.len(), |span| {
                // SAFETY: as in `read_as`.
                part(span.len, unsafe { raw::copy(rest.as_mut_ptr(), span.ptr, span.len) })
            })?;
            let Some(done) = done else { return Ok(false) };
            rest = rest.get_mut(done..).unwrap_or_default();
            side = side.advance(done as u64);
        }
        Ok(true)
    }

    /// Stores a word at `va` if that is possible; never faults. Whether it was.
    pub(crate) fn poke_u64(&mut self, va: u64, value: u64) -> Result<bool, Stop> {
        if va % 8 != 0 {
            return Ok(false);
        }
        let side = Side { va, access: Access::Write };
        // SAFETY: as in `load_u32`.
        let stored = self.try_touch(side, 8, |span| unsafe { raw::store_u64(span.ptr.cast(), value) })?;
        Ok(stored.is_some())
    }

    /// Writes `src` at `va` if that is possible; never faults. Whether all of it was written. Words
    /// that are aligned are written as a whole.
    pub(crate) fn poke(&mut self, va: u64, src: &[u8]) -> Result<bool, Stop> {
        let mut rest = src;
        let mut side = Side { va, access: Access::Write };
        while !rest.is_empty() {
            let word = <[u8; 8]>::try_from(rest.get(..8).unwrap_or_default()).ok().filter(|_| side.va % 8 == 0);
            let half = <[u8; 4]>::try_from(rest.get(..4).unwrap_or_default()).ok().filter(|_| side.va % 4 == 0);
            let max = if word.is_some() && rest.len() == 8 { 8 } else { rest.len() };
            let done = self.try_touch(side, max, |span| match (word, half) {
                (Some(word), _) if max == 8 => {
                    // SAFETY: aligned and within the span of the access: a page is whole words.
                    unsafe { raw::store_u64(span.ptr.cast(), u64::from_le_bytes(word)) }.map(|()| 8)
                }
                (_, Some(half)) if max == 4 => {
                    // SAFETY: as above.
                    unsafe { raw::store_u32(span.ptr.cast(), u32::from_le_bytes(half)) }.map(|()| 4)
                }
                // SAFETY: the bus and the VRAM keep the span until the access ends; no reference to
                // it exists.
                _ => part(span.len, unsafe { raw::copy(span.ptr, rest.as_ptr(), span.len) }),
            })?;
            let Some(done) = done else { return Ok(false) };
            rest = rest.get(done..).unwrap_or_default();
            side = side.advance(done as u64);
        }
        Ok(true)
    }

    /// [`Port::touch`] for an access that need not succeed.
    fn try_touch<R>(
        &mut self,
        side: Side,
        max: usize,
        mut op: impl FnMut(HostSpan) -> Result<R, Faulted>,
    ) -> Result<Option<R>, Stop> {
        let epoch = self.enter()?;
        let outcome = self.locate(epoch, side, max).ok().and_then(|place| op(place.span).ok());
        self.leave();
        Ok(outcome)
    }

    /// Writes `src` at `va`.
    pub(crate) fn write(&mut self, va: u64, src: &[u8]) -> Result<(), Stop> {
        let mut rest = src;
        let mut side = Side { va, access: Access::Write };
        while !rest.is_empty() {
            let done = self.touch(side, rest.len(), |span| {
                // SAFETY: the bus and the VRAM keep the span until the access ends; no reference to
                // it exists.
                part(span.len, unsafe { raw::copy(span.ptr, rest.as_ptr(), span.len) })
            })?;
            count(&self.shared.counters.bytes_accessed, done as u64);
            rest = rest.get(done..).unwrap_or_default();
            side = side.advance(done as u64);
        }
        self.written(va, src.len() as u64);
        Ok(())
    }

    /// Bytes that a packet has written, for checks. Outside of an access.
    fn written(&self, va: u64, bytes: u64) {
        if let Some(checking) = &self.shared.config.checking {
            checking.ledger.written(va, bytes);
        }
    }

    /// Copies `len` bytes from `src` to `dst`, directly. The result of an overlap with `dst` above
    /// `src` is unspecified.
    pub(crate) fn copy(&mut self, dst: u64, src: u64, len: u64) -> Result<(), Stop> {
        let mut from = Side { va: src, access: Access::Read };
        let mut to = Side { va: dst, access: Access::Write };
        let mut left = len;
        if self.shared.sabotage.has(Switch::ShortCopy) {
            left = left.saturating_sub(1);
        }
        let mut lost = 0;
        while left > 0 {
            let chunk = left.min(CHUNK as u64);
            let epoch = self.enter()?;
            let mut pieces = [None; PIECES];
            let missing = self.pieces(epoch, to, from, chunk, &mut pieces);
            let mut done = 0;
            let mut miss = missing.filter(|_| pieces[0].is_none());
            for piece in pieces.iter().flatten() {
                match piece.copy() {
                    Ok(bytes) => done += bytes as u64,
                    Err(fault) if fault.write => miss = Some((to.advance(done), Miss::Lost(piece.dst.target))),
                    Err(_) => miss = Some((from.advance(done), Miss::Lost(piece.src.target))),
                }
                if done != piece.end {
                    // Cut short: why shows when the rest is tried.
                    break;
                }
            }
            self.leave();
            if done > 0 {
                lost = 0;
                count(&self.shared.counters.bytes_copied, done);
                left -= done;
                (to, from) = (to.advance(done), from.advance(done));
            }
            if let Some((side, miss)) = miss {
                self.settle(side, &miss, &mut lost)?;
            }
        }
        self.written(dst, len);
        Ok(())
    }

    /// Finds up to `bytes` of a copy, piece by piece, in two passes. The first pass finds
    /// translations, and prefetches the bus's entries for the second. The second finds host memory,
    /// and prefetches it for the copy. So the cache misses of many pieces are under way at once.
    /// Returns why it ended early. Only within an access.
    fn pieces(
        &mut self,
        epoch: Epoch,
        to: Side,
        from: Side,
        bytes: u64,
        pieces: &mut [Option<Piece>; PIECES],
    ) -> Option<(Side, Miss)> {
        let mut plans = [None; PIECES];
        let mut missing = None;
        let mut end = 0;
        for plan in &mut plans {
            let max = usize::try_from(bytes - end).unwrap_or(CHUNK);
            if max == 0 {
                break;
            }
            let (to, from) = (to.advance(end), from.advance(end));
            let found = self.block(epoch, from, max).map_err(|miss| (from, miss)).and_then(|(src, len)| {
                let (dst, len) = self.block(epoch, to, len).map_err(|miss| (to, miss))?;
                Ok((src, dst, len))
            });
            match found {
                Ok((src, dst, len)) => {
                    for target in [src, dst] {
                        if let Target::System(pa) = target {
                            self.shared.bus.prefetch(pa);
                        }
                    }
                    *plan = Some((src, dst, len));
                    end += len as u64;
                }
                Err(miss) => {
                    missing = Some(miss);
                    break;
                }
            }
        }
        let mut count = 0;
        let mut end = 0;
        for (src, dst, len) in plans.into_iter().flatten() {
            let (to, from) = (to.advance(end), from.advance(end));
            let src = match self.resolve(src, len, from.access) {
                Ok(src) => src,
                Err(miss) => return Some((from, miss)),
            };
            let dst = match self.resolve(dst, src.span.len, to.access) {
                Ok(dst) => dst,
                Err(miss) => return Some((to, miss)),
            };
            end += dst.span.len as u64;
            let piece = Piece { src, dst, end };
            let (held, free) = pieces.split_at_mut(count);
            match held.last_mut().and_then(Option::as_mut).filter(|last| last.goes_on_in(&piece)) {
                Some(last) => last.extend(&piece),
                None => {
                    let Some(slot) = free.first_mut() else { break };
                    raw::prefetch(src.span.ptr, dst.span.len);
                    *slot = Some(piece);
                    count += 1;
                }
            }
            if dst.span.len < len {
                // What follows was planned for another place.
                return None;
            }
        }
        missing
    }

    /// Runs `op` on the aligned word of type `T` at `va`.
    fn word<T, R>(&mut self, va: u64, access: Access, op: impl Fn(*mut T) -> Result<R, Faulted>) -> Result<R, Stop> {
        let bytes = size_of::<T>();
        if va % bytes as u64 != 0 {
            return Err(QueueError::Unaligned { va, bytes }.into());
        }
        self.touch(Side { va, access }, bytes, |span| op(span.ptr.cast()))
    }

    pub(crate) fn load_u32(&mut self, va: u64) -> Result<u32, Stop> {
        // SAFETY: aligned and within the span of the access: a page is whole words.
        self.word(va, Access::Read, |ptr: *mut u32| unsafe { raw::load_u32(ptr) })
    }

    pub(crate) fn load_u64(&mut self, va: u64) -> Result<u64, Stop> {
        // SAFETY: as in `load_u32`.
        self.word(va, Access::Read, |ptr: *mut u64| unsafe { raw::load_u64(ptr) })
    }

    pub(crate) fn store_u32(&mut self, va: u64, value: u32) -> Result<(), Stop> {
        // SAFETY: as in `load_u32`.
        self.word(va, Access::Write, |ptr| unsafe { raw::store_u32(ptr, value) })?;
        self.written(va, 4);
        Ok(())
    }

    pub(crate) fn store_u64(&mut self, va: u64, value: u64) -> Result<(), Stop> {
        // SAFETY: as in `load_u32`.
        self.word(va, Access::Write, |ptr| unsafe { raw::store_u64(ptr, value) })?;
        self.written(va, 8);
        Ok(())
    }

    /// Adds atomically; returns the old value.
    pub(crate) fn add_u64(&mut self, va: u64, value: u64) -> Result<u64, Stop> {
        // SAFETY: as in `load_u32`.
        self.word(va, Access::Write, |ptr| unsafe { raw::atomic_add_u64(ptr, value) })
    }

    /// Replaces a word by `f(old)` atomically; returns the old value.
    pub(crate) fn update_u32(&mut self, va: u64, f: impl Fn(u32) -> u32) -> Result<u32, Stop> {
        // SAFETY: as in `load_u32`.
        self.word(va, Access::Write, |ptr| unsafe { raw::atomic_update_u32(ptr, &f) })
    }

    /// Replaces a word by `f(old)` atomically; returns the old value.
    pub(crate) fn update_u64(&mut self, va: u64, f: impl Fn(u64) -> u64) -> Result<u64, Stop> {
        // SAFETY: as in `load_u32`.
        self.word(va, Access::Write, |ptr| unsafe { raw::atomic_update_u64(ptr, &f) })
    }

    /// Waits until `done` says so, polling with a growing pause.
    pub(crate) fn poll(&mut self, mut done: impl FnMut(&mut Port) -> Result<bool, Stop>) -> Result<(), Stop> {
        let mut idle = crate::state::bell::Idle::new(&self.shared.bell);
        while !done(self)? {
            self.check_removed()?;
            idle.wait(&self.shared.bell, &self.control.removed);
        }
        Ok(())
    }

    /// Signals an event to the driver.
    pub(crate) fn signal_event(&self, event_id: u32) {
        count(&self.shared.counters.events, 1);
        self.shared.irq.queue_event(self.control.vmid, self.control.id, event_id);
    }
}

/// A bulk operation that did a part has succeeded with that part. The next access shows the rest.
fn part(len: usize, result: Result<(), Faulted>) -> Result<usize, Faulted> {
    match result {
        Ok(()) => Ok(len),
        Err(fault) if fault.done > 0 => Ok(fault.done),
        Err(fault) => Err(fault),
    }
}
