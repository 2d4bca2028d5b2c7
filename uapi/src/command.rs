// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AMD's command words.
//!
//! Mechanism: a row of the table is all that is known of a call ([`super::call`]). Sources:
//! `kfd_ioctl.h` of Linux 6.1 (interface 1.11) and, for newer commands, of Linux up to 7.3 (1.23).
//! Batch userptr's own command is in [`super::batch`], vkfd's are in [`super::vkfd`].

use super::call::{calls, Count, Forward, Known, Pointer, Way};
use super::ioctl::Command;
use super::pod::Pod;
use super::{event, memory, process, queue, smi, svm};

/// The type letter of every KFD command.
pub const TYPE: u8 = b'K';

/// The name of a command in [`ALL`], without its size: a caller may pass a longer or shorter
/// argument. Linear in [`ALL`].
#[must_use]
pub fn name(command: Command) -> Option<&'static str> {
    Known::find(command, ALL).map(|known| known.name)
}

impl Call {
    /// The call of a number. Of two forms of one call it is the older one. Linear in [`ALL`].
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        let at = ALL.iter().position(|known| known.command.number() == number)?;
        Self::ALL.get(at).copied()
    }
}

calls! {
    type TYPE;

    /// The interface's version.
    GET_VERSION "GET_VERSION" = ior<process::GetVersionArgs>(0x01), 0x8008_4b01,
        since 1, forwarded;
    /// Create a queue (the form up to 1.16).
    CREATE_QUEUE "CREATE_QUEUE" = iowr<queue::CreateQueueArgs>(0x02), 0xc058_4b02,
        since 1 until 17, forwarded;
    /// Create a queue (the form since 1.17).
    CREATE_QUEUE_ENGINE "CREATE_QUEUE" = iowr<queue::CreateQueueEngineArgs>(0x02), 0xc060_4b02,
        since 17, local "version 1.15 is spoken";
    /// Destroy a queue.
    DESTROY_QUEUE "DESTROY_QUEUE" = iowr<queue::DestroyQueueArgs>(0x03), 0xc008_4b03,
        since 1, forwarded;
    /// Cache policy of a GPU.
    SET_MEMORY_POLICY "SET_MEMORY_POLICY" = iow<process::SetMemoryPolicyArgs>(0x04), 0x4020_4b04,
        since 1, forwarded;
    /// Clock counters.
    GET_CLOCK_COUNTERS "GET_CLOCK_COUNTERS" = iowr<process::GetClockCountersArgs>(0x05), 0xc028_4b05,
        since 1, forwarded;
    /// Apertures of up to seven GPUs.
    GET_PROCESS_APERTURES "GET_PROCESS_APERTURES" = ior<process::GetProcessAperturesArgs>(0x06), 0x8190_4b06,
        since 1, forwarded;
    /// Change a queue.
    UPDATE_QUEUE "UPDATE_QUEUE" = iow<queue::UpdateQueueArgs>(0x07), 0x4018_4b07,
        since 1, forwarded;
    /// Create an event.
    CREATE_EVENT "CREATE_EVENT" = iowr<event::CreateEventArgs>(0x08), 0xc020_4b08,
        since 1, forwarded;
    /// Destroy an event.
    DESTROY_EVENT "DESTROY_EVENT" = iow<event::DestroyEventArgs>(0x09), 0x4008_4b09,
        since 1, forwarded;
    /// Signal an event.
    SET_EVENT "SET_EVENT" = iow<event::SetEventArgs>(0x0a), 0x4008_4b0a,
        since 1, forwarded;
    /// Reset an event.
    RESET_EVENT "RESET_EVENT" = iow<event::ResetEventArgs>(0x0b), 0x4008_4b0b,
        since 1, forwarded;
    /// Wait for events.
    WAIT_EVENTS "WAIT_EVENTS" = iowr<event::WaitEventsArgs>(0x0c), 0xc018_4b0c,
        since 1, forwarded [Both events_ptr: event::EventData, Word num_events];
    /// Old debugger interface.
    DBG_REGISTER_DEPRECATED "DBG_REGISTER_DEPRECATED" = iow<[u32; 2]>(0x0d), 0x4008_4b0d,
        since 7, local "there is no debugger";
    /// Old debugger interface.
    DBG_UNREGISTER_DEPRECATED "DBG_UNREGISTER_DEPRECATED" = iow<[u32; 2]>(0x0e), 0x4008_4b0e,
        since 7, local "there is no debugger";
    /// Old debugger interface.
    DBG_ADDRESS_WATCH_DEPRECATED "DBG_ADDRESS_WATCH_DEPRECATED" = iow<[u64; 2]>(0x0f), 0x4010_4b0f,
        since 7, local "there is no debugger";
    /// Old debugger interface.
    DBG_WAVE_CONTROL_DEPRECATED "DBG_WAVE_CONTROL_DEPRECATED" = iow<[u64; 2]>(0x10), 0x4010_4b10,
        since 7, local "there is no debugger";
    /// Memory behind scratch.
    SET_SCRATCH_BACKING_VA "SET_SCRATCH_BACKING_VA" = iowr<process::SetScratchBackingVaArgs>(0x11), 0xc010_4b11,
        since 1, forwarded;
    /// Tiling of a GPU.
    GET_TILE_CONFIG "GET_TILE_CONFIG" = iowr<process::GetTileConfigArgs>(0x12), 0xc028_4b12,
        since 1, forwarded [
            Out tile_config_ptr: u32, Word num_tile_configs;
            Out macro_tile_config_ptr: u32, Word num_macro_tile_configs
        ];
    /// Second-level trap handler.
    SET_TRAP_HANDLER "SET_TRAP_HANDLER" = iow<process::SetTrapHandlerArgs>(0x13), 0x4018_4b13,
        since 1, forwarded;
    /// Apertures of any number of GPUs.
    GET_PROCESS_APERTURES_NEW "GET_PROCESS_APERTURES_NEW" = iowr<process::GetProcessAperturesNewArgs>(0x14), 0xc010_4b14,
        since 1, forwarded [Out kfd_process_device_apertures_ptr: process::ProcessDeviceApertures, Word num_of_nodes];
    /// Use a render node's VM.
    ACQUIRE_VM "ACQUIRE_VM" = iow<process::AcquireVmArgs>(0x15), 0x4008_4b15,
        since 1, forwarded;
    /// Allocate a BO.
    ALLOC_MEMORY_OF_GPU "ALLOC_MEMORY_OF_GPU" = iowr<memory::AllocMemoryOfGpuArgs>(0x16), 0xc028_4b16,
        since 1, forwarded;
    /// Free a BO.
    FREE_MEMORY_OF_GPU "FREE_MEMORY_OF_GPU" = iow<memory::FreeMemoryOfGpuArgs>(0x17), 0x4008_4b17,
        since 1, forwarded;
    /// Map a BO on GPUs.
    MAP_MEMORY_TO_GPU "MAP_MEMORY_TO_GPU" = iowr<memory::MapMemoryToGpuArgs>(0x18), 0xc018_4b18,
        since 1, forwarded [In device_ids_array_ptr: u32, Word n_devices];
    /// Unmap a BO from GPUs.
    UNMAP_MEMORY_FROM_GPU "UNMAP_MEMORY_FROM_GPU" = iowr<memory::UnmapMemoryFromGpuArgs>(0x19), 0xc018_4b19,
        since 1, forwarded [In device_ids_array_ptr: u32, Word n_devices];
    /// Compute units of a queue.
    SET_CU_MASK "SET_CU_MASK" = iow<queue::SetCuMaskArgs>(0x1a), 0x4010_4b1a,
        since 3, forwarded [In cu_mask_ptr: u8, Bits num_cu_mask];
    /// Saved waves of a queue.
    GET_QUEUE_WAVE_STATE "GET_QUEUE_WAVE_STATE" = iowr<queue::GetQueueWaveStateArgs>(0x1b), 0xc018_4b1b,
        since 3, local "no waves are saved";
    /// What a dma-buf is.
    GET_DMABUF_INFO "GET_DMABUF_INFO" = iowr<memory::GetDmabufInfoArgs>(0x1c), 0xc020_4b1c,
        since 3, with_file [Out metadata_ptr: u8, Word metadata_size];
    /// Make a BO of a dma-buf.
    IMPORT_DMABUF "IMPORT_DMABUF" = iowr<memory::ImportDmabufArgs>(0x1d), 0xc018_4b1d,
        since 3, with_file;
    /// Global wave sync for a queue.
    ALLOC_QUEUE_GWS "ALLOC_QUEUE_GWS" = iowr<queue::AllocQueueGwsArgs>(0x1e), 0xc010_4b1e,
        since 3, forwarded;
    /// Open a stream of SMI events.
    SMI_EVENTS "SMI_EVENTS" = iowr<smi::SmiEventsArgs>(0x1f), 0xc008_4b1f,
        since 3, with_file;
    /// Set or get SVM attributes. The word of a call is larger by its attributes.
    SVM "SVM" = iowr<svm::SvmArgs>(0x20), 0xc018_4b20,
        since 5, local "the other process cannot watch this memory";
    /// Set or get the XNACK mode.
    SET_XNACK_MODE "SET_XNACK_MODE" = iowr<process::SetXnackModeArgs>(0x21), 0xc004_4b21,
        since 5, forwarded;
    /// Checkpoint and restore (the argument's structure is not in this crate).
    CRIU_OP "CRIU_OP" = iowr<[u64; 7]>(0x22), 0xc038_4b22,
        since 7, local "nobody may checkpoint";
    /// Free VRAM.
    AVAILABLE_MEMORY "AVAILABLE_MEMORY" = iowr<memory::GetAvailableMemoryArgs>(0x23), 0xc010_4b23,
        since 9, forwarded;
    /// Make a dma-buf of a BO.
    EXPORT_DMABUF "EXPORT_DMABUF" = iowr<memory::ExportDmabufArgs>(0x24), 0xc010_4b24,
        since 12, with_file;
    /// Announce the runtime.
    RUNTIME_ENABLE "RUNTIME_ENABLE" = iowr<process::RuntimeEnableArgs>(0x25), 0xc010_4b25,
        since 13, forwarded;
    /// Debugger (the argument's structure is not in this crate).
    DBG_TRAP "DBG_TRAP" = iowr<[u64; 4]>(0x26), 0xc020_4b26,
        since 13, local "there is no debugger";
    /// Make this file a secondary context of the process.
    CREATE_PROCESS "CREATE_PROCESS" = io<()>(0x27), 0x0000_4b27,
        since 19, local "a file is one process there";
    /// Profiler (the argument's structure is not in this crate). Batch userptr v2 uses the same
    /// number.
    PROFILER "PROFILER" = iowr<[u32; 4]>(0x28), 0xc010_4b28,
        since 23, local "there is no profiler";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_of_kfd_and_in_order() {
        assert!(ALL.iter().all(|known| known.command.kind() == TYPE));
        assert!(ALL.windows(2).all(|pair| pair[0].command.number() <= pair[1].command.number()));
    }

    #[test]
    fn calls_are_found_by_their_numbers() {
        assert_eq!(Call::of_number(0x02), Some(Call::CREATE_QUEUE));
        assert_eq!(Call::of_number(0x28), Some(Call::PROFILER));
        assert_eq!(Call::of_number(0x29), None);
        assert_eq!(Call::ALL.len(), ALL.len());
    }

    #[test]
    fn numbers_have_no_gap() {
        for number in 0x01..=0x28 {
            assert!(ALL.iter().any(|known| known.command.number() == number), "{number:#x} is missing");
        }
    }

    #[test]
    fn names_do_not_depend_on_the_size() {
        assert_eq!(name(CREATE_QUEUE_ENGINE), Some("CREATE_QUEUE"));
        assert_eq!(name(Command(0xc030_4b20)), Some("SVM"));
        assert_eq!(name(Command(0xc010_4b28)), Some("PROFILER"));
        assert_eq!(name(Command(0xc010_4b29)), None);
        assert_eq!(name(Command(0xc010_4428)), None);
    }
}
