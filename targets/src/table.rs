// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The rows: a target is one of them, and nothing else in the tree repeats what is here.
//!
//! Of MI200 the model is one of a package's two dies, and of MI300X one of eight.

use crate::model::{cache, Model, Sharing};
use crate::{Blocks, Family, Features, Row};

/// No feature that only some targets have.
const PLAIN: Features = Features { cdna: false, architected_scratch: false, packed_work_item_ids: false };

/// Makes the targets, and their rows in the same order.
macro_rules! targets {
    ($($(#[$document:meta])* $name:ident: $row:expr;)*) => {
        /// A processor, by the name that compilers have for it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Target {
            $($(#[$document])* $name,)*
        }

        impl Target {
            /// All of them, oldest first.
            pub const ALL: [Target; ROWS.len()] = [$(Target::$name,)*];
        }

        pub(crate) const ROWS: &[Row] = &[$($row,)*];
    };
}

targets! {
    /// Vega 10: GCN5.
    Gfx900: Row {
        name: "gfx900",
        product: "Radeon Vega Frontier Edition",
        elf_machine: 0x2c,
        family: Family::Gfx9,
        features: PLAIN,
        blocks: Blocks { core: [9, 0, 1], copy: [4, 0, 0], bus: [6, 1, 0] },
        model: Model {
            version: 90_000,
            device_id: 0x6863,
            revision: 0,
            family: 141,
            external_revision: 0x01,
            units: 64,
            engines: 4,
            arrays: 1,
            simd_per_unit: 4,
            waves_per_simd: 10,
            wave_size: 64,
            scratch_slots: 32,
            register_ecc: false,
            gds_kib: 64,
            sdma_engines: 2,
            sdma_xgmi_engines: 0,
            sdma_queues: 2,
            clock_mhz: 1600,
            memory_mhz: 945,
            memory_bits: 2048,
            firmware: 468,
            sdma_firmware: 432,
            caches: &[
                cache(1, 16, 64, true, Sharing::Units(1)),
                cache(1, 32, 64, false, Sharing::Units(3)),
                cache(1, 16, 64, true, Sharing::Units(3)),
                cache(2, 4096, 64, true, Sharing::Gpu),
            ],
        },
    };
    /// MI200: CDNA2.
    Gfx90a: Row {
        name: "gfx90a",
        product: "AMD Instinct MI210",
        elf_machine: 0x3f,
        family: Family::Gfx9,
        features: Features { cdna: true, packed_work_item_ids: true, ..PLAIN },
        blocks: Blocks { core: [9, 4, 2], copy: [4, 4, 0], bus: [7, 4, 0] },
        model: Model {
            version: 90_010,
            device_id: 0x740f,
            revision: 2,
            family: 141,
            external_revision: 0x3c,
            units: 104,
            engines: 8,
            arrays: 1,
            simd_per_unit: 4,
            waves_per_simd: 8,
            wave_size: 64,
            scratch_slots: 32,
            register_ecc: true,
            gds_kib: 0,
            sdma_engines: 2,
            sdma_xgmi_engines: 3,
            sdma_queues: 8,
            clock_mhz: 1700,
            memory_mhz: 1600,
            memory_bits: 4096,
            firmware: 78,
            sdma_firmware: 8,
            caches: &[
                cache(1, 16, 64, true, Sharing::Units(1)),
                cache(1, 32, 64, false, Sharing::Units(2)),
                cache(1, 16, 64, true, Sharing::Units(2)),
                cache(2, 8192, 128, true, Sharing::Gpu),
            ],
        },
    };
    /// MI300: CDNA3.
    Gfx942: Row {
        name: "gfx942",
        product: "AMD Instinct MI300X",
        elf_machine: 0x4c,
        family: Family::Gfx9,
        features: Features { cdna: true, architected_scratch: true, packed_work_item_ids: true },
        blocks: Blocks { core: [9, 4, 3], copy: [4, 4, 2], bus: [7, 9, 0] },
        model: Model {
            version: 90_402,
            device_id: 0x74a1,
            revision: 0,
            family: 141,
            external_revision: 0x47,
            units: 38,
            engines: 4,
            arrays: 1,
            simd_per_unit: 4,
            waves_per_simd: 8,
            wave_size: 64,
            scratch_slots: 32,
            register_ecc: true,
            gds_kib: 0,
            sdma_engines: 2,
            sdma_xgmi_engines: 14,
            sdma_queues: 8,
            clock_mhz: 2100,
            memory_mhz: 1300,
            memory_bits: 8192,
            firmware: 166,
            sdma_firmware: 22,
            caches: &[
                cache(1, 32, 128, true, Sharing::Units(1)),
                cache(1, 64, 128, false, Sharing::Units(2)),
                cache(1, 16, 128, true, Sharing::Units(2)),
                cache(2, 4096, 128, true, Sharing::Gpu),
                cache(3, 262_144, 64, true, Sharing::Gpu),
            ],
        },
    };
    /// Navi 21: RDNA2.
    Gfx1030: Row {
        name: "gfx1030",
        product: "AMD Radeon RX 6900 XT",
        elf_machine: 0x36,
        family: Family::Gfx10,
        features: PLAIN,
        blocks: Blocks { core: [10, 3, 0], copy: [5, 2, 0], bus: [3, 3, 0] },
        model: Model {
            version: 100_300,
            device_id: 0x73bf,
            revision: 0xc0,
            family: 143,
            external_revision: 0x28,
            units: 80,
            engines: 4,
            arrays: 2,
            simd_per_unit: 2,
            waves_per_simd: 16,
            wave_size: 32,
            scratch_slots: 32,
            register_ecc: false,
            gds_kib: 0,
            sdma_engines: 2,
            sdma_xgmi_engines: 0,
            sdma_queues: 8,
            clock_mhz: 2250,
            memory_mhz: 1000,
            memory_bits: 256,
            firmware: 115,
            sdma_firmware: 83,
            caches: &[
                cache(1, 16, 128, true, Sharing::Units(1)),
                cache(1, 32, 64, false, Sharing::Units(2)),
                cache(1, 16, 64, true, Sharing::Units(2)),
                cache(2, 4096, 128, true, Sharing::Gpu),
                cache(3, 131_072, 64, true, Sharing::Gpu),
            ],
        },
    };
    /// Navi 31: RDNA3.
    Gfx1100: Row {
        name: "gfx1100",
        product: "AMD Radeon RX 7900 XTX",
        elf_machine: 0x41,
        family: Family::Gfx11,
        features: Features { architected_scratch: true, packed_work_item_ids: true, ..PLAIN },
        blocks: Blocks { core: [11, 0, 0], copy: [6, 0, 0], bus: [4, 3, 0] },
        model: Model {
            version: 110_000,
            device_id: 0x744c,
            revision: 0xc8,
            family: 145,
            external_revision: 0x01,
            units: 96,
            engines: 6,
            arrays: 2,
            simd_per_unit: 2,
            waves_per_simd: 16,
            wave_size: 32,
            scratch_slots: 32,
            register_ecc: false,
            gds_kib: 0,
            sdma_engines: 2,
            sdma_xgmi_engines: 0,
            sdma_queues: 6,
            clock_mhz: 2500,
            memory_mhz: 1250,
            memory_bits: 384,
            firmware: 550,
            sdma_firmware: 19,
            caches: &[
                cache(1, 32, 128, true, Sharing::Units(1)),
                cache(1, 32, 128, false, Sharing::Units(2)),
                cache(1, 16, 128, true, Sharing::Units(2)),
                cache(2, 6144, 128, true, Sharing::Gpu),
                cache(3, 98_304, 64, true, Sharing::Gpu),
            ],
        },
    };
}
