// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The blocks around the engines: bus interface, interrupts, address translation of processes,
//! host data path, firmware mailboxes.

/// The bus interface.
pub mod nbio {
    use crate::registers::registers;

    registers! {
        "NBIO":
        MM_INDEX = 0x0;
        MM_DATA = 0x1;
        MM_INDEX_HI = 0x6;
        PCIE_INDEX2 = 0xe;
        PCIE_DATA2 = 0xf;
        BIOS_SCRATCH_0 = 0x4c;
        BIOS_SCRATCH_7 = 0x53;
        RCC_DOORBELL_APER_EN = 0xde0;
        RCC_CONFIG_MEMSIZE = 0xde3;
        RCC_IOV_FUNC_IDENTIFIER = 0xde5;
        INTERRUPT_CNTL = 0xe11;
        BIF_DOORBELL_INT_CNTL = 0xe1d;
        GPU_HDP_FLUSH_REQ = 0xe26;
        GPU_HDP_FLUSH_DONE = 0xe27;
        BACO_CNTL = 0xe2b;
        REMAP_HDP_MEM_FLUSH_CNTL = 0xe4d;
        BIF_SDMA0_DOORBELL_RANGE = 0xef0;
        BIF_SDMA1_DOORBELL_RANGE = 0xef1;
        BIF_IH_DOORBELL_RANGE = 0xef2;
    }
}

/// The interrupt handler.
pub mod osssys {
    use crate::registers::registers;

    registers! {
        "OSSSYS":
        IH_VMID_LUT ["IH_VMID_{}_LUT"; 16 * 1] = 0x10a0;
        IH_VMID_LUT_MM ["IH_VMID_{}_LUT_MM"; 16 * 1] = 0x10b0;
        IH_RB_CNTL = 0x1120;
        IH_RB_BASE = 0x1121;
        IH_RB_BASE_HI = 0x1122;
        IH_RB_RPTR = 0x1123;
        IH_RB_WPTR = 0x1124;
        IH_RB_WPTR_ADDR_HI = 0x1125;
        IH_RB_WPTR_ADDR_LO = 0x1126;
        IH_DOORBELL_RPTR = 0x1127;
        IH_DOORBELL_RETRY_CAM = 0x1128;
        IH_RB_CNTL_RING1 = 0x112c;
        IH_RB_BASE_RING1 = 0x112d;
        IH_RB_BASE_HI_RING1 = 0x112e;
        IH_RB_RPTR_RING1 = 0x112f;
        IH_RB_WPTR_RING1 = 0x1130;
        IH_DOORBELL_RPTR_RING1 = 0x1133;
        IH_RB_CNTL_RING2 = 0x1138;
        IH_RB_BASE_RING2 = 0x1139;
        IH_RB_BASE_HI_RING2 = 0x113a;
        IH_RB_RPTR_RING2 = 0x113b;
        IH_RB_WPTR_RING2 = 0x113c;
        IH_DOORBELL_RPTR_RING2 = 0x113f;
        IH_CLK_CTRL = 0x117b;
        IH_MMHUB_CNTL = 0x122d;
    }
}

/// Which process a VMID belongs to.
pub mod athub {
    use crate::registers::registers;

    registers! {
        "ATHUB":
        ATC_VMID_PASID_MAPPING_UPDATE_STATUS = 0xc2b;
        ATC_VMID_PASID_MAPPING ["ATC_VMID{}_PASID_MAPPING"; 16 * 1] = 0xc2c;
    }
}

/// The host data path.
pub mod hdp {
    use crate::registers::registers;

    registers! {
        "HDP":
        HDP_MISC_CNTL = 0xff3;
        HDP_MEM_POWER_LS = 0xff4;
    }
}

/// The security processor's mailboxes.
pub mod mp0 {
    use crate::registers::registers;

    registers! {
        "MP0":
        MP0_SMN_C2PMSG_33 = 0x16061;
        MP0_SMN_C2PMSG_81 = 0x16091;
    }
}

/// The power controller's inputs.
pub mod smuio {
    use crate::registers::registers;

    registers! {
        "SMUIO":
        SMUIO_MCM_CONFIG = 0x16824;
        IP_DISCOVERY_VERSION = 0x16a00;
    }
}
