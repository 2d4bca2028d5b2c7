// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The list of switches.

macro_rules! switches {
    ($(
        $(#[doc = $whole:literal])*
        $part:ident = $prefix:literal {
            $($switch:ident = $name:literal $([$value:literal])?: $about:literal;)*
        }
    )*) => {
        /// The component that a switch breaks: the first half of its name.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Part {
            $($(#[doc = $whole])* $part,)*
        }

        /// A switch: one way to break vkfd.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Switch {
            $($(#[doc = $about] $switch,)*)*
        }

        impl Part {
            /// All of them.
            pub const ALL: &'static [Part] = &[$(Part::$part),*];

            /// The prefix of its switches' names.
            #[inline]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Part::$part => $prefix,)*
                }
            }
        }

        impl Switch {
            /// All of them, in the order of the list.
            pub const ALL: &'static [Switch] = &[$($(Switch::$switch,)*)*];

            /// Its name in options: `driver.tlb_flush`.
            #[inline]
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Switch::$switch => concat!($prefix, ".", $name),)*)*
                }
            }

            /// Its effect, in one line.
            #[inline]
            pub const fn about(self) -> &'static str {
                match self {
                    $($(Switch::$switch => $about,)*)*
                }
            }

            /// The component that it breaks.
            #[inline]
            pub const fn part(self) -> Part {
                match self {
                    $($(Switch::$switch => Part::$part,)*)*
                }
            }

            /// The name of its value, if it takes one.
            #[inline]
            pub const fn value(self) -> Option<&'static str> {
                match self {
                    $($($(Switch::$switch => Some($value),)?)*)*
                    _ => None,
                }
            }
        }
    };
}

switches! {
    /// The driver of one machine.
    Driver = "driver" {
        Invalidation = "invalidation": "Invalidations are ignored.";
        TlbFlush = "tlb_flush": "TLB flushes are left out.";
        GenerationCheck = "generation_check": "The driver commits pages without a check for invalidations since their fault.";
        Unregister = "unregister": "Freed objects keep their notifiers.";
        RangeEnd = "range_end": "An invalidation does not hit a range whose last page alone it touches.";
        PrefixSum = "prefix_sum": "The second range of a batch begins a page early on the GPU.";
        Identity = "identity": "The driver takes a single range's GPU address for its CPU address.";
        BlockEnd = "block_end": "A block of SVM memory that had no ranges for a moment ends, even if it has ranges again.";
        BlockIdentity = "block_identity": "A call that holds an ended block of SVM memory uses the next block at its addresses.";
        OthersErrors = "others_errors": "An SVM call fails for pages of its block that the caller did not name.";
        EnterReleased = "enter_released": "Objects are entered in a process that has ended.";
        Forgotten = "forgotten": "Memory that leaves the SVM ranges while it is being mapped gets entries.";
        ForgottenMissing = "forgotten_missing": "An SVM call forgets that memory was missing before it looks for it again.";
        CountedRanges = "counted_ranges": "SVM memory in VRAM counts as memory that is not available.";
        LateMessage = "late_message": "The driver logs a page fault after it has woken the client.";
        UntimedEvictions = "untimed_evictions": "Evictions take no time in a process's statistics.";
        FirstGpusCounts = "first_gpus_counts": "SVM faults and migrations count as the first GPU's.";
        EveryonesMemory = "everyones_memory": "All memory in use on a GPU is each process's.";
        BeforeCommit = "before_commit": "The driver calls its options' hook between faulting pages in and committing them. A test can cause a race there every time. Breaks nothing by itself.";
    }
    /// One GPU.
    Gpu = "gpu" {
        SkipTlbFlush = "skip_tlb_flush": "The GPU ignores requests to flush its TLB.";
        KeptPages = "kept_pages": "Kernels keep pointers to pages although the driver has changed the tables.";
        ShortCopy = "short_copy": "Copies leave their last byte out.";
        AllocateInAccess = "allocate_in_access": "Each access of a queue's thread allocates while it is in flight.";
        ShortGrid = "short_grid": "The last work-item of a launch does not run.";
        Panic = "panic" ["place"]: "A thread panics within an access: 1, a packet processor's; 2, a kernel's on its queue's thread; 3, a kernel's on another thread. Breaks nothing by itself.";
        OpenSlot = "open_slot": "An access in which a thread panics does not end.";
        OwnPolls = "own_polls": "Each idle queue polls its doorbell by itself.";
        LoneLaunches = "lone_launches": "Each launch has the GPU's registers and LDS for itself.";
        LostGroups = "lost_groups": "Work-groups that are to succeed another one are left out.";
        Lenient = "lenient": "A strict GPU does what others do.";
        OtherUnits = "other_units": "Waves are on the compute units of a Vega 10, whatever the GPU has.";
        UsualOrder = "usual_order": "Waves run in the usual order, whatever was asked for.";
        WorkOfAll = "work_of_all": "The time and the waves of each address space's kernels are those of all kernels of the GPU.";
        KeptObjects = "kept_objects": "The profile keeps the kernel objects of address spaces that have ended.";
    }
    /// One fast engine. A GPU passes its switches on to its engines.
    Cu = "cu" {
        Handler = "handler" ["operation"]: "The fast engine's handler of an operation spoils its result.";
        Chain = "chain": "The last source of a chained operation is the first; the first of a sum of 64 bits is the second.";
        KeptCode = "kept_code": "Decoded code is kept, however much it is.";
        LostChange = "lost_change": "A look at the LDS that waves access behind a barrier takes addresses for those of before.";
        AheadOfBarrier = "ahead_of_barrier": "Waves behind a barrier run to the next one, one after the other, whatever they access.";
        LostRows = "lost_rows": "In translated code, a row that leaves its register for another one is not stored.";
        PassedSource = "passed_source": "Translated code brings sums together although their sources are not there.";
        UnlookedBounds = "unlooked_bounds": "Translated code does what comes behind a store to LDS before it, and does not look whether it is in bounds.";
        UnlookedSpans = "unlooked_spans": "Translated code loads from LDS before a store that comes first, and does not look whether that is to other bytes.";
        SameStrip = "same_strip": "Translated loops that do two strips abreast do the first one twice.";
        DroppedMask = "dropped_mask": "Translated code makes no mask that another instruction makes anew, though one between them reads it.";
        LostRound = "lost_round": "In translated loops, vector instructions do one round only.";
        OpenLanes = "open_lanes": "Translated code stores inactive lanes, too.";
        SwappedSources = "swapped_sources": "In translated code, the first two sources are exchanged.";
        LateScalars = "late_scalars": "Translated vector instructions read scalars as they are after the region.";
        MendAll = "mend_all": "Translated code leaves all lanes of reciprocal square roots to the engine. Breaks nothing by itself.";
        KeptDenormals = "kept_denormals": "Translated code keeps denormal singles where MODE loses them.";
        GuessedShape = "guessed_shape": "Loads take lanes for neighbours without a look at their addresses: in translated code, and in handlers with AVX-512.";
        KeptLanes = "kept_lanes": "Lanes of a load or a store are in the pages of the time before.";
        LostTile = "lost_tile": "A matrix operation does not store four rows of a block that have a NaN.";
        CrossedPage = "crossed_page": "Translated scalar loads read on behind the end of their page.";
        UnkeptRows = "unkept_rows": "Translated code whose load misses does not put its rows back.";
        SwappedStores = "swapped_stores": "The tail of a translated segment is done from its end.";
        LostExchange = "lost_exchange": "Translated code leaves exchanges between lanes out.";
        SwappedSegments = "swapped_segments": "The last segment of a translated region is done first.";
        LeftEarly = "left_early": "A translated loop is left after its first chunk of rounds.";
        ClosedRing = "closed_ring": "A translated loop of several blocks is not left in its middle.";
        ClosedSuperblock = "closed_superblock": "Blocks that are done as one are not left in their middle.";
        KeptSuperblock = "kept_superblock": "Blocks are done as one though the code of one of them has changed.";
        KeptRing = "kept_ring": "A translated loop of several blocks is done though the code of one of them has changed.";
        KeptHalves = "kept_halves": "The reference engine's unfused operations of mixed precision keep denormal halves.";
        FlushedSums = "flushed_sums": "The reference engine's sums in memory lose denormals on every target.";
        QuietedNans = "quieted_nans": "The reference engine makes signalling NaNs quiet in every mode.";
        ApertureOfSum = "aperture_of_sum": "In the reference engine, a FLAT access's address and offset together decide whether it is one of LDS or of scratch.";
        BlindMemory = "blind_memory": "The check of memory looks at no access.";
        BlindRace = "blind_race": "The check of races looks at no access to LDS.";
        BlindMemoryRace = "blind_memory_race": "The check of races looks at no access to memory.";
        UnknownSpins = "unknown_spins": "The check of races takes no loop for one that waits.";
        UnknownGuesses = "unknown_guesses": "The check of races takes no load for a guess that a compare-and-swap corrects.";
        OneQueue = "one_queue": "The check of races takes launches at the same time to have an order.";
        OneCache = "one_cache": "The check of races knows one cache for vectors and scalars, which keeps no store.";
        HastyChecks = "hasty_checks": "A checked wave gives way within an instruction, too, and has not run it then.";
        BlindWaits = "blind_waits": "The check of waits at run time follows no register.";
        BlindHazards = "blind_hazards": "No kernel that is launched is read for hazards.";
        PromptLoads = "prompt_loads": "Loads complete at once in every order of waves.";
        BlindInit = "blind_init": "The check of unwritten bits keeps none.";
    }
    /// What a program has of vkfd in it, and what `vkfd run` makes for the program.
    Program = "program" {
        LastInList = "last_in_list": "The library comes last in LD_PRELOAD.";
        UncheckedHooks = "unchecked_hooks": "The library does not check whether the program's calls reach its hooks.";
        LostEnvironment = "lost_environment": "A program that is run with another environment gets that one alone.";
        PlainPaths = "plain_paths": "Hooks read paths with ordinary loads.";
        CallersStack = "callers_stack": "All calls run on the caller's stack, however small it is.";
        SizeInProcess = "size_in_process": "Files of memory get their size under the program's own file-size limit.";
        LoaderInThreads = "loader_in_threads": "Threads of the driver take the loader's lock as they start.";
        NoCards = "no_cards": "GPUs have no primary nodes in /sys/class/drm and /dev/dri.";
        UsageAtStart = "usage_at_start": "Files of memory in use and of load in sysfs stay as `vkfd run` has made them.";
        ListsAtStart = "lists_at_start": "The list of processes and the facts about descriptors stay as a machine without users has them.";
        PrivateFiles = "private_files": "The files that `vkfd run` makes are for its own user alone.";
    }
    /// The memory of the process that the user host runs in.
    Host = "host" {
        Unsealed = "unsealed": "Files of memory are not sealed.";
        NoReserve = "no_reserve": "The host leaves no mappings to the program.";
        SignalsInHooks = "signals_in_hooks": "Signal handlers run inside the hooks of mapping calls.";
        RemoveAnything = "remove_anything": "A server removes whatever lies at its socket's path.";
        CopyUnsealed = "copy_unsealed": "Pages are copied while other threads may still write to them.";
        MoveStacks = "move_stacks": "Threads' stacks move like any memory.";
        WaitForRegistration = "wait_for_registration": "The worker waits for the registration lock instead of trying it.";
        TouchWhileRegistering = "touch_while_registering" ["address"]: "A thread that registers memory touches this address meanwhile. Breaks nothing by itself.";
        MapWhileFaulting = "map_while_faulting" ["address"]: "A fault maps a page at this address, between the registration of memory and the look at its pages. Breaks nothing by itself.";
        TrustRegistration = "trust_registration": "A fault does not look whether memory was mapped after its registration.";
        EndSlowly = "end_slowly": "The worker pauses before it ends the registration of pages that stayed in system memory. Breaks nothing by itself.";
        EndCarelessly = "end_carelessly": "The worker ends registrations without a check for mappings that moved there meanwhile.";
        HandOverSlowly = "hand_over_slowly": "The host pauses while a range's events move from one descriptor to another. Breaks nothing by itself.";
        ForgetWhatWent = "forget_what_went": "The host does not look for unmaps that happened while a range's events moved from one descriptor to another.";
        ReplaceSlowly = "replace_slowly": "The worker pauses between the last check of a mapping and its replacement. Breaks nothing by itself.";
        TellSlowly = "tell_slowly": "The host pauses before it reports a change of memory on a GPU to the driver. Breaks nothing by itself.";
        AheadOfChanges = "ahead_of_changes": "GPU accesses do not wait for the delivery of changes to the driver.";
        ForgetWhatMoved = "forget_what_moved": "The worker does not look for pages that moved away just before it replaced a mapping.";
    }
    /// One virtio-gpu device.
    VirtioGpu = "virtio-gpu" {
        LastRange = "last_range": "The last range of a list is not registered; the one before it stands in for it.";
        Swapped = "swapped": "Two ranges are swapped.";
        Shifted = "shifted": "One range is a page further on.";
        FirstOnly = "first_only": "Only the first range is registered, again and again.";
        FreedEarly = "freed_early": "The device frees a registration as soon as it is mapped.";
        EarlyFence = "early_fence": "Fences are answered before the work.";
        ExpandUnchecked = "expand_unchecked": "The pieces of a request are expanded before their sum is checked.";
        AllMemory = "all_memory": "A guest may have all of the host's memory as system memory.";
        KeptFiles = "kept_files": "Files of a message that is refused stay open.";
        WholeMemory = "whole_memory": "A context's process has all memory of the host's process, as a program's own has.";
    }
    /// The instruction tables, as one thread sees them.
    Isa = "isa" {
        RecordValue = "record_value" ["bit"]: "A bit that the record fixes has the other value. The bits are counted among those that it fixes.";
        OperandPlace = "operand_place" ["operand"]: "An operand is one bit above its place, or below it if it is at a word's end.";
        OperandWidth = "operand_width" ["operand"]: "An operand lacks its highest bit.";
        RecordName = "record_name": "The name is the next record's with another name.";
        ShapeFlag = "shape_flag" ["flag"]: "A flag that the shape has is missing. Counted among those that it has.";
    }
    /// The kernel module.
    Linux = "linux" {
        EmptyToDevice = "empty_to_device": "Pages move to the GPU without their contents.";
        EmptyToSystem = "empty_to_system": "Pages come back from the GPU without their contents.";
        ForgetFree = "forget_free": "The module forgets free pages of the GPU.";
        TellFreeLate = "tell_free_late": "The module reports free pages of the GPU late, and calls do not wait for the report.";
        KeepOthers = "keep_others": "Pages that only other processes have mapped are not evicted.";
        KeptDirectories = "kept_directories": "Processes that have ended stay in /sys/class/kfd/kfd/proc.";
        NearRanges = "near_ranges": "Of ranges that are looked up together, all but the first have the pages one further back.";
    }
}

/// How many switches take a value.
#[cfg(any(debug_assertions, vkfd_sabotage))]
pub(crate) const VALUES: usize = slot(Switch::ALL.len());

/// How many of the first `end` switches take a value.
#[cfg(any(debug_assertions, vkfd_sabotage))]
const fn slot(end: usize) -> usize {
    let (mut at, mut found) = (0, 0);
    while at < end {
        if Switch::ALL[at].value().is_some() {
            found += 1;
        }
        at += 1;
    }
    found
}

#[cfg(any(debug_assertions, vkfd_sabotage))]
/// Words of a set's bits.
#[cfg(any(debug_assertions, vkfd_sabotage))]
pub(crate) const WORDS: usize = Switch::ALL.len().div_ceil(64);

#[cfg(any(debug_assertions, vkfd_sabotage))]
impl Switch {
    /// Where its bit is in a set: the word, and the bit in it.
    pub(crate) const fn bit(self) -> (usize, u64) {
        (self as usize / 64, 1 << (self as usize % 64))
    }

    /// Where a set has its value.
    pub(crate) const fn slot(self) -> Option<usize> {
        if self.value().is_some() {
            Some(slot(self as usize))
        } else {
            None
        }
    }

    /// The switch of that name.
    pub fn named(name: &str) -> Option<Switch> {
        Switch::ALL.iter().copied().find(|switch| switch.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::format;
    use std::string::String;

    /// `tlb_flush` of `TlbFlush`.
    fn snake(name: &str) -> String {
        let mut snake = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() && !snake.is_empty() {
                snake.push('_');
            }
            snake.extend(letter.to_lowercase());
        }
        snake
    }

    #[test]
    fn code_and_people_call_a_switch_the_same() {
        let mut names = BTreeSet::new();
        for (at, switch) in Switch::ALL.iter().enumerate() {
            assert_eq!(switch.name(), format!("{}.{}", switch.part().name(), snake(&format!("{switch:?}"))));
            assert_eq!(*switch as usize, at);
            assert!(names.insert(switch.name()), "{} is there twice", switch.name());
            assert!(switch.about().ends_with('.'), "{}: {:?} is no sentence", switch.name(), switch.about());
            assert_eq!(Switch::named(switch.name()), Some(*switch));
        }
        assert_eq!(Switch::named("tlb_flush"), None);
    }

    #[test]
    fn each_value_has_a_place_of_its_own() {
        let slots: BTreeSet<usize> = Switch::ALL.iter().filter_map(|switch| switch.slot()).collect();
        assert_eq!(slots, (0..VALUES).collect());
        assert_eq!(Switch::ALL.iter().filter(|switch| switch.value().is_some()).count(), VALUES);
    }
}
