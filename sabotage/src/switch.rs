// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The list of switches.

macro_rules! switches {
    ($(
        $(#[doc = $whole:literal])*
        $part:ident = $prefix:literal {
            $($switch:ident = $name:literal $([$value:literal])?: $about:literal;)*
        }
    )*) => {
        /// What a switch breaks a part of: the first half of its name.
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

            /// What its switches' names begin with.
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

            /// What people call it: `driver.tlb_flush`.
            #[inline]
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Switch::$switch => concat!($prefix, ".", $name),)*)*
                }
            }

            /// What it does, in one line.
            #[inline]
            pub const fn about(self) -> &'static str {
                match self {
                    $($(Switch::$switch => $about,)*)*
                }
            }

            /// What it breaks a part of.
            #[inline]
            pub const fn part(self) -> Part {
                match self {
                    $($(Switch::$switch => Part::$part,)*)*
                }
            }

            /// What its value is, if it takes one.
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
        GenerationCheck = "generation_check": "Pages are committed whatever happened since they were faulted in.";
        Unregister = "unregister": "Freed objects keep their notifiers.";
        RangeEnd = "range_end": "An invalidation does not hit a range whose last page alone it touches.";
        PrefixSum = "prefix_sum": "The second range of a batch begins a page early on the GPU.";
        Identity = "identity": "A single range is that at its GPU address, as if GPU and CPU addresses were the same.";
        BlockEnd = "block_end": "A block of SVM memory that had no ranges for a moment ends, also when it has some again.";
        BlockIdentity = "block_identity": "A call that has a block of SVM memory that has ended finds the next one at its addresses.";
        OthersErrors = "others_errors": "What is the matter with other memory of a block that an SVM call maps is the call's error.";
        Forgotten = "forgotten": "Memory that leaves the SVM ranges while it is being mapped gets entries.";
        BeforeCommit = "before_commit": "The hook of the driver's options is called between faulting pages in and committing them, with the first range of the lot: the place for a race that a test wants to happen every time. Breaks nothing by itself.";
    }
    /// One GPU.
    Gpu = "gpu" {
        SkipTlbFlush = "skip_tlb_flush": "The GPU does nothing when it is told to flush its TLB.";
        ShortCopy = "short_copy": "Copies leave their last byte out.";
        AllocateInAccess = "allocate_in_access": "Each access of a queue's thread allocates while it is in flight.";
        ShortGrid = "short_grid": "The last work-item of a launch does not run.";
    }
    /// One fast engine. A GPU passes its switches on to its engines.
    Cu = "cu" {
        Handler = "handler" ["operation"]: "The fast engine's handler of an operation spoils its result.";
        Chain = "chain": "The last source of a chained operation is the first; the first of a sum of 64 bits is the second.";
    }
    /// The memory of the process that the user host runs in.
    Host = "host" {
        CopyUnsealed = "copy_unsealed": "Pages are copied while others may still write to them.";
        MoveStacks = "move_stacks": "Threads' stacks move like any memory.";
        WaitForRegistration = "wait_for_registration": "The worker waits for the mm's registration whoever has it.";
        TouchWhileRegistering = "touch_while_registering" ["address"]: "A thread that registers memory touches this address meanwhile. Breaks nothing by itself.";
        EndSlowly = "end_slowly": "Waits before the registration of what has stayed in system memory ends. Breaks nothing by itself.";
        EndCarelessly = "end_carelessly": "Registrations end without regard to what has been moved there meanwhile.";
        HandOverSlowly = "hand_over_slowly": "Waits while the events of memory go from one descriptor to another. Breaks nothing by itself.";
        ForgetWhatWent = "forget_what_went": "What was unmapped while the events of memory went from one descriptor to another is not looked for.";
        ReplaceSlowly = "replace_slowly": "Waits between the last look at a mapping and its replacement. Breaks nothing by itself.";
        TellSlowly = "tell_slowly": "Waits before the driver is told of a change of memory that is on a GPU. Breaks nothing by itself.";
        AheadOfChanges = "ahead_of_changes": "GPUs' accesses do not wait until the driver was told of changes.";
        ForgetWhatMoved = "forget_what_moved": "What was moved away just before a mapping was replaced is not looked for.";
    }
    /// One virtio-gpu device.
    VirtioGpu = "virtio-gpu" {
        LastRange = "last_range": "The last range of a list is not registered; the one before it stands in for it.";
        Swapped = "swapped": "Two ranges change places.";
        Shifted = "shifted": "One range is a page further on.";
        FirstOnly = "first_only": "Only the first range is registered, again and again.";
        FreedEarly = "freed_early": "What is registered is freed as soon as it is mapped.";
        EarlyFence = "early_fence": "Fences are answered before the work.";
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
        ForgetFree = "forget_free": "Pages of the GPU that are free are forgotten.";
        TellFreeLate = "tell_free_late": "The driver hears late which pages of the GPU are free, and its calls do not wait for it.";
        KeepOthers = "keep_others": "Pages that only other processes have are not evicted.";
        NearRanges = "near_ranges": "Of ranges that are looked up together, all but the first have the pages one further back.";
    }
}

/// How many switches take a value.
#[cfg(feature = "sabotage")]
pub(crate) const VALUES: usize = slot(Switch::ALL.len());

/// How many of the first `end` switches take a value.
#[cfg(feature = "sabotage")]
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

#[cfg(feature = "sabotage")]
const _: () = assert!(Switch::ALL.len() <= 64, "a set is a word of bits");

#[cfg(feature = "sabotage")]
impl Switch {
    /// Its bit in a set.
    pub(crate) const fn bit(self) -> u64 {
        1 << self as u8
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
