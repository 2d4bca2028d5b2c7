// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The assembler's names for values of immediates: hardware registers, messages, counters, buffer
//! formats.

use std::fmt::{self, Write};

use crate::Target;

/// What the assembler calls hardware register `id`.
pub(crate) fn hwreg(target: Target, id: u32) -> Option<&'static str> {
    let (gfx9, gfx11) = (target.is_gfx9(), has_new_numbers(target));
    // NEW TARGET: names of hardware registers
    let (gfx942, gfx1030) = (target == Target::Gfx942, target == Target::Gfx1030);
    Some(match id {
        1 => "HW_REG_MODE",
        2 => "HW_REG_STATUS",
        3 => "HW_REG_TRAPSTS",
        4 if gfx9 => "HW_REG_HW_ID",
        5 => "HW_REG_GPR_ALLOC",
        6 => "HW_REG_LDS_ALLOC",
        7 => "HW_REG_IB_STS",
        15 => "HW_REG_SH_MEM_BASES",
        16 if !gfx11 => "HW_REG_TBA_LO",
        17 if !gfx11 => "HW_REG_TBA_HI",
        18 if !gfx11 => "HW_REG_TMA_LO",
        19 if !gfx11 => "HW_REG_TMA_HI",
        18 => "HW_REG_PERF_SNAPSHOT_PC_LO",
        19 => "HW_REG_PERF_SNAPSHOT_PC_HI",
        20 if target.is_rdna() => "HW_REG_FLAT_SCR_LO",
        21 if target.is_rdna() => "HW_REG_FLAT_SCR_HI",
        23 if target.is_rdna() => "HW_REG_HW_ID1",
        24 if target.is_rdna() => "HW_REG_HW_ID2",
        25 if gfx1030 => "HW_REG_POPS_PACKER",
        27 if gfx11 => "HW_REG_PERF_SNAPSHOT_DATA",
        29 if target.is_rdna() => "HW_REG_SHADER_CYCLES",
        20 if gfx942 => "HW_REG_XCC_ID",
        21 if gfx942 => "HW_REG_SQ_PERF_SNAPSHOT_DATA",
        22 if gfx942 => "HW_REG_SQ_PERF_SNAPSHOT_DATA1",
        23 if gfx942 => "HW_REG_SQ_PERF_SNAPSHOT_PC_LO",
        24 if gfx942 => "HW_REG_SQ_PERF_SNAPSHOT_PC_HI",
        _ => return None,
    })
}

fn message_name(target: Target, id: u32) -> Option<&'static str> {
    let before_11 = !has_new_numbers(target);
    // NEW TARGET: names of messages
    let gfx1030 = target == Target::Gfx1030;
    Some(match id {
        1 => "MSG_INTERRUPT",
        2 if before_11 => "MSG_GS",
        3 if before_11 => "MSG_GS_DONE",
        2 => "MSG_HS_TESSFACTOR",
        3 => "MSG_DEALLOC_VGPRS",
        4 if before_11 => "MSG_SAVEWAVE",
        5 => "MSG_STALL_WAVE_GEN",
        6 => "MSG_HALT_WAVES",
        7 if before_11 => "MSG_ORDERED_PS_DONE",
        8 if before_11 => "MSG_EARLY_PRIM_DEALLOC",
        9 => "MSG_GS_ALLOC_REQ",
        10 if before_11 => "MSG_GET_DOORBELL",
        11 if gfx1030 => "MSG_GET_DDID",
        15 => "MSG_SYSMSG",
        128 if !before_11 => "MSG_RTN_GET_DOORBELL",
        129 if !before_11 => "MSG_RTN_GET_DDID",
        130 if !before_11 => "MSG_RTN_GET_TMA",
        131 if !before_11 => "MSG_RTN_GET_REALTIME",
        132 if !before_11 => "MSG_RTN_SAVE_WAVE",
        133 if !before_11 => "MSG_RTN_GET_TBA",
        134 if !before_11 => "MSG_RTN_GET_TBA_TO_PC",
        _ => return None,
    })
}

/// Whether registers, messages, targets of exports, and formats have gfx11's numbers.
fn has_new_numbers(target: Target) -> bool {
    match target {
        Target::Gfx900 | Target::Gfx90a | Target::Gfx942 | Target::Gfx1030 => false,
        Target::Gfx1100 => true,
    }
}

/// The operand of `s_sendmsg`.
pub(crate) fn message(out: &mut impl Write, target: Target, value: u32) -> fmt::Result {
    const GS: [&str; 4] = ["GS_OP_NOP", "GS_OP_CUT", "GS_OP_EMIT", "GS_OP_EMIT_CUT"];
    let gfx11 = has_new_numbers(target);
    let (id, op, stream) = if gfx11 { (value & 0xff, 0, 0) } else { (value & 15, value >> 4 & 7, value >> 8 & 3) };
    let is_gs = !gfx11 && (id == 2 || id == 3);
    let op_name = match id {
        15 => match op {
            1 => Some("SYSMSG_OP_ECC_ERR_INTERRUPT"),
            2 => Some("SYSMSG_OP_REG_RD"),
            4 => Some("SYSMSG_OP_TTRACE_PC"),
            _ => None,
        },
        2 if op == 0 => None,
        _ => GS.get(usize::try_from(op).unwrap_or(usize::MAX)).copied(),
    };
    let takes_op = id == 15 || is_gs;
    let takes_stream = is_gs && op != 0;
    let known_op = if takes_op { op_name.is_some() } else { op == 0 };
    let known_stream = takes_stream || stream == 0;
    match message_name(target, id) {
        Some(name) if known_op && known_stream => {
            write!(out, "sendmsg({name}")?;
            if let (true, Some(op)) = (takes_op, op_name) {
                write!(out, ", {op}")?;
                if takes_stream {
                    write!(out, ", {stream}")?;
                }
            }
            out.write_char(')')
        }
        _ if id | op << 4 | stream << 8 == value => write!(out, "sendmsg({id}, {op}, {stream})"),
        _ => write!(out, "{value}"),
    }
}

/// The operand of `s_waitcnt`.
pub(crate) fn waitcnt(out: &mut impl Write, target: Target, value: u32) -> fmt::Result {
    // NEW TARGET: the counters of s_waitcnt
    let (vm, exp, lgkm, most_lgkm) = match target {
        Target::Gfx1100 => (value >> 10 & 63, value & 7, value >> 4 & 63, 63),
        Target::Gfx1030 => (value & 15 | value >> 10 & 48, value >> 4 & 7, value >> 8 & 63, 63),
        _ => (value & 15 | value >> 10 & 48, value >> 4 & 7, value >> 8 & 15, 15),
    };
    let all = vm == 63 && exp == 7 && lgkm == most_lgkm;
    let mut space = "";
    for (name, count, most) in [("vmcnt", vm, 63), ("expcnt", exp, 7), ("lgkmcnt", lgkm, most_lgkm)] {
        if all || count != most {
            write!(out, "{space}{name}({count})")?;
            space = " ";
        }
    }
    Ok(())
}

/// The operand of `s_waitcnt_depctr`.
pub(crate) fn depctr(out: &mut impl Write, target: Target, value: u32) -> fmt::Result {
    // Name, shift, mask, which is the default, too.
    let mut counters = vec![
        ("depctr_sa_sdst", 0, 1),
        ("depctr_va_vdst", 12, 15),
        ("depctr_va_sdst", 9, 7),
        ("depctr_va_ssrc", 8, 1),
        ("depctr_va_vcc", 1, 1),
        ("depctr_vm_vsrc", 2, 7),
    ];
    if target.is_rdna() {
        counters.insert(0, ("depctr_hold_cnt", 7, 1));
    }
    let used = counters.iter().fold(0, |bits, (_, shift, mask)| bits | mask << shift);
    if value & !used != 0 {
        return write!(out, "{value:#x}");
    }
    let all = counters.iter().all(|(_, shift, mask)| value >> shift & mask == *mask);
    let mut space = "";
    for (name, shift, mask) in counters {
        let count = value >> shift & mask;
        if all || count != mask {
            write!(out, "{space}{name}({count})")?;
            space = " ";
        }
    }
    Ok(())
}

/// The operand of `s_delay_alu`.
pub(crate) fn delay_alu(out: &mut impl Write, value: u32) -> fmt::Result {
    const IDS: [&str; 12] = [
        "NO_DEP",
        "VALU_DEP_1",
        "VALU_DEP_2",
        "VALU_DEP_3",
        "VALU_DEP_4",
        "TRANS32_DEP_1",
        "TRANS32_DEP_2",
        "TRANS32_DEP_3",
        "FMA_ACCUM_CYCLE_1",
        "SALU_CYCLE_1",
        "SALU_CYCLE_2",
        "SALU_CYCLE_3",
    ];
    const SKIPS: [&str; 6] = ["SAME", "NEXT", "SKIP_1", "SKIP_2", "SKIP_3", "SKIP_4"];
    let name = |names: &[&'static str], n: u32, other: &'static str| {
        usize::try_from(n).ok().and_then(|n| names.get(n).copied()).unwrap_or(other)
    };
    let parts = [
        ("instid0", value & 15, name(&IDS, value & 15, "/* invalid instid value */")),
        ("instskip", value >> 4 & 7, name(&SKIPS, value >> 4 & 7, "/* invalid instskip value */")),
        ("instid1", value >> 7 & 15, name(&IDS, value >> 7 & 15, "/* invalid instid value */")),
    ];
    let mut bar = "";
    for (part, value, name) in parts {
        if value != 0 {
            write!(out, "{bar}{part}({name})")?;
            bar = " | ";
        }
    }
    if bar.is_empty() {
        out.write_char('0')?;
    }
    Ok(())
}

/// The offset of `ds_swizzle_b32`.
pub(crate) fn swizzle(out: &mut impl Write, value: u32) -> fmt::Result {
    if value & 0xff00 == 0x8000 {
        let lane = |n: u32| value >> (2 * n) & 3;
        return write!(out, "swizzle(QUAD_PERM,{},{},{},{})", lane(0), lane(1), lane(2), lane(3));
    }
    if value & 0x8000 != 0 {
        return write!(out, "{value}");
    }
    let (and, or, xor) = (value & 31, value >> 5 & 31, value >> 10 & 31);
    let group = 32 - and;
    if and == 31 && or == 0 && xor.count_ones() == 1 {
        write!(out, "swizzle(SWAP,{xor})")
    } else if and == 31 && or == 0 && xor > 0 && (xor + 1).is_power_of_two() {
        write!(out, "swizzle(REVERSE,{})", xor + 1)
    } else if group > 1 && group.is_power_of_two() && or < group && xor == 0 {
        write!(out, "swizzle(BROADCAST,{group},{or})")
    } else {
        out.write_str("swizzle(BITMASK_PERM,\"")?;
        let (zeros, ones) = (or ^ xor, (and | or) ^ xor);
        for bit in (0..5).rev() {
            out.write_char(match (zeros >> bit & 1, ones >> bit & 1) {
                (0, 0) => '0',
                (1, 1) => '1',
                (0, _) => 'p',
                _ => 'i',
            })?;
        }
        out.write_str("\")")
    }
}

/// The target of an export.
pub(crate) fn export(out: &mut impl Write, target: Target, value: u32) -> fmt::Result {
    let gfx11 = has_new_numbers(target);
    match value {
        0..=7 => write!(out, " mrt{value}"),
        8 => out.write_str(" mrtz"),
        9 if !gfx11 => out.write_str(" null"),
        12..=15 => write!(out, " pos{}", value - 12),
        16 if target.is_rdna() => out.write_str(" pos4"),
        20 if target.is_rdna() => out.write_str(" prim"),
        21 | 22 if gfx11 => write!(out, " dual_src_blend{}", value - 21),
        32..=63 if !gfx11 => write!(out, " param{}", value - 32),
        _ => write!(out, " invalid_target_{value}"),
    }
}

/// The format of a typed buffer access.
pub(crate) fn buffer_format(out: &mut impl Write, target: Target, value: u32) -> fmt::Result {
    const NUMBERS: [&str; 8] = ["UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT", "RESERVED_6", "FLOAT"];
    const DATA: [&str; 16] = [
        "INVALID",
        "8",
        "16",
        "8_8",
        "32",
        "16_16",
        "10_11_11",
        "11_11_10",
        "10_10_10_2",
        "2_10_10_10",
        "8_8_8_8",
        "32_32",
        "16_16_16_16",
        "32_32_32",
        "32_32_32_32",
        "RESERVED_15",
    ];
    if value == 1 {
        return Ok(());
    }
    if target.is_gfx9() {
        let (data, number) = (value & 15, value >> 4 & 7);
        out.write_str(" format:[")?;
        if data != 1 {
            write!(out, "BUF_DATA_FORMAT_{}", DATA[data as usize])?;
            if number != 0 {
                out.write_char(',')?;
            }
        }
        if number != 0 {
            write!(out, "BUF_NUM_FORMAT_{}", NUMBERS[number as usize])?;
        }
        return out.write_char(']');
    }
    match unified(target).get(value as usize) {
        Some((data, number)) => {
            write!(out, " format:[BUF_FMT_{data}{}{number}]", if number.is_empty() { "" } else { "_" })
        }
        None => write!(out, " format:{value}"),
    }
}

/// The unified formats in their order: data format and number format.
fn unified(target: Target) -> Vec<(&'static str, &'static str)> {
    const SCALED: [&str; 6] = ["UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT"];
    const ALL: [&str; 7] = ["UNORM", "SNORM", "USCALED", "SSCALED", "UINT", "SINT", "FLOAT"];
    const PLAIN: [&str; 3] = ["UINT", "SINT", "FLOAT"];
    let gfx11 = has_new_numbers(target);
    let packed: &[&str] = if gfx11 { &["FLOAT"] } else { &ALL };
    let tens: &[&str] = if gfx11 { &["UNORM", "SNORM", "UINT", "SINT"] } else { &SCALED };
    let formats: [(&str, &[&str]); 15] = [
        ("INVALID", &[""]),
        ("8", &SCALED),
        ("16", &ALL),
        ("8_8", &SCALED),
        ("32", &PLAIN),
        ("16_16", &ALL),
        ("10_11_11", packed),
        ("11_11_10", packed),
        ("10_10_10_2", tens),
        ("2_10_10_10", &SCALED),
        ("8_8_8_8", &SCALED),
        ("32_32", &PLAIN),
        ("16_16_16_16", &ALL),
        ("32_32_32", &PLAIN),
        ("32_32_32_32", &PLAIN),
    ];
    formats.iter().flat_map(|(data, numbers)| numbers.iter().map(move |number| (*data, *number))).collect()
}
