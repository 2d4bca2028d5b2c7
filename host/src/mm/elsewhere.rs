// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The requests of the process's memory to the mover of its pages to GPUs.

use std::any::Any;
use vkfd_driver::base::addr::{CpuSpan, FabricAddr};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::Access;

/// The mover of pages to GPUs. The memory is below it and knows it as this.
pub(crate) trait Elsewhere: Send + Sync {
    /// Waits until the changes of all calls that have returned were told to the driver.
    fn settle(&self);

    /// As [`Elsewhere::settle`], but without regard to calls that are not over, and cheap: for each
    /// access of a GPU.
    fn settle_told(&self);

    /// How many pages are on GPUs, and in how many runs of neighbours.
    fn resident(&self) -> (u64, usize);

    /// Odd while pages are out of reach for a moment, and different after each such moment.
    fn epoch(&self) -> u64;

    /// Whether pages of `span` are on a GPU.
    fn holds(&self, span: CpuSpan) -> bool;

    /// Calls `f` for each part of `span` whose pages are in one place: `None`, or from there on in
    /// a GPU's memory.
    ///
    /// # Errors
    /// What `f` returned, which ends it.
    fn each_part(&self, span: CpuSpan, f: &mut EachPart<'_>) -> Result<(), Errno>;

    /// Calls `f` for the parts of `span` whose events the watches' descriptor shows.
    fn each_unmoved(&self, span: CpuSpan, f: &mut dyn FnMut(CpuSpan));

    /// Calls `f` for the parts of `span` that nothing is mapped in, as far as that can be told.
    fn each_hole(&self, span: CpuSpan, f: &mut dyn FnMut(CpuSpan));

    /// Why an access to pages of `span` on a GPU is refused, if it is.
    fn refusal(&self, span: CpuSpan, access: Access) -> Option<Errno>;

    /// Pages of `span` are about to be discarded.
    fn expect_discard(&self, span: CpuSpan);

    fn as_any(&self) -> &dyn Any;
}

/// What is called with each part, and where in a GPU's memory it is.
pub(crate) type EachPart<'a> = dyn FnMut(CpuSpan, Option<FabricAddr>) -> Result<(), Errno> + 'a;
