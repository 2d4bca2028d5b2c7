// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The registers of both memory hubs: page-table roots, invalidation, faults.
//!
//! Compute units and the command processor go through the gfxhub, copy engines through the mmhub.

/// The hub of compute units and the command processor.
pub mod gfxhub {
    use crate::registers::registers;

    registers! {
        "GC":
        MC_VM_FB_LOCATION_BASE = 0x2980;
        MC_VM_FB_LOCATION_TOP = 0x2981;
        VM_L2_CNTL = 0x2840;
        VM_L2_CNTL2 = 0x2841;
        VM_L2_PROTECTION_FAULT_CNTL = 0x2847;
        VM_L2_PROTECTION_FAULT_CNTL2 = 0x2848;
        VM_L2_PROTECTION_FAULT_STATUS = 0x284b;
        VM_L2_PROTECTION_FAULT_ADDR_LO32 = 0x284c;
        VM_L2_PROTECTION_FAULT_ADDR_HI32 = 0x284d;
        MC_VM_MX_L1_TLB_CNTL = 0x2987;
        VM_CONTEXT_CNTL ["VM_CONTEXT{}_CNTL"; 16 * 1] = 0x2880;
        VM_CONTEXT_BASE_LO ["VM_CONTEXT{}_PAGE_TABLE_BASE_ADDR_LO32"; 16 * 2] = 0x28eb;
        VM_CONTEXT_BASE_HI ["VM_CONTEXT{}_PAGE_TABLE_BASE_ADDR_HI32"; 16 * 2] = 0x28ec;
        VM_CONTEXT_START_LO ["VM_CONTEXT{}_PAGE_TABLE_START_ADDR_LO32"; 16 * 2] = 0x290b;
        VM_CONTEXT_START_HI ["VM_CONTEXT{}_PAGE_TABLE_START_ADDR_HI32"; 16 * 2] = 0x290c;
        VM_CONTEXT_END_LO ["VM_CONTEXT{}_PAGE_TABLE_END_ADDR_LO32"; 16 * 2] = 0x292b;
        VM_CONTEXT_END_HI ["VM_CONTEXT{}_PAGE_TABLE_END_ADDR_HI32"; 16 * 2] = 0x292c;
        VM_INVALIDATE_SEM ["VM_INVALIDATE_ENG{}_SEM"; 18 * 1] = 0x2891;
        VM_INVALIDATE_REQ ["VM_INVALIDATE_ENG{}_REQ"; 18 * 1] = 0x28a3;
        VM_INVALIDATE_ACK ["VM_INVALIDATE_ENG{}_ACK"; 18 * 1] = 0x28b5;
        MC_VM_FB_OFFSET = 0x296b;
        MC_VM_XGMI_LFB_CNTL = 0x2978;
        MC_VM_XGMI_LFB_SIZE = 0x2979;
    }
}

/// The hub of the copy engines.
pub mod mmhub {
    use crate::registers::registers;

    registers! {
        "MMHUB":
        MC_VM_FB_LOCATION_BASE = 0x1acc0;
        MC_VM_FB_LOCATION_TOP = 0x1acc1;
        VM_L2_CNTL = 0x1ab80;
        VM_L2_CNTL2 = 0x1ab81;
        VM_L2_PROTECTION_FAULT_CNTL = 0x1ab87;
        VM_L2_PROTECTION_FAULT_CNTL2 = 0x1ab88;
        VM_L2_PROTECTION_FAULT_STATUS = 0x1ab8b;
        VM_L2_PROTECTION_FAULT_ADDR_LO32 = 0x1ab8c;
        VM_L2_PROTECTION_FAULT_ADDR_HI32 = 0x1ab8d;
        MC_VM_MX_L1_TLB_CNTL = 0x1acc7;
        VM_CONTEXT_CNTL ["VM_CONTEXT{}_CNTL"; 16 * 1] = 0x1abc0;
        VM_CONTEXT_BASE_LO ["VM_CONTEXT{}_PAGE_TABLE_BASE_ADDR_LO32"; 16 * 2] = 0x1ac2b;
        VM_CONTEXT_BASE_HI ["VM_CONTEXT{}_PAGE_TABLE_BASE_ADDR_HI32"; 16 * 2] = 0x1ac2c;
        VM_CONTEXT_START_LO ["VM_CONTEXT{}_PAGE_TABLE_START_ADDR_LO32"; 16 * 2] = 0x1ac4b;
        VM_CONTEXT_START_HI ["VM_CONTEXT{}_PAGE_TABLE_START_ADDR_HI32"; 16 * 2] = 0x1ac4c;
        VM_CONTEXT_END_LO ["VM_CONTEXT{}_PAGE_TABLE_END_ADDR_LO32"; 16 * 2] = 0x1ac6b;
        VM_CONTEXT_END_HI ["VM_CONTEXT{}_PAGE_TABLE_END_ADDR_HI32"; 16 * 2] = 0x1ac6c;
        VM_INVALIDATE_SEM ["VM_INVALIDATE_ENG{}_SEM"; 18 * 1] = 0x1abd1;
        VM_INVALIDATE_REQ ["VM_INVALIDATE_ENG{}_REQ"; 18 * 1] = 0x1abe3;
        VM_INVALIDATE_ACK ["VM_INVALIDATE_ENG{}_ACK"; 18 * 1] = 0x1abf5;
        DAGB_SNOOP_OVERRIDE ["DAGB{}_WRCLI_GPU_SNOOP_OVERRIDE"; 5 * 128] = 0x1a05e;
        DAGB_SNOOP_OVERRIDE_VALUE ["DAGB{}_WRCLI_GPU_SNOOP_OVERRIDE_VALUE"; 5 * 128] = 0x1a05f;
    }
}
