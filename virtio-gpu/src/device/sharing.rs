// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a process that shares its machine with others has besides: a socket for files, and the
//! names under which processes offer memory to each other (libhsakmt's IPC handles).
//!
//! A name is 128 random bits: a process that has it may import the memory. It stands for the memory
//! as long as the object that it was made for is there; what was imported stays.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// A name.
pub type Name = [u8; 16];

/// The names of a machine.
#[derive(Default, Debug)]
pub struct Handles(Mutex<HashMap<Name, Arc<OwnedFd>>>);

impl Handles {
    /// Offers the buffer of `file` as long as the offer is there.
    ///
    /// # Errors
    /// The system's.
    pub fn offer(self: &Arc<Self>, file: OwnedFd) -> io::Result<Offer> {
        let mut name = Name::default();
        // SAFETY: the array is as long as it says.
        let got = unsafe { libc::getrandom(name.as_mut_ptr().cast(), name.len(), 0) };
        if usize::try_from(got) != Ok(name.len()) {
            return Err(io::Error::last_os_error());
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Arc::new(file));
        Ok(Offer { name, handles: self.clone() })
    }

    /// The buffer that is offered under a name.
    pub fn find(&self, name: &Name) -> Option<Arc<OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A name, as long as it stands for something.
#[derive(Debug)]
pub struct Offer {
    name: Name,
    handles: Arc<Handles>,
}

impl Offer {
    /// The name.
    pub fn name(&self) -> &Name {
        &self.name
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let gone = self.handles.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
        drop(gone);
    }
}

/// See the module.
#[derive(Debug)]
pub struct SharingProcess {
    /// Its number in this system; 0: none.
    pub pid: u32,
    /// Files to and from the process. It does not block.
    pub files: UnixStream,
    /// The machine's names.
    pub handles: Arc<Handles>,
}
