// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which process's memory a render node's open file shows: that of its ACQUIRE_VM.
//!
//! A file is one process's, as in `kfd_process_device_init_vm` of Linux's
//! `drivers/gpu/drm/amd/amdkfd/kfd_process.c`. The host keeps the process beside the open file, and
//! its lock guards it. The host's lock is not held while the call makes a VM, so that another
//! process's call may bind the file meanwhile. The later one is refused then.

use crate::base::errno::Errno;

/// Where a host keeps the process of an open render node.
pub trait Binding {
    /// A process, as the host has it.
    type Process;

    /// Whether the file is bound to another process.
    fn is_anothers(&self, process: &Self::Process) -> bool;

    /// Binds the file, unless it is bound; whether it is this process's now.
    fn bind(&self, process: &Self::Process) -> bool;
}

/// ACQUIRE_VM with a file, of which `make_vm` is the rest. Where that fails, the file is as it was.
///
/// # Errors
/// EBUSY if the file is another process's, or those of `make_vm`.
pub fn acquire_vm<F: Binding, E: From<Errno>>(
    file: &F,
    process: &F::Process,
    make_vm: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    if file.is_anothers(process) {
        return Err(Errno::EBUSY.into());
    }
    make_vm()?;
    if file.bind(process) {
        Ok(())
    } else {
        Err(Errno::EBUSY.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[derive(Default)]
    struct File(Cell<Option<u32>>);

    impl Binding for File {
        type Process = u32;

        fn is_anothers(&self, process: &u32) -> bool {
            self.0.get().is_some_and(|bound| bound != *process)
        }

        fn bind(&self, process: &u32) -> bool {
            self.0.set(self.0.get().or(Some(*process)));
            self.0.get() == Some(*process)
        }
    }

    #[test]
    fn a_file_is_one_process_s_and_only_with_a_vm() {
        let file = File::default();
        assert_eq!(acquire_vm(&file, &1, || Err(Errno::ENOMEM)), Err(Errno::ENOMEM));
        assert_eq!(file.0.get(), None, "it is as it was");
        assert_eq!(acquire_vm(&file, &2, || Ok(())), Ok::<(), Errno>(()));
        assert_eq!(acquire_vm(&file, &2, || Ok(())), Ok::<(), Errno>(()), "again");
        let refused = acquire_vm(&file, &1, || panic!("no VM is made for a file of another process"));
        assert_eq!(refused, Err::<(), _>(Errno::EBUSY));
    }

    #[test]
    fn of_two_calls_at_once_the_later_one_is_refused() {
        let file = File::default();
        let other = || acquire_vm(&file, &2, || Ok(()));
        assert_eq!(acquire_vm(&file, &1, other), Err::<(), _>(Errno::EBUSY));
        assert_eq!(file.0.get(), Some(2));
    }
}
