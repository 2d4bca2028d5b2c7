// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is compared: every structure, command and constant of `vkfd-uapi` that AMD's header can
//! have.
//!
//! Mechanism: commands and the structures of their arguments come from the rows of `command::ALL`.
//! Other structures are named once with their C names, and their fields come from `Pod::FIELDS`. A
//! constant is named once, with the prefix that its C name has.

use std::mem::size_of;

use vkfd_uapi::call::Known;
use vkfd_uapi::pod::{Field, Pod};
use vkfd_uapi::{command, event, memory, process, queue, smi, svm};

use super::{Fact, Presence};

/// A field whose C name is not its Rust name, or that came with a later version.
struct Exception {
    structure: &'static str,
    field: &'static str,
    c_name: &'static str,
    since: u32,
    until: Option<u32>,
}

const fn renamed(structure: &'static str, field: &'static str, c_name: &'static str) -> Exception {
    Exception { structure, field, c_name, since: 1, until: None }
}

const EXCEPTIONS: &[Exception] = &[
    renamed("kfd_memory_exception_failure", "not_present", "NotPresent"),
    renamed("kfd_memory_exception_failure", "read_only", "ReadOnly"),
    renamed("kfd_memory_exception_failure", "no_execute", "NoExecute"),
    renamed("kfd_hsa_memory_exception_data", "error_type", "ErrorType"),
    // The union has no name; this is its longest member.
    renamed("kfd_event_data", "payload", "memory_exception_data"),
    renamed("kfd_ioctl_svm_attribute", "attr_type", "type"),
    Exception {
        structure: "kfd_ioctl_set_memory_policy_args",
        field: "misc_process_flag",
        c_name: "pad",
        since: 1,
        until: Some(18),
    },
    Exception {
        structure: "kfd_ioctl_set_memory_policy_args",
        field: "misc_process_flag",
        c_name: "misc_process_flag",
        since: 18,
        until: None,
    },
    Exception {
        structure: "kfd_ioctl_create_queue_args",
        field: "metadata_ring_size",
        c_name: "pad",
        since: 17,
        until: Some(22),
    },
    Exception {
        structure: "kfd_ioctl_create_queue_args",
        field: "metadata_ring_size",
        c_name: "metadata_ring_size",
        since: 22,
        until: None,
    },
];

pub fn facts() -> Vec<Fact> {
    let mut facts = structures();
    facts.extend(commands());
    facts.extend(constants());
    facts
}

fn version_fact(name: String, since: u32, until: Option<u32>, ours: usize) -> Fact {
    Fact { expression: name.clone(), name, presence: Presence::Version, since, until, ours: ours as u64 }
}

/// Size of a structure, and offset and size of each field.
fn structure(c_name: &str, (size, fields): (usize, &[Field]), since: u32, until: Option<u32>) -> Vec<Fact> {
    let mut facts = vec![version_fact(format!("sizeof(struct {c_name})"), since, until, size)];
    // `base` is the shorter form of a structure that grew; its fields are compared by its own
    // entry.
    for field in fields.iter().filter(|field| field.name != "base") {
        let mut exceptions = EXCEPTIONS
            .iter()
            .filter(|exception| exception.structure == c_name && exception.field == field.name)
            .peekable();
        if exceptions.peek().is_none() {
            facts.extend(field_facts(c_name, field.name, since, None, field));
        }
        for exception in exceptions {
            let since = since.max(exception.since);
            facts.extend(field_facts(c_name, exception.c_name, since, exception.until, field));
        }
    }
    facts
}

fn field_facts(structure: &str, c_name: &str, since: u32, until: Option<u32>, field: &Field) -> [Fact; 2] {
    let offset = format!("offsetof(struct {structure}, {c_name})");
    let size = format!("sizeof(((struct {structure} *)0)->{c_name})");
    [version_fact(offset, since, until, field.offset), version_fact(size, since, until, field.size)]
}

/// The C name of a call's argument.
fn argument(known: &Known) -> String {
    let name = match known.command {
        command::AVAILABLE_MEMORY => "get_available_memory".to_owned(),
        _ => known.name.to_lowercase(),
    };
    format!("kfd_ioctl_{name}_args")
}

fn structures() -> Vec<Fact> {
    let of_calls = command::ALL.iter().filter(|known| !known.fields.is_empty());
    let mut facts: Vec<Fact> = of_calls
        .flat_map(|known| structure(&argument(known), (known.command.size(), known.fields), known.since, known.until))
        .collect();
    macro_rules! compare {
        ($($c_name:ident = $module:ident::$name:ident since $since:literal;)+) => {
            $(facts.extend(structure(
                stringify!($c_name),
                (size_of::<$module::$name>(), <$module::$name as Pod>::FIELDS),
                $since,
                None,
            ));)+
        };
    }
    // Those that arguments and events are made of.
    compare! {
        kfd_process_device_apertures = process::ProcessDeviceApertures since 1;
        kfd_memory_exception_failure = event::MemoryExceptionFailure since 1;
        kfd_hsa_memory_exception_data = event::MemoryExceptionData since 3;
        kfd_hsa_hw_exception_data = event::HwExceptionData since 1;
        kfd_hsa_signal_event_data = event::SignalEventData since 14;
        kfd_event_data = event::EventData since 1;
        kfd_ioctl_svm_attribute = svm::SvmAttribute since 5;
    }
    // The attributes follow the fixed part without a gap.
    let attributes = "offsetof(struct kfd_ioctl_svm_args, attrs)".into();
    facts.push(version_fact(attributes, 5, None, size_of::<svm::SvmArgs>()));
    facts
}

fn commands() -> impl Iterator<Item = Fact> {
    command::ALL.iter().map(|known| {
        let name = format!("AMDKFD_IOC_{}", known.name);
        Fact {
            expression: name.clone(),
            name,
            presence: if replaces_another(known) { Presence::Version } else { Presence::Macro },
            since: known.since,
            until: known.until,
            ours: known.command.0.into(),
        }
    })
}

/// Whether an older header defines the same name with another value, so that only the version tells
/// which it is.
fn replaces_another(known: &Known) -> bool {
    command::ALL.iter().any(|other| other.name == known.name && other.until == Some(known.since))
}

fn constants() -> Vec<Fact> {
    let mut facts = Vec::new();
    macro_rules! compare {
        ($($presence:ident $prefix:literal $module:ident since $since:literal: $($name:ident)+;)+) => {
            $($(
                let name = concat!($prefix, stringify!($name));
                facts.push(Fact {
                    name: name.into(),
                    expression: name.into(),
                    presence: Presence::$presence,
                    since: $since,
                    until: None,
                    ours: $module::$name as u64,
                });
            )+)+
        };
    }
    compare! {
        Macro "KFD_" process since 1: IOCTL_MAJOR_VERSION;
        Macro "KFD_IOC_" process since 1: CACHE_POLICY_COHERENT CACHE_POLICY_NONCOHERENT;
        Macro "" process since 1: NUM_OF_SUPPORTED_GPUS;
        Macro "KFD_" process since 13: RUNTIME_ENABLE_MODE_ENABLE_MASK RUNTIME_ENABLE_MODE_TTMP_SAVE_MASK;
        Macro "KFD_" process since 18: PROC_FLAG_MFMA_HIGH_PRECISION;

        Macro "KFD_IOC_" queue since 1: QUEUE_TYPE_COMPUTE QUEUE_TYPE_SDMA QUEUE_TYPE_COMPUTE_AQL;
        Macro "KFD_IOC_" queue since 3: QUEUE_TYPE_SDMA_XGMI;
        Macro "KFD_IOC_" queue since 17: QUEUE_TYPE_SDMA_BY_ENG_ID;
        Macro "KFD_" queue since 1: MAX_QUEUE_PERCENTAGE MAX_QUEUE_PRIORITY;
        // Some headers between 1.11 and 1.22 do not have it.
        Macro "KFD_" queue since 22: MIN_QUEUE_RING_SIZE;

        Macro "KFD_IOC_" event since 1:
            EVENT_SIGNAL EVENT_NODECHANGE EVENT_DEVICESTATECHANGE EVENT_HW_EXCEPTION EVENT_SYSTEM_EVENT
            EVENT_DEBUG_EVENT EVENT_PROFILE_EVENT EVENT_QUEUE_EVENT EVENT_MEMORY
            WAIT_RESULT_COMPLETE WAIT_RESULT_TIMEOUT WAIT_RESULT_FAIL;
        Macro "KFD_" event since 1:
            SIGNAL_EVENT_LIMIT HW_EXCEPTION_WHOLE_GPU_RESET HW_EXCEPTION_PER_ENGINE_RESET HW_EXCEPTION_GPU_HANG
            HW_EXCEPTION_ECC;
        Macro "KFD_" event since 3: MEM_ERR_NO_RAS MEM_ERR_SRAM_ECC MEM_ERR_POISON_CONSUMED MEM_ERR_GPU_HANG;

        Macro "KFD_IOC_" memory since 1:
            ALLOC_MEM_FLAGS_VRAM ALLOC_MEM_FLAGS_GTT ALLOC_MEM_FLAGS_USERPTR ALLOC_MEM_FLAGS_DOORBELL
            ALLOC_MEM_FLAGS_COHERENT ALLOC_MEM_FLAGS_AQL_QUEUE_MEM ALLOC_MEM_FLAGS_NO_SUBSTITUTE ALLOC_MEM_FLAGS_PUBLIC
            ALLOC_MEM_FLAGS_EXECUTABLE ALLOC_MEM_FLAGS_WRITABLE;
        Macro "KFD_IOC_" memory since 3: ALLOC_MEM_FLAGS_MMIO_REMAP;
        Macro "KFD_IOC_" memory since 11: ALLOC_MEM_FLAGS_UNCACHED;
        Macro "KFD_IOC_" memory since 15: ALLOC_MEM_FLAGS_EXT_COHERENT;
        Macro "KFD_IOC_" memory since 16: ALLOC_MEM_FLAGS_CONTIGUOUS;
        Macro "KFD_" memory since 11: INVALID_FD;
        Version "KFD_" memory since 3: MMIO_REMAP_HDP_MEM_FLUSH_CNTL MMIO_REMAP_HDP_REG_FLUSH_CNTL;

        Macro "KFD_IOCTL_" svm since 5:
            SVM_FLAG_HOST_ACCESS SVM_FLAG_COHERENT SVM_FLAG_HIVE_LOCAL SVM_FLAG_GPU_RO SVM_FLAG_GPU_EXEC
            SVM_FLAG_GPU_READ_MOSTLY;
        Macro "KFD_IOCTL_" svm since 11: SVM_FLAG_GPU_ALWAYS_MAPPED;
        Macro "KFD_IOCTL_" svm since 15: SVM_FLAG_EXT_COHERENT;
        Version "KFD_IOCTL_" svm since 5:
            SVM_OP_SET_ATTR SVM_OP_GET_ATTR SVM_LOCATION_SYSMEM SVM_LOCATION_UNDEFINED
            SVM_ATTR_PREFERRED_LOC SVM_ATTR_PREFETCH_LOC SVM_ATTR_ACCESS SVM_ATTR_ACCESS_IN_PLACE SVM_ATTR_NO_ACCESS
            SVM_ATTR_SET_FLAGS SVM_ATTR_CLR_FLAGS SVM_ATTR_GRANULARITY;

        Macro "KFD_" smi since 10: SMI_EVENT_MSG_SIZE;
        Version "KFD_" smi since 3:
            SMI_EVENT_NONE SMI_EVENT_VMFAULT SMI_EVENT_THERMAL_THROTTLE;
        Version "KFD_" smi since 10:
            SMI_EVENT_GPU_PRE_RESET SMI_EVENT_GPU_POST_RESET SMI_EVENT_MIGRATE_START SMI_EVENT_MIGRATE_END
            SMI_EVENT_PAGE_FAULT_START SMI_EVENT_PAGE_FAULT_END SMI_EVENT_QUEUE_EVICTION SMI_EVENT_QUEUE_RESTORE
            SMI_EVENT_UNMAP_FROM_GPU SMI_EVENT_ALL_PROCESS
            MIGRATE_TRIGGER_PREFETCH MIGRATE_TRIGGER_PAGEFAULT_GPU MIGRATE_TRIGGER_PAGEFAULT_CPU
            MIGRATE_TRIGGER_TTM_EVICTION
            QUEUE_EVICTION_TRIGGER_SVM QUEUE_EVICTION_TRIGGER_USERPTR QUEUE_EVICTION_TRIGGER_TTM
            QUEUE_EVICTION_TRIGGER_SUSPEND QUEUE_EVICTION_CRIU_CHECKPOINT QUEUE_EVICTION_CRIU_RESTORE
            SVM_UNMAP_TRIGGER_MMU_NOTIFY SVM_UNMAP_TRIGGER_MMU_NOTIFY_MIGRATE SVM_UNMAP_TRIGGER_UNMAP_FROM_CPU;
        Version "KFD_" smi since 23: SMI_EVENT_PROCESS_START SMI_EVENT_PROCESS_END;
    }
    facts
}
