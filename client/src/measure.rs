// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a benchmark asks of the driver (vkfd only): how ranges share notifiers, and what the host
//! alone takes for their pages.

use std::time::Duration;

use vkfd_uapi::pod::Pod;
use vkfd_uapi::vkfd::{self, MeasureArgs, WindowsArgs};

use crate::address::CpuVa;
use crate::client::Client;
use crate::error::{ClientError, Result};
use crate::UserptrRange;

impl Client {
    /// Has later registrations by this client's process share notifiers where the gap between two
    /// ranges is at most `gap` bytes; `None`: a notifier per range.
    ///
    /// # Errors
    ///
    /// What the KFD refused; ENOTTY when it is not vkfd.
    pub fn set_window_gap(&self, gap: Option<u64>) -> Result {
        let mut args = WindowsArgs { gap: gap.unwrap_or(0), per_range: gap.is_none().into(), pad: 0 };
        self.ioctl(vkfd::SET_WINDOWS, &mut args).map_err(ClientError::call("SET_WINDOWS"))
    }

    /// How long the KFD's host takes to fault in the pages of `ranges`, without registering them:
    /// the floor of a registration.
    ///
    /// # Errors
    ///
    /// What the KFD refused; ENOTTY when it is not vkfd.
    pub fn measure_fault(&self, ranges: &[UserptrRange]) -> Result<Duration> {
        self.measure(ranges, vkfd::MEASURE_FAULT)
    }

    /// How long the kernel's own call takes to fault in the pages of `ranges`, called once per
    /// range.
    ///
    /// # Errors
    ///
    /// As [`Client::measure_fault`]; EOPNOTSUPP where the host has no such call.
    pub fn measure_fault_bare(&self, ranges: &[UserptrRange]) -> Result<Duration> {
        self.measure(ranges, vkfd::MEASURE_FAULT_BARE)
    }

    /// How long it takes to pin the pages of `ranges`, as a driver without notifiers has to.
    ///
    /// # Errors
    ///
    /// As [`Client::measure_fault`]; EOPNOTSUPP where the host cannot pin.
    pub fn measure_pin(&self, ranges: &[UserptrRange]) -> Result<Duration> {
        self.measure(ranges, vkfd::MEASURE_PIN)
    }

    fn measure(&self, ranges: &[UserptrRange], what: u32) -> Result<Duration> {
        let num_ranges = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        let ranges_ptr = CpuVa::of(ranges.as_ptr()).0;
        let mut args = MeasureArgs { ranges_ptr, num_ranges, what, ..MeasureArgs::zeroed() };
        self.ioctl(vkfd::MEASURE, &mut args).map_err(ClientError::call("MEASURE"))?;
        Ok(Duration::from_nanos(args.nanoseconds))
    }
}
