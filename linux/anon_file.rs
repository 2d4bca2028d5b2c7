// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files without a name, which calls give to their callers.
//!
//! A file shares its data ([`AnonFile`]) with its creator, and holds the module: it
//! cannot be unloaded as long as one is open. Each has an inode of its own, so that what is said of
//! a file (its size) is said of it alone.
//!
//! Nothing here depends on the rest of this module's crate.
//!
//! C header: [`include/linux/anon_inodes.h`](srctree/include/linux/anon_inodes.h)

use core::marker::PhantomData;
use kernel::bindings;
use kernel::error::from_err_ptr;
use kernel::fs::file::FileDescriptorReservation;
use kernel::fs::{File, LocalFile};
use kernel::module::ModuleMetadata;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::poll::PollTable;
use kernel::sync::Arc;
use kernel::types::ForeignOwnable;
use kernel::uaccess::{UserPtr, UserSlice, UserSliceReader, UserSliceWriter};

unsafe extern "C" {
    fn anon_inode_create_getfile(
        name: *const c_char,
        operations: *const bindings::file_operations,
        data: *mut c_void,
        flags: c_int,
        context: *const bindings::inode,
    ) -> *mut bindings::file;
}

/// What a file is.
pub(crate) trait AnonFile: Send + Sync + Sized + 'static {
    /// Whose functions these are.
    type Module: ModuleMetadata;
    /// Shown in `/proc/PID/fd`.
    const NAME: &'static CStr;

    /// It has a size, which lseek(2) tells as it does of the kernel's dma_buf: both ends can be
    /// asked for, and nothing between them. Programs learn sizes that way (libdrm).
    const HAS_SIZE: bool = false;

    /// Its operations: one static a type, by whose address its files are known.
    fn operations() -> &'static Operations<Self>;

    /// Reads: how many bytes. Does not wait.
    fn read(&self, _to: &mut UserSliceWriter) -> Result<usize> {
        Err(EINVAL)
    }

    /// Writes: how many bytes.
    fn write(&self, _from: &mut UserSliceReader) -> Result<usize> {
        Err(EINVAL)
    }

    /// Which of poll(2)'s events hold, after registering for changes.
    fn poll(&self, _file: &File, _table: PollTable<'_>) -> u32 {
        0
    }

    /// The last descriptor has been closed.
    fn closed(&self) {}
}

/// What the kernel calls for files of a type.
pub(crate) struct Operations<T>(bindings::file_operations, PhantomData<fn(T)>);

// SAFETY: never written to.
unsafe impl<T> Sync for Operations<T> {}

impl<T: AnonFile> Operations<T> {
    /// For [`AnonFile::operations`].
    pub(crate) const fn new() -> Self {
        let operations = bindings::file_operations {
            owner: T::Module::THIS_MODULE.as_ptr(),
            read: Some(Self::read),
            write: Some(Self::write),
            poll: Some(Self::poll),
            llseek: if T::HAS_SIZE { Some(Self::llseek) } else { None },
            release: Some(Self::release),
            ..pin_init::zeroed()
        };
        Self(operations, PhantomData)
    }

    /// # Safety
    ///
    /// `file` is a file that [`install`] made, with these operations.
    unsafe fn data<'a>(file: *mut bindings::file) -> <Arc<T> as ForeignOwnable>::Borrowed<'a> {
        // SAFETY: set when it was made, and there until it is released.
        unsafe { Arc::<T>::borrow((*file).private_data) }
    }

    /// # Safety
    ///
    /// Called by the kernel, with a place of the caller.
    unsafe extern "C" fn read(
        file: *mut bindings::file,
        to: *mut c_char,
        bytes: usize,
        _: *mut bindings::loff_t,
    ) -> isize {
        let mut to = UserSlice::new(UserPtr::from_ptr(to.cast()), bytes).writer();
        // SAFETY: a file with these operations.
        result(unsafe { Self::data(file) }.read(&mut to))
    }

    /// # Safety
    ///
    /// Called by the kernel, with a place of the caller.
    unsafe extern "C" fn write(
        file: *mut bindings::file,
        from: *const c_char,
        bytes: usize,
        _: *mut bindings::loff_t,
    ) -> isize {
        let mut from = UserSlice::new(UserPtr::from_ptr(from.cast_mut().cast()), bytes).reader();
        // SAFETY: a file with these operations.
        result(unsafe { Self::data(file) }.write(&mut from))
    }

    /// # Safety
    ///
    /// Called by the kernel.
    unsafe extern "C" fn poll(file: *mut bindings::file, table: *mut bindings::poll_table) -> bindings::__poll_t {
        // SAFETY: a file with these operations, open during the call; the table is null or there
        // during the call.
        unsafe { Self::data(file).poll(File::from_raw_file(file), PollTable::from_raw(table)) }
    }

    /// # Safety
    ///
    /// Called by the kernel.
    unsafe extern "C" fn llseek(
        file: *mut bindings::file,
        offset: bindings::loff_t,
        whence: c_int,
    ) -> bindings::loff_t {
        match (whence as u32, offset) {
            (bindings::SEEK_SET, 0) => 0,
            // SAFETY: open during the call; the size was set before anybody had the file.
            (bindings::SEEK_END, 0) => unsafe { (*(*file).f_inode).i_size },
            _ => EINVAL.to_errno().into(),
        }
    }

    /// # Safety
    ///
    /// Called by the kernel, once.
    unsafe extern "C" fn release(_: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        // SAFETY: set when it was made; nobody uses the file any more.
        unsafe { Arc::<T>::from_foreign((*file).private_data) }.closed();
        0
    }
}

fn result(done: Result<usize>) -> isize {
    match done {
        Ok(bytes) => bytes as isize,
        Err(error) => error.to_errno() as isize,
    }
}

/// A new file of the current process, which reports a length of `bytes`: its descriptor. `flags`
/// are open(2)'s.
pub(crate) fn install<T: AnonFile>(data: Arc<T>, flags: u32, bytes: u64) -> Result<u32> {
    let descriptor = FileDescriptorReservation::get_unused_fd_flags(flags & bindings::O_CLOEXEC)?;
    let operations: *const bindings::file_operations = &raw const T::operations().0;
    let data = data.into_foreign();
    // SAFETY: the name is a constant; the operations are those of `T`, whose data the file has.
    let file = from_err_ptr(unsafe {
        let name = T::NAME.as_char_ptr();
        anon_inode_create_getfile(name, operations, data, flags as c_int, core::ptr::null())
    });
    let file = file.inspect_err(|_| {
        // SAFETY: made above; there is no file that would have it.
        drop(unsafe { Arc::<T>::from_foreign(data) });
    })?;
    // SAFETY: the file and its inode are new, and nobody else has them. The reference goes to the
    // descriptor.
    let file = unsafe {
        (*(*file).f_inode).i_size = bytes as bindings::loff_t;
        ARef::from_raw(core::ptr::NonNull::new_unchecked(file.cast::<File>()))
    };
    let number = descriptor.reserved_fd();
    descriptor.fd_install(file);
    Ok(number)
}

/// What `file` has, if it is one of `T`.
pub(crate) fn data_of<T: AnonFile>(file: &LocalFile) -> Option<Arc<T>> {
    let operations: *const bindings::file_operations = &raw const T::operations().0;
    // SAFETY: an open file; one with these operations was made by `install::<T>`.
    unsafe {
        let file = file.as_ptr();
        core::ptr::eq((*file).f_op, operations).then(|| Operations::<T>::data(file).into())
    }
}
