// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SDWA and DPP as text.

use std::fmt::{self, Write};

use super::Printer;
use crate::inst::{DppKind, Extension, SdwaSelect, SdwaUnused};
use crate::table::Field;

impl Printer<'_> {
    pub(super) fn dpp(&mut self, name: &str) -> fmt::Result {
        let Extension::Dpp(dpp) = self.inst.extension else { return Ok(()) };
        match (name, dpp.kind) {
            ("dpp_ctrl", DppKind::Ctrl(control)) => self.dpp_control(control.into()),
            ("dpp8", DppKind::Lanes8(lanes)) => {
                self.out.push_str("dpp8:[");
                for n in 0..8 {
                    let comma = if n == 0 { "" } else { "," };
                    write!(self.out, "{comma}{}", lanes >> (3 * n) & 7)?;
                }
                self.out.write_char(']')
            }
            ("row_mask", _) => write!(self.out, " row_mask:{:#x}", dpp.row_mask),
            ("bank_mask", _) => write!(self.out, " bank_mask:{:#x}", dpp.bank_mask),
            ("bound_ctrl", _) if dpp.bound_ctrl => self.out.write_str(" bound_ctrl:1"),
            ("fi", _) if dpp.fetch_inactive => self.out.write_str(" fi:1"),
            _ => Ok(()),
        }
    }

    pub(super) fn dpp_control(&mut self, control: u32) -> fmt::Result {
        let low = control & 15;
        let gfx9 = self.target.is_gfx9();
        let only_gfx9 = |text: &'static str, name: &str| {
            if gfx9 {
                text.to_string()
            } else {
                format!("/* {name} is not supported starting from GFX10 */")
            }
        };
        let doubles = self.shape.slots.iter().any(|slot| {
            slot.dwords == 2 && matches!(slot.field, Field::Vdst | Field::Src0 | Field::Src1 | Field::Src2)
        });
        if doubles && !(0x150..=0x15f).contains(&control) {
            return self.out.write_str(" /* DP ALU dpp only supports row_newbcast */");
        }
        let text = match control {
            0..=0xff => {
                let lane = |n: u32| control >> (2 * n) & 3;
                format!("quad_perm:[{},{},{},{}]", lane(0), lane(1), lane(2), lane(3))
            }
            0x101..=0x10f => format!("row_shl:{low}"),
            0x111..=0x11f => format!("row_shr:{low}"),
            0x121..=0x12f => format!("row_ror:{low}"),
            0x130 => only_gfx9("wave_shl:1", "wave_shl"),
            0x134 => only_gfx9("wave_rol:1", "wave_rol"),
            0x138 => only_gfx9("wave_shr:1", "wave_shr"),
            0x13c => only_gfx9("wave_ror:1", "wave_ror"),
            0x140 => "row_mirror".into(),
            0x141 => "row_half_mirror".into(),
            0x142 => only_gfx9("row_bcast:15", "row_bcast"),
            0x143 => only_gfx9("row_bcast:31", "row_bcast"),
            0x150..=0x15f if self.target.is_cdna() => format!("row_newbcast:{low}"),
            0x150..=0x15f if !gfx9 => format!("row_share:{low}"),
            0x150..=0x15f => " /* row_newbcast/row_share is not supported on ASICs earlier than GFX90A/GFX10 */".into(),
            0x160..=0x16f if !gfx9 => format!("row_xmask:{low}"),
            0x160..=0x16f => "/* row_xmask is not supported on ASICs earlier than GFX10 */".into(),
            _ => "/* Invalid dpp_ctrl value */".into(),
        };
        self.out.write_str(&text)
    }

    pub(super) fn sdwa(&mut self, name: &str) -> fmt::Result {
        let Extension::Sdwa(sdwa) = self.inst.extension else { return Ok(()) };
        let select = |select: SdwaSelect| match select {
            SdwaSelect::Byte0 => "BYTE_0",
            SdwaSelect::Byte1 => "BYTE_1",
            SdwaSelect::Byte2 => "BYTE_2",
            SdwaSelect::Byte3 => "BYTE_3",
            SdwaSelect::Word0 => "WORD_0",
            SdwaSelect::Word1 => "WORD_1",
            SdwaSelect::Dword => "DWORD",
        };
        let value = match name {
            "dst_sel" => select(sdwa.dst),
            "src0_sel" => select(sdwa.src[0]),
            "src1_sel" => select(sdwa.src[1]),
            _ => match sdwa.unused {
                SdwaUnused::Pad => "UNUSED_PAD",
                SdwaUnused::Sext => "UNUSED_SEXT",
                SdwaUnused::Preserve => "UNUSED_PRESERVE",
            },
        };
        write!(self.out, "{name}:{value}")
    }
}
