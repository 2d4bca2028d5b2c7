// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A function that a test puts in the driver's way, in builds that have the switches of
//! [`sabotage`](crate::sabotage). In a release it is of no size, and none is called.

use crate::base::addr::CpuSpan;

/// A function that a test puts in the driver's way, or none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hook(#[cfg(any(debug_assertions, vkfd_sabotage))] Option<fn(CpuSpan)>);

impl Hook {
    /// A hook that calls `function`.
    #[cfg(any(debug_assertions, vkfd_sabotage))]
    pub const fn new(function: fn(CpuSpan)) -> Self {
        Self(Some(function))
    }

    /// Calls it.
    pub(crate) fn call(self, span: CpuSpan) {
        #[cfg(any(debug_assertions, vkfd_sabotage))]
        if let Some(function) = self.0 {
            function(span);
        }
        let _ = span;
    }
}
