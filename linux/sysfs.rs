// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Directories in sysfs with files to read.
//!
//! A [`Directory`] is a kobject. Its files show the text they were made with, or one that a
//! [`Source`] makes whenever somebody reads. Dropping a directory removes it, with its files, and
//! waits for readers. So a thread that drops one must hold no lock that a source takes. A directory
//! in it must be dropped before. [`Directory`] does not check that; owners guarantee it by the
//! order of their fields.
//!
//! Nothing here depends on the rest of this module's crate.
//!
//! C headers: [`include/linux/kobject.h`](srctree/include/linux/kobject.h),
//! [`include/linux/sysfs.h`](srctree/include/linux/sysfs.h)

use core::fmt::{self, Write};
use core::marker::PhantomPinned;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::device::Device;
use kernel::error::to_result;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::str::CString;
use kernel::types::Opaque;

unsafe extern "C" {
    fn vkfd_attribute_init(attribute: *mut bindings::attribute);
}

/// Text that a file shows: at most a page of it.
#[derive(Default)]
pub(crate) struct Text(KVec<u8>);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() >= PAGE_SIZE {
            return Err(fmt::Error);
        }
        self.0.extend_from_slice(text.as_bytes(), GFP_KERNEL).map_err(|_| fmt::Error)
    }
}

impl Text {
    /// The text of a format. ENOMEM without memory for it, or when it is longer than a page.
    pub(crate) fn new(arguments: fmt::Arguments<'_>) -> Result<Self> {
        let mut text = Self::default();
        text.write_fmt(arguments).map_err(|_| ENOMEM)?;
        Ok(text)
    }

    /// Its bytes, less than a page.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What makes a file's text.
pub(crate) trait Source: Send + Sync {
    /// Writes the text, as it is now.
    fn write(&self, to: &mut Text) -> Result;
}

/// What a file shows.
enum Content {
    Text(Text),
    Source(KBox<dyn Source>),
}

#[pin_data]
struct File {
    content: Content,
    _name: CString,
    #[pin]
    attribute: Opaque<bindings::attribute>,
    #[pin]
    _pin: PhantomPinned,
}

/// What a kobject is part of: freed by its release function, when nobody has a reference any more.
#[pin_data]
struct Object {
    #[pin]
    kobject: Opaque<bindings::kobject>,
    #[pin]
    _pin: PhantomPinned,
}

/// A directory.
///
/// # Invariants
///
/// `object` is an initialised kobject, to which this has a reference; `files` are in it.
pub(crate) struct Directory {
    object: NonNull<Object>,
    files: KVec<Pin<KBox<File>>>,
}

// SAFETY: kobjects may be used and removed from any thread.
unsafe impl Send for Directory {}
// SAFETY: as above.
unsafe impl Sync for Directory {}

static OPERATIONS: bindings::sysfs_ops = bindings::sysfs_ops { show: Some(show), store: None };

static KIND: Kind =
    Kind(bindings::kobj_type { release: Some(release), sysfs_ops: &raw const OPERATIONS, ..pin_init::zeroed() });

struct Kind(bindings::kobj_type);

// SAFETY: never written to.
unsafe impl Sync for Kind {}

impl Directory {
    /// A directory in that of a device.
    pub(crate) fn in_device(device: &Device, name: &CStr) -> Result<Self> {
        let device: *const bindings::device = core::ptr::from_ref(device).cast();
        // SAFETY: `Device` is a transparent wrapper; the device is there during the call.
        unsafe { Self::new(&raw mut (*device.cast_mut()).kobj, name) }
    }

    /// A directory in this one.
    pub(crate) fn directory(&self, name: &CStr) -> Result<Self> {
        // SAFETY: initialised, by the invariants.
        unsafe { Self::new((*self.object.as_ptr()).kobject.get(), name) }
    }

    /// A directory in this one that has a number for a name.
    pub(crate) fn numbered(&self, number: usize) -> Result<Self> {
        let name = CString::try_from_fmt(fmt!("{number}"))?;
        self.directory(&name)
    }

    /// # Safety
    ///
    /// `parent` is an initialised kobject.
    unsafe fn new(parent: *mut bindings::kobject, name: &CStr) -> Result<Self> {
        let object = KBox::pin_init(
            pin_init!(Object {
                kobject <- Opaque::ffi_init(|slot: *mut bindings::kobject| {
                    // SAFETY: valid for writes.
                    unsafe { slot.write_bytes(0, 1) }
                }),
                _pin: PhantomPinned,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: not moved: the pointer is all that is left of it until `release` makes a box of
        // it again.
        let object = NonNull::from(KBox::leak(unsafe { Pin::into_inner_unchecked(object) }));
        let directory = Self { object, files: KVec::new() };
        // SAFETY: zeroed and not initialised before; the name is copied. On failure it is
        // initialised nevertheless, and dropping gives the reference back.
        to_result(unsafe {
            let kobject = (*object.as_ptr()).kobject.get();
            let (kind, format) = (&raw const KIND.0, c"%s".as_char_ptr());
            bindings::kobject_init_and_add(kobject, kind, parent, format, name.as_char_ptr())
        })?;
        Ok(directory)
    }

    /// Adds a file.
    pub(crate) fn file(&mut self, name: &CStr, text: Text) -> Result {
        self.show(name, Content::Text(text))
    }

    /// Adds a file whose text is made when it is read.
    pub(crate) fn source(&mut self, name: &CStr, source: impl Source + 'static) -> Result {
        self.show(name, Content::Source(KBox::new(source, GFP_KERNEL)?))
    }

    fn show(&mut self, name: &CStr, content: Content) -> Result {
        self.files.reserve(1, GFP_KERNEL)?;
        let name = CString::try_from(name)?;
        let pointer = name.as_char_ptr();
        let file = KBox::pin_init(
            pin_init!(File {
                content,
                _name: name,
                attribute <- Opaque::ffi_init(move |slot: *mut bindings::attribute| {
                    // SAFETY: valid for writes; the name is the file's own, as long as it is there.
                    unsafe {
                        slot.write_bytes(0, 1);
                        vkfd_attribute_init(slot);
                        (*slot).name = pointer;
                        (*slot).mode = 0o444;
                    }
                }),
                _pin: PhantomPinned,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: both initialised. The file is kept until the directory has been removed.
        to_result(unsafe {
            let kobject = (*self.object.as_ptr()).kobject.get();
            bindings::sysfs_create_file_ns(kobject, file.attribute.get(), core::ptr::null())
        })?;
        // There is room.
        let _ = self.files.push_within_capacity(file);
        Ok(())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: initialised, by the invariants. Removing takes the files out and waits for their
        // readers; they are freed after that.
        unsafe {
            let kobject = (*self.object.as_ptr()).kobject.get();
            bindings::kobject_del(kobject);
            bindings::kobject_put(kobject);
        }
    }
}

/// # Safety
///
/// Called by sysfs for a file of a `Directory`, with a page to write to.
unsafe extern "C" fn show(_: *mut bindings::kobject, attribute: *mut bindings::attribute, page: *mut c_char) -> isize {
    let attribute: *mut Opaque<bindings::attribute> = attribute.cast();
    // SAFETY: the attribute is that of a `File`, which is there as long as it is shown.
    let content = unsafe { &(*kernel::container_of!(attribute, File, attribute)).content };
    let mut made = Text::default();
    let text = match content {
        Content::Text(text) => text,
        Content::Source(source) => match source.write(&mut made) {
            Ok(()) => &made,
            Err(error) => return error.to_errno() as isize,
        },
    };
    let text = text.bytes();
    // SAFETY: the text is shorter than a page.
    unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), page.cast(), text.len()) };
    text.len() as isize
}

/// # Safety
///
/// Called by the kernel when the last reference to a `Directory`'s object has gone.
unsafe extern "C" fn release(kobject: *mut bindings::kobject) {
    // SAFETY: part of an `Object` that `Directory::new` leaked.
    unsafe {
        let kobject: *mut Opaque<bindings::kobject> = kobject.cast();
        drop(KBox::from_raw(kernel::container_of!(kobject, Object, kobject)));
    }
}
