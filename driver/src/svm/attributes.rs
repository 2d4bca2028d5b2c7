// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a process has said of a range: locations, access by GPU, flags, granularity; how a call
//! changes it, and what is said of several ranges at once. As KFD has it, also where that is
//! surprising: flags are not checked, and a gap is not asked.

use vkfd_uapi::svm as abi;

/// log2 of the pages that migrate together where nobody says otherwise: 2 MiB.
pub const DEFAULT_GRANULARITY: u32 = 9;

/// How GPUs may use a range. GPUs are bits by GPU number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Where it should be: a `gpu_id` or `SVM_LOCATION_*`.
    pub preferred: u32,
    /// Where it was last sent.
    pub prefetch: u32,
    /// `SVM_FLAG_*`.
    pub flags: u32,
    /// log2 of the pages that migrate together.
    pub granularity: u32,
    /// GPUs that may have it migrate to them.
    pub access: u32,
    /// GPUs that use it where it is.
    pub in_place: u32,
}

impl Attributes {
    /// What memory has that nobody set anything for; with XNACK on every GPU may use it.
    pub const fn unset(xnack: bool) -> Self {
        Self {
            preferred: abi::SVM_LOCATION_UNDEFINED,
            prefetch: abi::SVM_LOCATION_UNDEFINED,
            flags: abi::SVM_FLAG_HOST_ACCESS | abi::SVM_FLAG_COHERENT,
            granularity: DEFAULT_GRANULARITY,
            access: if xnack { u32::MAX } else { 0 },
            in_place: 0,
        }
    }

    /// The attributes of faulted memory without a range, by its kind: malloc's heap and the first
    /// stack stay in system memory, where the CPU uses them all the time.
    pub const fn found(heap_or_stack: bool) -> Self {
        let preferred = if heap_or_stack { abi::SVM_LOCATION_SYSMEM } else { abi::SVM_LOCATION_UNDEFINED };
        Self { preferred, ..Self::unset(true) }
    }

    /// Applies one checked attribute; `bit` is the GPU that its value names, if it names one.
    pub fn apply(&mut self, item: abi::SvmAttribute, bit: u32) {
        match item.attr_type {
            abi::SVM_ATTR_PREFERRED_LOC => self.preferred = item.value,
            abi::SVM_ATTR_PREFETCH_LOC => self.prefetch = item.value,
            abi::SVM_ATTR_ACCESS => (self.access, self.in_place) = (self.access | bit, self.in_place & !bit),
            abi::SVM_ATTR_ACCESS_IN_PLACE => (self.access, self.in_place) = (self.access & !bit, self.in_place | bit),
            abi::SVM_ATTR_NO_ACCESS => (self.access, self.in_place) = (self.access & !bit, self.in_place & !bit),
            abi::SVM_ATTR_SET_FLAGS => self.flags |= item.value,
            abi::SVM_ATTR_CLR_FLAGS => self.flags &= !item.value,
            _ => self.granularity = item.value.min(0x3f),
        }
    }

    /// Whether `flag` is set; of several, one of them.
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// GPUs that may use it.
    pub const fn allowed(&self) -> u32 {
        self.access | self.in_place
    }

    /// GPUs that must have entries for it as long as their queues run. With XNACK on the others
    /// fault.
    pub const fn kept(&self, xnack: bool) -> u32 {
        if !xnack || self.has(abi::SVM_FLAG_GPU_ALWAYS_MAPPED) {
            self.allowed()
        } else {
            0
        }
    }

    /// Whether pages are faulted in for reading only.
    pub const fn only_read(&self) -> bool {
        self.has(abi::SVM_FLAG_GPU_RO) || self.has(abi::SVM_FLAG_GPU_READ_MOSTLY)
    }
}

/// What several ranges say together.
pub struct Common {
    location: Option<u32>,
    prefetch: Option<u32>,
    flags_all: u32,
    flags_any: u32,
    granularity: u32,
    access: u32,
    in_place: u32,
}

impl Common {
    /// Of one.
    pub const fn new(a: &Attributes) -> Self {
        Self {
            location: Some(a.preferred),
            prefetch: Some(a.prefetch),
            flags_all: a.flags,
            flags_any: a.flags,
            granularity: a.granularity,
            access: a.access,
            in_place: a.in_place,
        }
    }

    /// And another.
    pub fn add(&mut self, a: &Attributes) {
        self.location = self.location.filter(|l| *l == a.preferred);
        self.prefetch = self.prefetch.filter(|l| *l == a.prefetch);
        self.flags_all &= a.flags;
        self.flags_any |= a.flags;
        self.granularity = self.granularity.min(a.granularity);
        self.access &= a.access;
        self.in_place &= a.in_place;
    }

    /// Fills in one asked attribute; `bit` as in [`Attributes::apply`].
    pub fn answer(&self, item: &mut abi::SvmAttribute, bit: u32) {
        match item.attr_type {
            abi::SVM_ATTR_PREFERRED_LOC => item.value = self.location.unwrap_or(abi::SVM_LOCATION_UNDEFINED),
            abi::SVM_ATTR_PREFETCH_LOC => item.value = self.prefetch.unwrap_or(abi::SVM_LOCATION_UNDEFINED),
            abi::SVM_ATTR_SET_FLAGS => item.value = self.flags_all,
            abi::SVM_ATTR_CLR_FLAGS => item.value = !self.flags_any,
            abi::SVM_ATTR_GRANULARITY => item.value = self.granularity,
            _ => {
                item.attr_type = if self.access & bit != 0 {
                    abi::SVM_ATTR_ACCESS
                } else if self.in_place & bit != 0 {
                    abi::SVM_ATTR_ACCESS_IN_PLACE
                } else {
                    abi::SVM_ATTR_NO_ACCESS
                };
            }
        }
    }
}
