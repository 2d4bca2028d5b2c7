// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Character devices with a class, a number and a node in `/dev`, as drivers have them that are
//! older than the misc device.
//!
//! A [`Registration`] carries a context, which its files get when they are opened. Open files hold
//! the module: it cannot be unloaded, and no registration can go, as long as there is one.
//!
//! Nothing here depends on the rest of this module's crate.
//!
//! C headers: [`include/linux/cdev.h`](srctree/include/linux/cdev.h),
//! [`include/linux/device/class.h`](srctree/include/linux/device/class.h)

use core::fmt;
use core::marker::PhantomData;
use kernel::bindings;
use kernel::device::Device;
use kernel::error::{from_err_ptr, to_result};
use kernel::fs::LocalFile;
use kernel::mm::virt::VmaNew;
use kernel::module::ModuleMetadata;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::types::Opaque;

unsafe extern "C" {
    fn vkfd_inode_cdev(inode: *mut bindings::inode) -> *mut bindings::cdev;
}

const MINOR_BITS: u32 = 20;

/// A device class: a directory under `/sys/class`.
///
/// # Invariants
///
/// `inner` is registered as long as the value exists.
#[pin_data(PinnedDrop)]
pub(crate) struct Class {
    /// Where in `/dev` the nodes go, if not at the top.
    directory: Option<&'static CStr>,
    #[pin]
    inner: Opaque<bindings::class>,
}

// SAFETY: classes may be used from any thread.
unsafe impl Send for Class {}
// SAFETY: as above.
unsafe impl Sync for Class {}

impl Class {
    /// Registers class `name`, whose devices have their nodes in `/dev/DIRECTORY`.
    pub(crate) fn new(name: &'static CStr, directory: Option<&'static CStr>) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            directory,
            inner <- Opaque::try_ffi_init(move |slot: *mut bindings::class| {
                // SAFETY: `slot` stays where it is until it is unregistered; the name is a
                // constant.
                to_result(unsafe {
                    slot.write_bytes(0, 1);
                    (*slot).name = name.as_char_ptr();
                    (*slot).devnode = Some(Self::node);
                    bindings::class_register(slot)
                })
            }),
        })
    }

    unsafe extern "C" fn node(device: *const bindings::device, _mode: *mut bindings::umode_t) -> *mut c_char {
        // SAFETY: called for devices of classes with this function, which are `inner` of a `Self`;
        // initialised before.
        let directory = unsafe {
            let inner: *mut Opaque<bindings::class> = (*device).class.cast_mut().cast();
            (*kernel::container_of!(inner, Self, inner)).directory
        };
        let Some(directory) = directory else { return core::ptr::null_mut() };
        // SAFETY: a device has a name: its own, or that of its kobject. The caller frees what is
        // returned.
        unsafe {
            let own = (*device).init_name;
            let name = if own.is_null() { (*device).kobj.name } else { own };
            bindings::kasprintf(bindings::GFP_KERNEL, c"%s/%s".as_char_ptr(), directory.as_char_ptr(), name)
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Class {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: registered, by the invariants.
        unsafe { bindings::class_unregister(self.inner.get()) };
    }
}

/// Which device number.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    /// Any that is free.
    Dynamic,
    /// This one.
    Fixed {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// A device number of one's own.
pub(crate) struct Region(bindings::dev_t);

impl Region {
    /// Takes a number. EBUSY when somebody has it.
    pub(crate) fn new(number: Number, name: &CStr) -> Result<Self> {
        let mut found: bindings::dev_t = 0;
        // SAFETY: the name is copied.
        to_result(unsafe {
            match number {
                Number::Dynamic => bindings::alloc_chrdev_region(&mut found, 0, 1, name.as_char_ptr()),
                Number::Fixed { major, minor } => {
                    found = major << MINOR_BITS | minor;
                    bindings::register_chrdev_region(found, 1, name.as_char_ptr())
                }
            }
        })?;
        Ok(Self(found))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: ours since `new`.
        unsafe { bindings::unregister_chrdev_region(self.0, 1) };
    }
}

/// What an open file is.
pub(crate) trait CharDevice: Send + Sync + Sized + 'static {
    /// What the registration has for its files.
    type Context: Send + Sync + 'static;
    /// Whose functions these are.
    type Module: ModuleMetadata;

    /// Opens a file.
    fn open(context: &Arc<Self::Context>) -> Result<Self>;

    /// Serves an ioctl.
    fn ioctl(&self, command: u32, argument: usize) -> Result<isize>;

    /// Sets a new mapping of the file up.
    fn mmap(&self, vma: &VmaNew) -> Result;

    /// Writes what `/proc/PID/fdinfo` has of the file behind the kernel's own lines.
    fn fdinfo(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        let _ = to;
        Ok(())
    }
}

/// A file of `/proc` being written.
struct Seq(*mut bindings::seq_file);

impl fmt::Write for Seq {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the kernel's, during the call that it was given to. What has no room is written
        // again by the kernel, with more.
        unsafe { bindings::seq_write(self.0, text.as_ptr().cast(), text.len()) };
        Ok(())
    }
}

/// A registered device.
///
/// # Invariants
///
/// `cdev` is added under `region`'s number, with [`Vtable::<T>::OPERATIONS`]; `device` is a device
/// of `class` with the same number.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<T: CharDevice> {
    context: Arc<T::Context>,
    #[pin]
    cdev: Opaque<bindings::cdev>,
    device: *mut bindings::device,
    // In the order in which they must go.
    region: Region,
    class: Arc<Class>,
}

// SAFETY: devices may be used and removed from any thread; the context may be sent and shared.
unsafe impl<T: CharDevice> Send for Registration<T> {}
// SAFETY: as above.
unsafe impl<T: CharDevice> Sync for Registration<T> {}

impl<T: CharDevice> Registration<T> {
    /// Registers device `name` of `class`, below `parent` if there is one, which must stay as long.
    pub(crate) fn new<'a>(
        class: Arc<Class>,
        parent: Option<&'a Device>,
        name: &'a CStr,
        region: Region,
        context: Arc<T::Context>,
    ) -> impl PinInit<Self, Error> + use<'a, T> {
        try_pin_init!(Self {
            context,
            region,
            class,
            cdev <- Opaque::ffi_init(|slot: *mut bindings::cdev| {
                // SAFETY: `slot` stays where it is until it was removed, and no file that has it is
                // open then.
                unsafe {
                    bindings::cdev_init(slot, &Vtable::<T>::OPERATIONS);
                    (*slot).owner = Vtable::<T>::OPERATIONS.owner;
                }
            }),
            device: {
                // A transparent wrapper.
                let above = parent.map_or(core::ptr::null(), core::ptr::from_ref).cast::<bindings::device>().cast_mut();
                // SAFETY: class and parent are registered and held; the name is a format without
                // arguments.
                from_err_ptr(unsafe {
                    let data = core::ptr::null_mut();
                    bindings::device_create(class.inner.get(), above, region.0, data, c"%s".as_char_ptr(), name.as_char_ptr())
                })?
            },
            // Last: from here on it can be opened.
            _: {
                // SAFETY: initialised above.
                let added = to_result(unsafe { bindings::cdev_add(cdev.get(), region.0, 1) });
                if added.is_err() {
                    // SAFETY: created above.
                    unsafe { bindings::device_destroy(class.inner.get(), region.0) };
                }
                added?;
            },
        })
    }

    /// The device.
    pub(crate) fn device(&self) -> &Device {
        // SAFETY: there as long as `self`, by the invariants.
        unsafe { Device::from_raw(self.device) }
    }

    /// What `file` is, if it is a file of this device.
    pub(crate) fn of<'a>(&self, file: &'a LocalFile) -> Option<&'a T> {
        let file = file.as_ptr();
        // SAFETY: an open file has an inode. A file with a character device's type and our number
        // was opened by `Vtable::<T>`. It has its private data as long as it is open, and `file`
        // holds it open.
        unsafe {
            let inode = (*file).f_inode;
            let character = u32::from((*inode).i_mode) & bindings::S_IFMT == bindings::S_IFCHR;
            if !character || (*inode).i_rdev != self.region.0 {
                return None;
            }
            (*file).private_data.cast::<T>().as_ref()
        }
    }
}

#[pinned_drop]
impl<T: CharDevice> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: added and created, by the invariants. No file is open: each would hold the
        // module, and what is dropped here is dropped by the module.
        unsafe {
            bindings::cdev_del(self.cdev.get());
            bindings::device_destroy(self.class.inner.get(), self.region.0);
        }
    }
}

struct Vtable<T>(PhantomData<T>);

impl<T: CharDevice> Vtable<T> {
    const OPERATIONS: bindings::file_operations = bindings::file_operations {
        owner: T::Module::THIS_MODULE.as_ptr(),
        open: Some(Self::open),
        release: Some(Self::release),
        unlocked_ioctl: Some(Self::ioctl),
        #[cfg(CONFIG_COMPAT)]
        compat_ioctl: bindings::compat_ptr_ioctl,
        mmap: Some(Self::mmap),
        show_fdinfo: Some(Self::show_fdinfo),
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// Called by the kernel, for an inode with the number of a `Registration<T>`.
    unsafe extern "C" fn open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        // SAFETY: the inode has the `cdev` that was found by its number, and the number is a
        // registration's. The registration is not dropped before the module, which the file holds
        // by now.
        let registration = unsafe {
            let inner: *mut Opaque<bindings::cdev> = vkfd_inode_cdev(inode).cast();
            &*kernel::container_of!(inner, Registration<T>, cdev)
        };
        let opened = T::open(&registration.context).and_then(|data| Ok(KBox::new(data, GFP_KERNEL)?));
        match opened {
            Ok(data) => {
                // SAFETY: the file is being opened, its private data is ours.
                unsafe { (*file).private_data = KBox::into_raw(data).cast() };
                0
            }
            Err(error) => error.to_errno(),
        }
    }

    /// # Safety
    ///
    /// Called by the kernel, once, for a file that `open` has opened.
    unsafe extern "C" fn release(_inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        // SAFETY: set by `open`; nobody uses the file any more.
        drop(unsafe { KBox::<T>::from_raw((*file).private_data.cast()) });
        0
    }

    /// # Safety
    ///
    /// Called by the kernel, for a file that `open` has opened.
    unsafe extern "C" fn ioctl(file: *mut bindings::file, command: c_uint, argument: c_ulong) -> c_long {
        // SAFETY: set by `open`; the file is open during the call.
        let data = unsafe { &*(*file).private_data.cast::<T>() };
        match data.ioctl(command, argument) {
            Ok(value) => value as c_long,
            Err(error) => error.to_errno() as c_long,
        }
    }

    /// # Safety
    ///
    /// Called by the kernel, for a file that `open` has opened.
    unsafe extern "C" fn show_fdinfo(to: *mut bindings::seq_file, file: *mut bindings::file) {
        // SAFETY: set by `open`; the file is open during the call.
        let data = unsafe { &*(*file).private_data.cast::<T>() };
        // `Seq` does not fail.
        let _ = data.fdinfo(&mut Seq(to));
    }

    /// # Safety
    ///
    /// Called by the kernel, for a file that `open` has opened, with an area that is being set up.
    unsafe extern "C" fn mmap(file: *mut bindings::file, vma: *mut bindings::vm_area_struct) -> c_int {
        // SAFETY: set by `open`; the file is open during the call, and the area is being set up.
        let (data, vma) = unsafe { (&*(*file).private_data.cast::<T>(), VmaNew::from_raw(vma)) };
        match data.mmap(vma) {
            Ok(()) => 0,
            Err(error) => error.to_errno(),
        }
    }
}
