// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The strips of a segment: which rows have host registers, and the loops of strips and rounds. A
//! strip does all rounds before the next one begins, but for those that go abreast.

use super::round::{base, body, Reach};
use super::slice::{self, Places};
use super::{abreast, field};
use crate::assembler::{at, Constants, Label, When};
use crate::context::{end, Context};
use crate::emit::{Addresses, Emit, Needs, Plan};
use crate::ops::How;
use crate::plan::{masks_needed, needed, Access, Lanes, Needed, Rounds, Rows, Segment, Source, Vector};
use crate::stubs::Host;
use iced_x86::{Code, Instruction, Register};
use std::collections::BTreeSet;
use std::mem::offset_of;
use vkfd_sabotage::{Switch, Switches};

/// Code and its constants.
pub(super) type Made = (Vec<u8>, Constants);

/// The rows of a segment's strips.
pub(super) fn plan(segment: &Segment, rows: &[Rows]) -> Plan {
    let mut plan = Plan::new(segment.rounds == Rounds::Strips);
    for (reads, writes) in rows {
        plan.add(reads, writes);
    }
    let stored = stored(segment);
    plan.finish(|row| !segment.ends || stored.contains(&row));
    plan
}

/// Rows that the stores and exchanges of a segment's tail read.
fn stored(segment: &Segment) -> BTreeSet<u16> {
    let stores = segment.stores().flat_map(|access| access.addresses().chain(access.words_of_data()));
    // Inactive lanes of the result may be stored behind it.
    let exchanges = segment.exchanges().flat_map(|exchange| [exchange.to, exchange.name, exchange.from]);
    stores.chain(exchanges).collect()
}

/// Those of each instruction of the strips.
pub(super) fn rows(segment: &Segment) -> Vec<Rows> {
    let rows_of = |item: Lanes| match item {
        Lanes::Vector(vector) => {
            let reads = vector.all_sources().filter_map(|source| match source {
                Source::Row(row) => Some(row),
                _ => None,
            });
            (reads.collect(), vector.rows().collect())
        }
        Lanes::Access(access) => (access.addresses().collect(), access.rows().collect()),
    };
    segment.lanes().map(rows_of).collect()
}

/// Rows that strips would keep for a load that misses, from which on a look at all bounds before
/// the first strip is cheaper.
const KEPT_DEAR: usize = 8;

/// Registers that strips with accesses save.
const KEPT: [Register; 4] = [Register::RBX, Register::RBP, Register::R12, Register::R13];

/// Leaves unless all active lanes' words in LDS are aligned, before a strip is done.
fn aligned(e: &mut Emit, access: &Access, lanes: u8, out: Label) {
    e.for_strips(lanes, |e| {
        e.begin();
        e.need_aligned(access.address, access.offsets[0], out);
    });
}

/// Rows of addresses in LDS that are the same all over a segment.
#[derive(Default)]
struct Ahead {
    /// Those of all accesses.
    bounds: Vec<Addresses>,
    /// Those of loads that come behind a store, and those of such stores.
    crossing: [Vec<Addresses>; 2],
    /// There are other loads.
    are_others: bool,
}

impl Ahead {
    fn of(segment: &Segment) -> Ahead {
        let mut ahead = Ahead::default();
        let mut written = BTreeSet::new();
        for lanes in segment.lanes() {
            match lanes {
                Lanes::Vector(vector) => written.extend(vector.rows()),
                Lanes::Access(access) => {
                    if access.is_certain() && !written.contains(&access.address) {
                        add(&mut ahead.bounds, access);
                        if access.crosses {
                            add(&mut ahead.crossing[0], access);
                        }
                    } else {
                        ahead.are_others = true;
                    }
                    written.extend(access.rows());
                }
            }
        }
        if segment.hoists {
            let is_certain = |access: &&Access| access.is_certain() && !written.contains(&access.address);
            for access in segment.stores().filter(is_certain) {
                add(&mut ahead.bounds, access);
                add(&mut ahead.crossing[1], access);
            }
        }
        ahead
    }
}

fn add(all: &mut Vec<Addresses>, access: &Access) {
    let (row, begin, end) = (access.address, access.begin(), access.end());
    match all.iter_mut().find(|known| known.row == row) {
        Some(known) => (known.begin, known.end) = (known.begin.min(begin), known.end.max(end)),
        None => all.push(Addresses { row, begin, end }),
    }
}

/// The code of a store, strip by strip, and its constants.
pub(super) fn store(access: &Access, (host, lanes, is_loop): (Host, u8, bool), sabotage: &Switches) -> Option<Made> {
    let mut e = Emit::new(host, Plan::new(false), Needs::default());
    e.prefetches = is_loop;
    let (head, next, leave, out) = (e.asm.label(), e.asm.label(), e.asm.label(), e.asm.label());
    KEPT.into_iter().for_each(|register| e.asm.push(register));
    e.asm.move64(Register::R9, Register::RSI);
    e.asm.load64(Register::RCX, at(Register::RDX, field(offset_of!(Context, pool))));
    e.asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::R11D, Register::R11D));
    let base = base(access, Places::default());
    let (is_open, is_guessed) = (sabotage.has(Switch::OpenLanes), sabotage.has(Switch::GuessedShape));
    if access.adds {
        if !is_guessed {
            aligned(&mut e, access, lanes, out);
        }
    } else {
        e.store_whole(access, base, (lanes, is_open, is_guessed), [out, leave]);
        e.begin_wave(lanes);
    }
    e.asm.bind(head);
    e.load_exec(next, is_open);
    e.begin_accesses(out);
    e.begin();
    if access.adds {
        // A strip that is done is not done again: nothing may lead out.
        e.add_in_lds(access);
    } else {
        let look = e.look(access, base, access.end(), out, is_guessed);
        e.begin();
        e.store_words(access, look, base, out);
    }
    e.asm.bind(next);
    e.advance(1, lanes, head);
    e.asm.bind(leave);
    e.asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
    KEPT.into_iter().rev().for_each(|register| e.asm.pop(register));
    e.asm.ret();
    e.asm.bind(out);
    let how = at(Register::RDX, field(offset_of!(Context, end)));
    e.asm.add(Instruction::with2(Code::Mov_rm32_imm32, how, end::MISSED));
    e.asm.jump(leave);
    e.finish_cold();
    let Emit { asm, pool, .. } = e;
    Some((asm.finish()?, pool.into_constants()))
}

/// Whether a round becomes cheaper: without an instruction, or without the most of a product.
fn worth(segment: &Segment, light: &[Needed]) -> bool {
    segment.lanes().zip(light).any(|(lanes, needed)| match lanes {
        Lanes::Vector(vector) => needed.nothing() || needed.is_low(vector),
        Lanes::Access(_) => false,
    })
}

/// Masks that strips write: those that only carry are the last ones. They are for other vector
/// instructions, which read their strip's part.
struct Masks {
    all: Vec<u8>,
    compared: usize,
}

fn masks(segment: &Segment) -> Masks {
    let outs = |carries: bool| {
        let is_carry = |vector: &&Vector| matches!(vector.operation.how, How::Carry(_) | How::Multiply64(_));
        let outs = segment.vectors().filter(move |vector| is_carry(vector) == carries).filter_map(|vector| vector.out);
        outs.filter(|n| *n != vkfd_isa::Operand::NULL).collect::<BTreeSet<u8>>()
    };
    let (compared, carried) = (outs(false), outs(true));
    let all = compared.iter().chain(carried.difference(&compared)).copied().collect();
    Masks { all, compared: compared.len() }
}

/// Keeps a strip's rows, for a load of a later strip that misses. No strip is later than the last.
fn keep(e: &mut Emit, rows: &[u16], lanes: u8) {
    if rows.is_empty() {
        return;
    }
    let (kept, last) = (e.asm.label(), i32::from((lanes - e.width.lanes()) / 8));
    e.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::R11D, last));
    e.asm.jump_if(When::Zero, kept);
    e.asm.load64(Register::RAX, at(Register::RDX, field(offset_of!(Context, kept))));
    for (index, row) in rows.iter().enumerate() {
        e.begin();
        e.save(*row, at(Register::RAX, 256 * field(index)));
    }
    e.asm.bind(kept);
}

/// The code of the strips, its constants, and the registers that it takes; or those that it lacks.
pub(super) fn strips(
    segment: &Segment,
    places: &[Places],
    (host, lanes, bytes): (Host, u8, i64),
    (mut plan, rows, kept): (Plan, &[Rows], &[u8]),
    needs: Needs,
    sabotage: &Switches,
) -> Result<(Made, Needs), Needs> {
    let looped = segment.rounds == Rounds::Strips;
    plan.fix(Emit::usable(host.width).saturating_sub(needs.outside()));
    if !plan.fits() {
        return Err(needs);
    }
    let restored: Vec<u16> = plan.restored().collect();
    let mut e = Emit::new(host, plan, needs);
    e.loses_rows = sabotage.has(Switch::LostRows);
    e.mends_all = sabotage.has(Switch::MendAll);
    e.prefetches = segment.rounds != Rounds::Once;
    let accesses = segment.accesses().next().is_some();
    // Where no strip may miss, none keeps its rows. Otherwise the stores alone are to be certain.
    let ahead = Ahead::of(segment);
    let is_unlooked = sabotage.has(Switch::UnlookedBounds);
    let is_certain = !looped && !ahead.are_others && restored.len() >= KEPT_DEAR && !is_unlooked;
    let looks = is_certain && accesses || segment.hoists && !is_unlooked;
    let may_miss = accesses || looks;
    if !looped {
        let last = segment.lanes().enumerate().filter(|(_, lanes)| matches!(lanes, Lanes::Access(_))).last();
        e.spills_home_from(if is_certain { 0 } else { last.map_or(0, |(number, _)| number + 1) });
    }
    let (head, round, next, skip, out) = (e.asm.label(), e.asm.label(), e.asm.label(), e.asm.label(), e.asm.label());
    if may_miss {
        KEPT.into_iter().for_each(|register| e.asm.push(register));
    }
    e.asm.move64(Register::R9, Register::RSI);
    slice::keep(&mut e.asm, (Register::R9, Register::RDX), kept);
    let made = masks(segment);
    e.begin_masks(&made.all, lanes);
    e.begin_arithmetic(segment.arithmetic.may_flush() && !sabotage.has(Switch::KeptDenormals));
    e.asm.load64(Register::RCX, at(Register::RDX, field(offset_of!(Context, pool))));
    e.asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::R11D, Register::R11D));
    if looks {
        e.asm.load32(Register::R10D, at(Register::RDX, field(offset_of!(Context, done))));
        let [loads, stores] = &ahead.crossing;
        let is_crossed = !loads.is_empty() && !sabotage.has(Switch::UnlookedSpans);
        e.look_ahead(&ahead.bounds, is_crossed.then_some([loads, stores]), lanes, out);
        e.is_in_bounds = is_certain;
    }
    if accesses && !looped {
        e.begin_wave(lanes);
    }
    // All rounds but the last one leave out what the next one makes anew.
    let light = (looped && !accesses).then(|| needed(segment, &BTreeSet::new(), false, true));
    let written = light
        .as_ref()
        .is_some_and(|light| abreast::write(&mut e, segment, (places, rows, light), (lanes, bytes), sabotage));
    let (from, rounds) = if written {
        (offset_of!(Context, from), offset_of!(Context, rounds))
    } else {
        (offset_of!(Context, trace), offset_of!(Context, done))
    };
    e.asm.bind(head);
    e.load_exec(skip, sabotage.has(Switch::OpenLanes));
    e.begin_strip();
    e.asm.load64(Register::R8, at(Register::RDX, field(from)));
    e.asm.load32(Register::R10D, at(Register::RDX, field(rounds)));
    if sabotage.has(Switch::LostRound) && looped {
        // Strips do not go as far as the slice.
        e.asm.add(Instruction::with2(Code::Mov_r32_imm32, Register::R10D, 1u32));
    }
    let mut reach = Reach::of(segment);
    let is_guessed = sabotage.has(Switch::GuessedShape);
    if accesses {
        e.begin_accesses(out);
        if !is_certain {
            keep(&mut e, &restored, lanes);
        }
        // What does not change in the loop is looked at before it.
        for (item, place) in segment.lanes().zip(places) {
            if let Lanes::Access(access) = item {
                let stays = looped && access.addresses().all(|row| !e.writes(row));
                if stays && place.base.is_none() {
                    e.begin();
                    let end = reach.end(access);
                    e.look(access, base(access, *place), end, out, is_guessed);
                }
            }
        }
    }
    let again = |e: &mut Emit| {
        e.end_round();
        let bytes = i32::try_from(bytes).unwrap_or(0);
        e.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::R8, bytes));
        e.asm.add(Instruction::with1(Code::Dec_rm32, Register::R10D));
    };
    let mut all = vec![Needed::ALL; places.len()];
    if let Some(light) = light {
        if light.iter().any(|needed| *needed != Needed::ALL) && worth(segment, &light) {
            let lighter = e.asm.label();
            e.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::R10D, 1i32));
            e.asm.jump_if(When::Zero, round);
            e.asm.bind(lighter);
            e.forget_masks();
            body(&mut e, (segment, true), (places, rows, &light), &mut reach, (out, sabotage));
            again(&mut e);
            e.begin_round();
            e.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::R10D, 1i32));
            e.asm.jump_if(When::Above, lighter);
        }
    } else if segment.ends {
        all = needed(segment, &e.lasting(), true, false);
    }
    let masks = masks_needed(segment, sabotage.has(Switch::DroppedMask));
    all.iter_mut().zip(masks).for_each(|(all, mask)| all.out &= mask);
    e.asm.bind(round);
    e.forget_masks();
    body(&mut e, (segment, false), (places, rows, &all), &mut reach, (out, sabotage));
    if looped {
        again(&mut e);
        e.asm.jump_if(When::NotZero, round);
    }
    e.end_strip();
    e.asm.bind(next);
    e.turn_masks(lanes);
    if accesses {
        let kept = at(Register::RDX, field(offset_of!(Context, kept)));
        e.asm.add(Instruction::with2(Code::Add_rm64_imm8, kept, 4 * i32::from(host.width.lanes())));
    }
    e.advance(1, lanes, head);
    let leave = e.asm.label();
    e.asm.bind(leave);
    e.end_masks(&made.all[..made.compared], lanes);
    e.keep_denormals(true);
    e.asm.add(Ok(Instruction::with(Code::VEX_Vzeroupper)));
    e.leave_masks();
    if may_miss {
        KEPT.into_iter().rev().for_each(|register| e.asm.pop(register));
    }
    e.asm.ret();
    if may_miss {
        e.asm.bind(out);
        e.asm.store32(at(Register::RDX, field(offset_of!(Context, left))), Register::R10D);
        let how = at(Register::RDX, field(offset_of!(Context, end)));
        e.asm.add(Instruction::with2(Code::Mov_rm32_imm32, how, end::MISSED));
        e.asm.jump(leave);
    }
    e.asm.bind(skip);
    made.all.into_iter().for_each(|n| e.clear_mask(n));
    e.asm.jump(next);
    e.finish_cold();
    let Emit { asm, pool, needs, .. } = e;
    match asm.finish() {
        Some(code) => Ok(((code, pool.into_constants()), needs)),
        None => Err(needs),
    }
}
