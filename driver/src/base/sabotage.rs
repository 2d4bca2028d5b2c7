// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Switches that break the driver on purpose, so that tests can show that they would notice. Only builds with the
//! `sabotage` feature have them; in any other every question is answered "no" at compile time.

use crate::addr::CpuSpan;

/// A function that a test puts in the driver's way.
#[cfg(feature = "sabotage")]
#[derive(Clone, Copy, Debug)]
pub struct Hook(pub fn(CpuSpan));

#[cfg(feature = "sabotage")]
impl PartialEq for Hook {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::fn_addr_eq(self.0, other.0)
    }
}

#[cfg(feature = "sabotage")]
impl Eq for Hook {}

/// What is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sabotage {
    /// Invalidations are ignored.
    #[cfg(feature = "sabotage")]
    pub invalidation: bool,
    /// TLB flushes are left out.
    #[cfg(feature = "sabotage")]
    pub tlb_flush: bool,
    /// Pages are committed whatever happened since they were faulted in.
    #[cfg(feature = "sabotage")]
    pub generation_check: bool,
    /// Freed objects keep their notifiers.
    #[cfg(feature = "sabotage")]
    pub unregister: bool,
    /// An invalidation does not hit a range whose last page alone it touches.
    #[cfg(feature = "sabotage")]
    pub range_end: bool,
    /// The second range of a batch begins a page early on the GPU.
    #[cfg(feature = "sabotage")]
    pub prefix_sum: bool,
    /// A single range is that at its GPU address, as if GPU and CPU addresses were the same.
    #[cfg(feature = "sabotage")]
    pub identity: bool,
    /// A block of SVM memory that had no ranges for a moment ends, also when it has some again.
    #[cfg(feature = "sabotage")]
    pub block_end: bool,
    /// Who has a block of SVM memory that has ended finds the next one at its addresses.
    #[cfg(feature = "sabotage")]
    pub block_identity: bool,
    /// What is the matter with other memory of a block that an SVM call maps is the call's error.
    #[cfg(feature = "sabotage")]
    pub others_errors: bool,
    /// Memory that leaves the SVM ranges while it is being mapped gets entries.
    #[cfg(feature = "sabotage")]
    pub forgotten: bool,
    /// Called between faulting pages in and committing them, with the first range of the lot: the place for a race that a
    /// test wants to happen every time.
    #[cfg(feature = "sabotage")]
    pub before_commit: Option<Hook>,
}

impl Sabotage {
    /// Pages of `span` and what follows were faulted in and are not committed yet. No lock that an invalidation takes is held.
    pub fn before_commit(&self, span: CpuSpan) {
        #[cfg(feature = "sabotage")]
        if let Some(Hook(call)) = self.before_commit {
            call(span);
        }
        #[cfg(not(feature = "sabotage"))]
        let _ = span;
    }
}

macro_rules! questions {
    ($($(#[$doc:meta])* $name:ident = $field:ident;)*) => {
        impl Sabotage {
            $(
                $(#[$doc])*
                pub const fn $name(&self) -> bool {
                    #[cfg(feature = "sabotage")]
                    return self.$field;
                    #[cfg(not(feature = "sabotage"))]
                    false
                }
            )*
        }
    };
}

questions! {
    /// Whether invalidations are ignored.
    skip_invalidation = invalidation;
    /// Whether TLB flushes are left out.
    skip_tlb_flush = tlb_flush;
    /// Whether generations are not compared.
    skip_generation_check = generation_check;
    /// Whether notifiers stay registered.
    skip_unregister = unregister;
    /// Whether ranges end a page early for invalidations.
    skip_range_end = range_end;
    /// Whether CPU addresses are ignored.
    identity_translation = identity;
    /// Whether a block's end is not called off where there are ranges again.
    end_used_blocks = block_end;
    /// Whether a block is found by its addresses alone.
    confuse_blocks = block_identity;
    /// Whether an SVM call looks at more than it names.
    fail_for_others = others_errors;
    /// Whether what has left the SVM ranges is mapped.
    keep_forgotten = forgotten;
    /// Whether a prefix sum is wrong.
    skew_prefix_sum = prefix_sum;
}
