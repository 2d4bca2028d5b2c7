// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU's place among devices: the device that its render node and its primary node belong to, as
//! a PCI device has them. `/sys/class/drm/cardN` and `renderDN` lead to it by their link `device`.
//! They are beside each other in its directory `drm`, by which libdrm tells GPUs apart. AMD's
//! monitoring library counts them.
//!
//! It has the name of the slot that the topology says ([`vkfd_driver::topology::location`]). It is
//! not the PCI device through which the module reaches the GPU: that is QEMU's, and says so. It has
//! no class, because the kernel makes the directory `drm` only below a device without one.
//!
//! Files of how much memory is in use, and how much the GPU works, ask the driver when they are
//! read.
//!
//! C header: [`include/linux/device.h`](srctree/include/linux/device.h)

use crate::sysfs::Text;
use core::fmt;
use core::marker::PhantomPinned;
use kernel::bindings;
use kernel::device::Device;
use kernel::error::{from_err_ptr, to_result};
use kernel::prelude::*;
use kernel::types::Opaque;
use vkfd_driver::drm::usage::{self, Fact, FILES};
use vkfd_driver::machine::kfd::Kfd;
use vkfd_driver::os::Arc;
use vkfd_driver::seams::gpu::GpuProperties;
use vkfd_driver::topology::{location, VENDOR};

unsafe extern "C" {
    fn vkfd_attribute_init(attribute: *mut bindings::attribute);
}

/// What a file shows.
enum Content {
    Text(Text),
    /// Of the GPU with this number.
    Usage(Arc<Kfd>, usize, Fact),
}

#[pin_data]
struct File {
    content: Content,
    #[pin]
    attribute: Opaque<bindings::device_attribute>,
    #[pin]
    _pin: PhantomPinned,
}

/// The device.
///
/// # Invariants
///
/// `device` is a root device that nobody else unregisters; `files` are in it.
pub(crate) struct GpuDevice {
    device: *mut bindings::device,
    files: KVec<Pin<KBox<File>>>,
}

// SAFETY: devices may be used and removed from any thread.
unsafe impl Send for GpuDevice {}
// SAFETY: as above.
unsafe impl Sync for GpuDevice {}

impl GpuDevice {
    /// Makes that of GPU number `index` of a machine.
    pub(crate) fn new(kfd: &Arc<Kfd>, index: u32, gpu: &GpuProperties) -> Result<Self> {
        let at = location(index);
        let (bus, slot, function) = (at >> 8, at >> 3 & 31, at & 7);
        let name = kernel::str::CString::try_from_fmt(fmt!("0000:{bus:02x}:{slot:02x}.{function}"))?;
        // SAFETY: the kernel copies the name, and makes no link to a module without one.
        let device =
            from_err_ptr(unsafe { bindings::__root_device_register(name.as_char_ptr(), core::ptr::null_mut()) })?;
        let mut this = Self { device, files: KVec::new() };
        let (id, revision) = (gpu.model.device_id, gpu.model.revision);
        for name in [c"vendor", c"subsystem_vendor"] {
            this.file(name, format_args!("{VENDOR:#06x}\n"))?;
        }
        for name in [c"device", c"subsystem_device"] {
            this.file(name, format_args!("{id:#06x}\n"))?;
        }
        this.file(c"revision", format_args!("{revision:#04x}\n"))?;
        // A display controller that is no VGA.
        this.file(c"class", format_args!("0x038000\n"))?;
        this.file(c"numa_node", format_args!("0\n"))?;
        for (name, fact) in FILES {
            this.show(name, Content::Usage(kfd.clone(), index as usize, fact))?;
        }
        Ok(this)
    }

    fn file(&mut self, name: &'static CStr, text: fmt::Arguments<'_>) -> Result {
        self.show(name, Content::Text(Text::new(text)?))
    }

    fn show(&mut self, name: &'static CStr, content: Content) -> Result {
        self.files.reserve(1, GFP_KERNEL)?;
        let file = KBox::pin_init(
            pin_init!(File {
                content,
                attribute <- Opaque::ffi_init(move |slot: *mut bindings::device_attribute| {
                    // SAFETY: valid for writes; the name is a constant.
                    unsafe {
                        slot.write_bytes(0, 1);
                        vkfd_attribute_init(&raw mut (*slot).attr);
                        (*slot).attr.name = name.as_char_ptr();
                        (*slot).attr.mode = 0o444;
                        (*slot).__bindgen_anon_1.show = Some(show);
                    }
                }),
                _pin: PhantomPinned,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: both initialised. The file is kept until it has been removed.
        to_result(unsafe { bindings::device_create_file(self.device, file.attribute.get()) })?;
        // There is room.
        let _ = self.files.push_within_capacity(file);
        Ok(())
    }

    /// The device.
    pub(crate) fn device(&self) -> &Device {
        // SAFETY: there as long as `self`, by the invariants.
        unsafe { Device::from_raw(self.device) }
    }
}

impl Drop for GpuDevice {
    fn drop(&mut self) {
        // SAFETY: ours, by the invariants. Removing a file waits for its readers; the file is freed
        // after that.
        unsafe {
            for file in &self.files {
                bindings::device_remove_file(self.device, file.attribute.get());
            }
            bindings::root_device_unregister(self.device);
        }
    }
}

/// # Safety
///
/// Called by sysfs for a file of a `GpuDevice`, with a page to write to.
unsafe extern "C" fn show(
    _: *mut bindings::device,
    attribute: *mut bindings::device_attribute,
    page: *mut c_char,
) -> isize {
    let attribute: *mut Opaque<bindings::device_attribute> = attribute.cast();
    // SAFETY: the attribute is that of a `File`, which is there as long as it is shown.
    let content = unsafe { &(*kernel::container_of!(attribute, File, attribute)).content };
    let made;
    let text = match content {
        Content::Text(text) => text,
        Content::Usage(kfd, index, fact) => {
            let number = usage::number(kfd, *index, *fact).unwrap_or(0);
            match Text::new(format_args!("{number}\n")) {
                Ok(text) => made = text,
                Err(error) => return error.to_errno() as isize,
            }
            &made
        }
    };
    let text = text.bytes();
    // SAFETY: the text is shorter than a page.
    unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), page.cast(), text.len()) };
    text.len() as isize
}
