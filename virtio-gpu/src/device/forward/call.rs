// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An ioctl of the guest, made here.
//!
//! The argument and its arrays lie in this process's memory as long as the call runs. All pointers
//! in the argument are replaced by theirs, or by null, and the guest's come back afterwards. So the
//! driver reads and writes the message's data and nothing else.

use std::ffi::c_void;

use vkfd_uapi::pod::Pod;

use vkfd_remote::protocol::forward::{calls, Request};
use vkfd_remote::protocol::{put64, u64_at};

/// A call, with the memory that it uses.
pub struct Call(Request);

impl Call {
    /// Of a request.
    pub fn new(request: Request) -> Self {
        Self(request)
    }

    /// What is asked.
    pub fn request(&self) -> &Request {
        &self.0
    }

    /// The argument as a structure.
    pub fn argument<T: Pod>(&self) -> T {
        let mut value = T::zeroed();
        let bytes = value.as_bytes_mut();
        let length = bytes.len().min(self.0.argument.len());
        bytes[..length].copy_from_slice(&self.0.argument[..length]);
        value
    }

    /// The argument's bytes, of the length that the call has.
    pub fn argument_mut(&mut self) -> &mut [u8] {
        &mut self.0.argument
    }

    /// The bytes of an array that came with it or goes back.
    pub fn contents_mut(&mut self, number: usize) -> Option<&mut [u8]> {
        self.0.contents.get_mut(number).map(Vec::as_mut_slice)
    }

    /// Changes the argument.
    pub fn set<T: Pod>(&mut self, value: &T) {
        let bytes = value.as_bytes();
        let length = bytes.len().min(self.0.argument.len());
        self.0.argument[..length].copy_from_slice(&bytes[..length]);
    }

    /// Changes a field.
    pub fn change<T: Pod>(&mut self, change: impl FnOnce(&mut T)) {
        let mut value = self.argument();
        change(&mut value);
        self.set(&value);
    }

    /// An array of 32-bit numbers that came with it.
    pub fn words(&self, number: usize) -> Vec<u32> {
        let content = self.0.contents.get(number).map_or(&[][..], Vec::as_slice);
        content.chunks_exact(4).filter_map(|word| word.try_into().ok()).map(u32::from_le_bytes).collect()
    }

    /// Makes the call; `ioctl` gets its command and argument.
    pub fn make(&mut self, ioctl: impl FnOnce(u32, *mut c_void) -> Result<(), i32>) -> Result<(), i32> {
        let Request { head, argument, arrays, contents, .. } = &mut self.0;
        let theirs = argument.clone();
        for pointer in calls::pointers(head.file, head.command).map_err(|refused| refused.0)? {
            put64(argument, pointer, 0);
        }
        for (array, content) in arrays.iter().zip(contents) {
            debug_assert_eq!(array.bytes, content.len());
            put64(argument, array.pointer, content.as_mut_ptr().expose_provenance() as u64);
        }
        // The driver takes as many bytes as the word says: all that it knows, as the argument was
        // filled up to.
        let known = calls::size(head.file, head.command).map_err(|refused| refused.0)?;
        let command = head.command.with_size(known).ok_or(libc::EINVAL)?;
        let done = ioctl(command.0, argument.as_mut_ptr().cast());
        for pointer in calls::pointers(head.file, head.command).map_err(|refused| refused.0)? {
            put64(argument, pointer, u64_at(&theirs, pointer).unwrap_or(0));
        }
        done
    }

    /// The answer's bytes.
    pub fn answer(&self, done: Result<(), i32>) -> Vec<u8> {
        self.0.answer(done.err().unwrap_or(0))
    }
}
