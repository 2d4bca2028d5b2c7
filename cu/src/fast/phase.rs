// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How waves that go side by side take turns: when they begin to read what others may write, and
//! when they begin to write what others may read.
//!
//! Behind a barrier each wave of a group reads until it would write, then the next one does, and
//! then each writes until it would read. So no wave writes over words that another one has not read
//! yet, as on hardware, where waves are abreast. Between two changes a wave need not stop: what it
//! does there is its own.

use crate::reference::memory::{ds_kind, kind, Kind};
use vkfd_isa::{Format, Inst};

/// What instructions do that other waves see, or that shows what they did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Reads,
    /// Atomic operations read, too.
    Writes,
}

/// What an instruction does, if it is one of either kind.
pub(super) fn phase(inst: &Inst) -> Option<Phase> {
    let name = inst.op.name();
    match inst.format {
        Format::Ds => match ds_kind(inst.op) {
            Some(Kind::Load { .. }) => Some(Phase::Reads),
            // Values of other lanes, not of LDS.
            None if ["ds_bpermute", "ds_permute", "ds_swizzle", "ds_nop"].iter().any(|own| name.starts_with(own)) => {
                None
            }
            None if name.starts_with("ds_read") => Some(Phase::Reads),
            _ => Some(Phase::Writes),
        },
        Format::Global | Format::Flat | Format::Mubuf | Format::Mtbuf => match kind(inst.op) {
            Some(Kind::Nothing) => None,
            Some(Kind::Load { .. } | Kind::Format { store: false, .. }) => Some(Phase::Reads),
            _ => Some(Phase::Writes),
        },
        // Scratch is a lane's own.
        Format::Scratch => match kind(inst.op) {
            Some(Kind::Load { .. } | Kind::Store { .. }) => None,
            _ => Some(Phase::Writes),
        },
        Format::Smem if !name.contains("load") => {
            (name.contains("store") || name.contains("atomic")).then_some(Phase::Writes)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_isa::{decode_as_hardware, Target};

    #[test]
    fn reads_and_writes_are_told_apart() {
        for (words, expected) in [
            // ds_read_b32, ds_read2_b32, ds_write_b32, ds_add_u32, ds_bpermute_b32
            ([0xd86c_0000, 0x0100_0000], Some(Phase::Reads)),
            ([0xd86e_0100, 0x0100_0000], Some(Phase::Reads)),
            ([0xd81a_0000, 0x0000_0100], Some(Phase::Writes)),
            ([0xd800_0000, 0x0000_0100], Some(Phase::Writes)),
            ([0xd87e_0000, 0x0100_0201], None),
            // global_load_dword, global_store_dword, global_atomic_add, scratch_store_dword
            ([0xdc50_8000, 0x017f_0000], Some(Phase::Reads)),
            ([0xdc70_8000, 0x007f_0100], Some(Phase::Writes)),
            ([0xdd08_8000, 0x007f_0100], Some(Phase::Writes)),
            ([0xdc70_4000, 0x007f_0100], None),
            // s_load_dword, v_add_f32
            ([0xc002_0002, 0x0000_0000], None),
            ([0x0200_0100, 0x0000_0000], None),
        ] {
            let inst =
                decode_as_hardware(Target::Gfx900, &words).unwrap_or_else(|error| panic!("{words:x?} {error:?}"));
            assert_eq!(phase(&inst), expected, "{}", inst.op.name());
        }
    }
}
