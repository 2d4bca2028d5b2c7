// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the driver can do, asked before anything depends on it.
//!
//! Mechanism: vkfd's query command 0xe0. It is safe to send to any KFD: upstream's table ends at
//! 0x28 and AMD's own below 0x90, and numbers past the table are refused with ENOTTY. The library
//! never sends the batch commands themselves to find out. v2's number is the profiler's in Linux
//! 7.3. A kernel that does not know v3's flag maps the wrong memory without an error.
//!
//! A KFD without the query may have v3's flag all the same, and say so in a property of its GPUs'
//! nodes: AMD's driver with `vm/amdgpu-batch-userptr.patch` does.

use vkfd_uapi::pod::Pod;
use vkfd_uapi::vkfd::{self, CapsArgs};

use crate::error::{ClientError, Errno, Result};
use crate::topology::Node;
use crate::transport::Transport;

/// The capabilities of a KFD. All zero for a KFD that lacks the query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// The driver is vkfd: it has the query commands, among them the reason of the last error.
    pub vkfd: bool,
    /// Batch registration by its own command (the v2 form).
    pub batch: bool,
    /// Batch registration by a flag of ALLOC (the v3 and v4 form).
    pub batch_flag: bool,
    /// Memory that the process may only read can be registered read-only.
    pub read_only: bool,
    /// XNACK can be switched on.
    pub xnack: bool,
    /// [`crate::Client::snapshot`] and its kin work.
    pub snapshot: bool,
    /// [`crate::Client::queues`] works.
    pub queues: bool,
    /// SVM memory is mapped to GPUs, and [`crate::Client::svm`] works.
    pub svm: bool,
    /// Ranges that one batch may have; 0 when the driver does not tell.
    pub max_ranges: u64,
    /// Bytes that the process may register now; 0 when the driver does not tell.
    pub max_bytes: u64,
    /// Notifier windows that one buffer may have; 0 when the driver does not tell.
    pub max_windows: u64,
    /// Bytes that may lie between two ranges of one window; 0 when the driver does not tell.
    pub window_gap: u64,
    /// Milliseconds after which a registration gives up; 0 when the driver does not tell.
    pub register_deadline_ms: u32,
    /// The longest pause between two tries of a restore, in milliseconds; 0 when the driver does
    /// not tell.
    pub restore_pause_ms: u32,
}

impl Caps {
    /// Asks the driver.
    ///
    /// # Errors
    ///
    /// What the query failed with, other than "unknown command".
    pub(crate) fn query(transport: &dyn Transport) -> Result<Self> {
        let size = u32::try_from(size_of::<CapsArgs>()).unwrap_or(0);
        let mut args = CapsArgs { size, ..CapsArgs::zeroed() };
        // SAFETY: the argument is the one that the command declares and has no pointers in it.
        match unsafe { transport.ioctl(vkfd::QUERY_CAPS.0, (&raw mut args).cast()) } {
            Ok(()) => Ok(Self::from(&args)),
            // Old kernels say EINVAL for a number past their table.
            Err(Errno::NOTTY | Errno::INVAL) => Ok(Self::default()),
            Err(errno) => Err(ClientError::Call { call: "QUERY_CAPS", errno }),
        }
    }

    /// With the capabilities that the topology shows of a KFD without the query.
    pub(crate) fn with_topology(mut self, nodes: &[Node]) -> Self {
        let limits = nodes.iter().filter_map(|node| Some(node.gpu.as_ref()?.userptr_batch_max_ranges));
        let limit = limits.min().unwrap_or(0);
        if !self.vkfd && limit > 0 {
            self.batch_flag = true;
            self.max_ranges = limit.into();
        }
        self
    }
}

impl From<&CapsArgs> for Caps {
    fn from(args: &CapsArgs) -> Self {
        let has = |cap| args.caps & cap != 0;
        Self {
            vkfd: true,
            batch: has(vkfd::CAP_BATCH_V2),
            batch_flag: has(vkfd::CAP_BATCH_FLAG),
            read_only: has(vkfd::CAP_READ_ONLY),
            xnack: has(vkfd::CAP_XNACK),
            snapshot: has(vkfd::CAP_SNAPSHOT),
            queues: has(vkfd::CAP_QUEUES),
            svm: has(vkfd::CAP_SVM),
            max_ranges: args.max_ranges,
            max_bytes: args.max_bytes,
            max_windows: args.max_windows,
            window_gap: args.window_gap,
            register_deadline_ms: args.register_deadline_ms,
            restore_pause_ms: args.restore_pause_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::GpuInfo;

    #[test]
    fn a_topology_tells_of_batches_where_the_query_does_not() {
        let gpu = |limit| Some(GpuInfo { userptr_batch_max_ranges: limit, ..GpuInfo::default() });
        let node = |limit| Node { gpu: gpu(limit), ..Node::default() };
        let nodes = [Node::default(), node(64), node(16)];
        let caps = Caps::default().with_topology(&nodes);
        assert_eq!((caps.batch, caps.batch_flag, caps.max_ranges), (false, true, 16));
        assert_eq!(Caps::default().with_topology(&[node(64), node(0)]), Caps::default(), "one GPU cannot");
        assert_eq!(Caps::default().with_topology(&[]), Caps::default());
        let vkfd = Caps { vkfd: true, max_ranges: 7, ..Caps::default() };
        assert_eq!(vkfd.with_topology(&nodes), vkfd);
    }
}
