// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Kernel descriptors, field by field.

use serde_json::{json, Value};
use vkfd_isa::Target;

/// A kernel's descriptor: 64 bytes in code objects from version 3 on, 256 in version 2.
pub struct Descriptor {
    /// Where it is.
    pub address: u64,
    bytes: Vec<u8>,
    version2: bool,
}

/// A field: its name and value.
pub type Field = (&'static str, Value);

/// A value as text.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Descriptor {
    /// The descriptor in `bytes`.
    pub fn new(address: u64, bytes: &[u8]) -> Descriptor {
        Descriptor { address, bytes: bytes.to_vec(), version2: false }
    }

    /// The `amd_kernel_code_t` in `bytes`.
    pub fn version2(address: u64, bytes: &[u8]) -> Descriptor {
        Descriptor { address, bytes: bytes.to_vec(), version2: true }
    }

    /// The processor that a descriptor of version 2 names.
    pub fn machine(&self) -> Option<String> {
        let (major, minor, stepping) = (self.u16(10), self.u16(12), self.u16(14));
        self.version2.then(|| format!("gfx{major}{minor}{stepping:x}"))
    }

    fn u16(&self, at: usize) -> u16 {
        self.bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    /// What it says, for a kernel of `target`.
    pub fn fields(&self, target: Target) -> Vec<Field> {
        let mut fields: Vec<Field> = Vec::new();
        let (rsrc1, rsrc2, properties) = (self.u32(48), self.u32(52), self.u16(56));
        let entry = self.address.wrapping_add(self.u64(16));
        if self.version2 {
            fields.extend([
                ("amd_code_version", json!(format!("{}.{}", self.u32(0), self.u32(4)))),
                ("entry", json!(format!("{entry:#x}"))),
                ("workitem_private_segment_byte_size", json!(self.u32(60))),
                ("workgroup_group_segment_byte_size", json!(self.u32(64))),
                ("gds_segment_byte_size", json!(self.u32(68))),
                ("kernarg_segment_byte_size", json!(self.u64(72))),
                ("wavefront_sgpr_count", json!(self.u16(84))),
                ("workitem_vgpr_count", json!(self.u16(86))),
            ]);
        } else {
            fields.extend([
                ("group_segment_fixed_size", json!(self.u32(0))),
                ("private_segment_fixed_size", json!(self.u32(4))),
                ("kernarg_size", json!(self.u32(8))),
                ("entry", json!(format!("{entry:#x}"))),
            ]);
        }
        let wave32 = target.is_rdna() && properties >> 10 & 1 != 0;
        rsrc1_fields(&mut fields, target, rsrc1, wave32);
        rsrc2_fields(&mut fields, rsrc2);
        if !self.version2 {
            rsrc3_fields(&mut fields, target, self.u32(44));
        }
        let names = [
            "enable_sgpr_private_segment_buffer",
            "enable_sgpr_dispatch_ptr",
            "enable_sgpr_queue_ptr",
            "enable_sgpr_kernarg_segment_ptr",
            "enable_sgpr_dispatch_id",
            "enable_sgpr_flat_scratch_init",
            "enable_sgpr_private_segment_size",
        ];
        fields.extend(names.iter().enumerate().map(|(bit, name)| (*name, json!(properties >> bit & 1 != 0))));
        if !self.version2 {
            fields.push(("enable_wavefront_size32", json!(wave32)));
            fields.push(("uses_dynamic_stack", json!(properties >> 11 & 1 != 0)));
            let preload = self.u16(58);
            fields.push(("kernarg_preload_length", json!(preload & 0x7f)));
            fields.push(("kernarg_preload_offset", json!(preload >> 7)));
        }
        fields
    }
}

fn rsrc1_fields(fields: &mut Vec<Field>, target: Target, rsrc1: u32, wave32: bool) {
    const ROUND: [&str; 4] = ["nearest even", "plus infinity", "minus infinity", "zero"];
    const DENORMALS: [&str; 4] = ["flushed in and out", "flushed out", "flushed in", "kept"];
    let field = |low: u32, width: u32| rsrc1 >> low & ((1 << width) - 1);
    let pick = |names: &[&'static str; 4], low: u32| json!(names[(rsrc1 >> low & 3) as usize]);
    let granule = if target.is_cdna() || wave32 { 8 } else { 4 };
    fields.push(("vgprs", json!((field(0, 6) + 1) * granule)));
    if target.is_gfx9() {
        fields.push(("sgprs", json!((field(6, 4) / 2 + 1) * 16)));
    }
    fields.extend([
        ("priority", json!(field(10, 2))),
        ("float_round_mode_32", pick(&ROUND, 12)),
        ("float_round_mode_16_64", pick(&ROUND, 14)),
        ("float_denorm_mode_32", pick(&DENORMALS, 16)),
        ("float_denorm_mode_16_64", pick(&DENORMALS, 18)),
        ("priv", json!(field(20, 1) != 0)),
        ("enable_dx10_clamp", json!(field(21, 1) != 0)),
        ("debug_mode", json!(field(22, 1) != 0)),
        ("enable_ieee_mode", json!(field(23, 1) != 0)),
        ("bulky", json!(field(24, 1) != 0)),
        ("cdbg_user", json!(field(25, 1) != 0)),
        ("fp16_overflow", json!(field(26, 1) != 0)),
    ]);
    if target.is_rdna() {
        fields.extend([
            ("workgroup_processor_mode", json!(field(29, 1) != 0)),
            ("memory_ordered", json!(field(30, 1) != 0)),
            ("forward_progress", json!(field(31, 1) != 0)),
        ]);
    }
}

fn rsrc2_fields(fields: &mut Vec<Field>, rsrc2: u32) {
    const IDS: [&str; 4] = ["x", "x, y", "x, y, z", "undefined"];
    let bit = |n: u32| json!(rsrc2 >> n & 1 != 0);
    fields.extend([
        ("enable_private_segment", bit(0)),
        ("user_sgprs", json!(rsrc2 >> 1 & 31)),
        ("enable_trap_handler", bit(6)),
        ("enable_sgpr_workgroup_id_x", bit(7)),
        ("enable_sgpr_workgroup_id_y", bit(8)),
        ("enable_sgpr_workgroup_id_z", bit(9)),
        ("enable_sgpr_workgroup_info", bit(10)),
        ("workitem_ids", json!(IDS[(rsrc2 >> 11 & 3) as usize])),
        ("exception_address_watch", bit(13)),
        ("exception_memory_violation", bit(14)),
        ("granulated_lds_size", json!(rsrc2 >> 15 & 0x1ff)),
        ("exceptions_enabled", json!(format!("{:#x}", rsrc2 >> 24 & 0x7f))),
    ]);
}

fn rsrc3_fields(fields: &mut Vec<Field>, target: Target, rsrc3: u32) {
    if target.is_cdna() {
        fields.push(("accum_offset", json!(((rsrc3 & 63) + 1) * 4)));
        fields.push(("tg_split", json!(rsrc3 >> 16 & 1 != 0)));
    } else if target.is_rdna() {
        fields.push(("shared_vgprs", json!((rsrc3 & 15) * 8)));
        // NEW TARGET: fields of RSRC3
        if target == Target::Gfx1100 {
            fields.push(("instruction_prefetch", json!(rsrc3 >> 4 & 63)));
            fields.push(("trap_on_start", json!(rsrc3 >> 10 & 1 != 0)));
            fields.push(("trap_on_end", json!(rsrc3 >> 11 & 1 != 0)));
            fields.push(("image_op", json!(rsrc3 >> 31 & 1 != 0)));
        }
    }
}
