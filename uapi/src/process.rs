// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Calls about the process as a whole and its use of each GPU: version, apertures, VM, XNACK,
//! clocks, memory policy, scratch, trap handler, runtime.
//!
//! Mechanism: argument structures only. Source: `kfd_ioctl.h`.

use super::pod::{assert_layout, pod, Field, Pod};

/// Major version of the interface.
pub const IOCTL_MAJOR_VERSION: u32 = 1;

pod! {
    /// Argument of `GET_VERSION`.
    pub struct GetVersionArgs {
        /// Out: `IOCTL_MAJOR_VERSION`.
        pub major_version: u32,
        /// Out: the minor version; it says which calls exist.
        pub minor_version: u32,
    }
}

pod! {
    /// Argument of `SET_MEMORY_POLICY`.
    pub struct SetMemoryPolicyArgs {
        /// In: address of the alternate aperture.
        pub alternate_aperture_base: u64,
        /// In: its bytes.
        pub alternate_aperture_size: u64,
        /// In: the GPU.
        pub gpu_id: u32,
        /// In: `CACHE_POLICY_*` outside the alternate aperture.
        pub default_policy: u32,
        /// In: `CACHE_POLICY_*` inside it.
        pub alternate_policy: u32,
        /// In: `PROC_FLAG_*` (padding before interface 1.18).
        pub misc_process_flag: u32,
    }
}

/// CPU and GPU see each other's writes at once.
pub const CACHE_POLICY_COHERENT: u32 = 0;
/// Not coherent.
pub const CACHE_POLICY_NONCOHERENT: u32 = 1;
/// High precision of the matrix unit (interface 1.18).
pub const PROC_FLAG_MFMA_HIGH_PRECISION: u32 = 1;

pod! {
    /// Argument of `GET_CLOCK_COUNTERS`. Counters never go back.
    pub struct GetClockCountersArgs {
        /// Out: the GPU's counter, in its own ticks.
        pub gpu_clock_counter: u64,
        /// Out: the CPU's counter, in nanoseconds.
        pub cpu_clock_counter: u64,
        /// Out: the system's counter, in ticks of `system_clock_freq`.
        pub system_clock_counter: u64,
        /// Out: hertz.
        pub system_clock_freq: u64,
        /// In: the GPU.
        pub gpu_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// The apertures of one GPU; limits are inclusive.
    pub struct ProcessDeviceApertures {
        /// First address of LDS.
        pub lds_base: u64,
        /// Last address of LDS.
        pub lds_limit: u64,
        /// First address of scratch.
        pub scratch_base: u64,
        /// Last address of scratch.
        pub scratch_limit: u64,
        /// First address of the GPU VM.
        pub gpuvm_base: u64,
        /// Last address of the GPU VM.
        pub gpuvm_limit: u64,
        /// The GPU.
        pub gpu_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

/// GPUs that `GET_PROCESS_APERTURES` can report.
pub const NUM_OF_SUPPORTED_GPUS: usize = 7;

pod! {
    /// Argument of `GET_PROCESS_APERTURES`, which AMD has replaced by the form with a pointer.
    pub struct GetProcessAperturesArgs {
        /// Out: one entry for each GPU.
        pub process_apertures: [ProcessDeviceApertures; NUM_OF_SUPPORTED_GPUS],
        /// Out: entries filled.
        pub num_of_nodes: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `GET_PROCESS_APERTURES_NEW`.
    pub struct GetProcessAperturesNewArgs {
        /// In: user pointer to an array of [`ProcessDeviceApertures`].
        pub kfd_process_device_apertures_ptr: u64,
        /// In: its entries; 0 asks how many there are. Out: entries filled, or how many there are.
        pub num_of_nodes: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `SET_SCRATCH_BACKING_VA`.
    pub struct SetScratchBackingVaArgs {
        /// In: address of the memory behind scratch.
        pub va_addr: u64,
        /// In: the GPU.
        pub gpu_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `GET_TILE_CONFIG`.
    pub struct GetTileConfigArgs {
        /// In: user pointer to an array of u32.
        pub tile_config_ptr: u64,
        /// In: user pointer to an array of u32.
        pub macro_tile_config_ptr: u64,
        /// In: entries of the first array. Out: entries filled.
        pub num_tile_configs: u32,
        /// In: entries of the second array. Out: entries filled.
        pub num_macro_tile_configs: u32,
        /// In: the GPU.
        pub gpu_id: u32,
        /// Out: the register of that name.
        pub gb_addr_config: u32,
        /// Out: banks.
        pub num_banks: u32,
        /// Out: ranks.
        pub num_ranks: u32,
    }
}

pod! {
    /// Argument of `SET_TRAP_HANDLER`.
    pub struct SetTrapHandlerArgs {
        /// In: GPU address of the handler's code.
        pub tba_addr: u64,
        /// In: GPU address of its memory.
        pub tma_addr: u64,
        /// In: the GPU.
        pub gpu_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `ACQUIRE_VM`: use the VM of an open render node.
    pub struct AcquireVmArgs {
        /// In: file descriptor of the render node.
        pub drm_fd: u32,
        /// In: the GPU.
        pub gpu_id: u32,
    }
}

pod! {
    /// Argument of `SET_XNACK_MODE`.
    pub struct SetXnackModeArgs {
        /// In: 0 off, positive on, negative leaves it as it is. Out: the mode, 0 or positive.
        pub xnack_enabled: i32,
    }
}

pod! {
    /// Argument of `RUNTIME_ENABLE` (interface 1.13).
    pub struct RuntimeEnableArgs {
        /// In: user pointer that the runtime shares with a debugger.
        pub r_debug: u64,
        /// In: `RUNTIME_ENABLE_MODE_*`.
        pub mode_mask: u32,
        /// Out: what the driver supports.
        pub capabilities_mask: u32,
    }
}

/// Enable the runtime for debugging; disable without it.
pub const RUNTIME_ENABLE_MODE_ENABLE_MASK: u32 = 1;
/// Set up saving of the trap handler's registers.
pub const RUNTIME_ENABLE_MODE_TTMP_SAVE_MASK: u32 = 2;

assert_layout! {
    GetVersionArgs: 8 { minor_version: 4 }
    SetMemoryPolicyArgs: 32 {
        alternate_aperture_size: 8, gpu_id: 16, default_policy: 20, alternate_policy: 24, misc_process_flag: 28,
    }
    GetClockCountersArgs: 40 {
        cpu_clock_counter: 8, system_clock_counter: 16, system_clock_freq: 24, gpu_id: 32,
    }
    ProcessDeviceApertures: 56 {
        lds_limit: 8, scratch_base: 16, scratch_limit: 24, gpuvm_base: 32, gpuvm_limit: 40, gpu_id: 48,
    }
    GetProcessAperturesArgs: 400 { process_apertures: 0, num_of_nodes: 392 }
    GetProcessAperturesNewArgs: 16 { num_of_nodes: 8 }
    SetScratchBackingVaArgs: 16 { gpu_id: 8 }
    GetTileConfigArgs: 40 {
        macro_tile_config_ptr: 8, num_tile_configs: 16, num_macro_tile_configs: 20, gpu_id: 24, gb_addr_config: 28,
        num_banks: 32, num_ranks: 36,
    }
    SetTrapHandlerArgs: 24 { tma_addr: 8, gpu_id: 16 }
    AcquireVmArgs: 8 { gpu_id: 4 }
    SetXnackModeArgs: 4 { xnack_enabled: 0 }
    RuntimeEnableArgs: 16 { mode_mask: 8, capabilities_mask: 12 }
}
