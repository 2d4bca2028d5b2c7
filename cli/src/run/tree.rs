// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a run's private directory has: KFD's topology, the module, PCI devices and render nodes,
//! under the paths that they have on a real machine.

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use vkfd_driver::drm::usage::{Fact, FILES};
use vkfd_driver::seams::gpu::GpuProperties;
use vkfd_driver::topology::{
    discovery, location, Gpu, Machine, Name, Processors, Sink, DRM_MAJOR, FIRST_RENDER_MINOR, VENDOR,
};
use vkfd_host::description::Description;
use vkfd_host::sabotage;
use vkfd_sabotage::Switch;

/// A directory of files.
struct Files {
    at: PathBuf,
}

impl Files {
    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let file = self.at.join(path);
        fs::create_dir_all(file.parent().unwrap_or(&self.at))?;
        fs::write(file, text)
    }

    fn link(&self, path: &str, to: &str) -> io::Result<()> {
        let link = self.at.join(path);
        fs::create_dir_all(link.parent().unwrap_or(&self.at))?;
        symlink(to, link)
    }
}

impl Sink for Files {
    type Error = io::Error;

    fn enter(&mut self, name: Name) -> io::Result<()> {
        match name {
            Name::Word(word) => self.at.push(word_of(word)),
            Name::Number(number) => self.at.push(number.to_string()),
        }
        fs::create_dir_all(&self.at)
    }

    fn leave(&mut self) -> io::Result<()> {
        self.at.pop();
        Ok(())
    }

    fn file(&mut self, name: &'static CStr, text: &dyn fmt::Display) -> io::Result<()> {
        fs::write(self.at.join(word_of(name)), text.to_string())
    }
}

fn word_of(word: &CStr) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(word.to_bytes()))
}

/// Writes all of it below `directory`; without `svm` runtimes make no SVM calls.
pub fn write(directory: &Path, machine: &Description, svm: bool) -> io::Result<()> {
    let options = machine.options();
    let properties: Vec<GpuProperties> = (0..machine.gpus).map(|gpu| options.gpu_properties(gpu)).collect();
    let gpus: Vec<Gpu<'_>> = (FIRST_RENDER_MINOR..)
        .zip(&properties)
        .map(|(render_minor, properties)| Gpu { properties, render_minor })
        .collect();
    let topology = Machine { processors: processors(), gpus: &gpus, coherent: machine.coherent, svm };
    let mut kfd = Files { at: directory.join("sys/devices/virtual/kfd/kfd") };
    topology.render(&mut kfd)?;
    // A program that looks there gets a list of its own.
    fs::create_dir_all(kfd.at.join("proc"))?;
    kfd.write("dev", "510:0\n")?;
    kfd.write("uevent", "MAJOR=510\nMINOR=0\nDEVNAME=kfd\n")?;
    let root = Files { at: directory.to_owned() };
    root.link("sys/class/kfd/kfd", "../../devices/virtual/kfd/kfd")?;
    root.write("sys/module/amdgpu/initstate", "live\n")?;
    root.write("sys/module/amdgpu/version", &format!("{}\n", env!("CARGO_PKG_VERSION")))?;
    root.write("sys/module/amdgpu/refcnt", "0\n")?;
    root.write("sys/module/amdgpu/coresize", "1048576\n")?;
    fs::create_dir_all(directory.join("sys/module/amdgpu/holders"))?;
    root.write("proc/modules", "amdgpu 1048576 0 - Live 0x0000000000000000\n")?;
    root.write("dev/kfd", "")?;
    root.write("sys/class/drm/version", "drm 1.1.0 20060810\n")?;
    for (index, gpu) in (0..).zip(&gpus) {
        device(&root, index, gpu)?;
    }
    Ok(())
}

/// A GPU as a PCI device with a render node.
fn device(root: &Files, index: u32, gpu: &Gpu<'_>) -> io::Result<()> {
    let model = &gpu.properties.model;
    let location = location(index);
    let slot = format!("0000:{:02x}:{:02x}.{}", location >> 8, location >> 3 & 31, location & 7);
    let pci = format!("sys/devices/vkfd/{slot}");
    let (minor, node) = (gpu.render_minor, format!("renderD{}", gpu.render_minor));
    let (device, revision) = (model.device_id, model.revision);
    for (file, text) in [
        ("vendor", format!("{VENDOR:#06x}\n")),
        ("device", format!("{device:#06x}\n")),
        ("subsystem_vendor", format!("{VENDOR:#06x}\n")),
        ("subsystem_device", format!("{device:#06x}\n")),
        ("revision", format!("{revision:#04x}\n")),
        // A display controller that is no VGA.
        ("class", "0x038000\n".into()),
        ("numa_node", "0\n".into()),
        (
            "uevent",
            format!(
                "DRIVER=amdgpu\nPCI_CLASS=38000\nPCI_ID={VENDOR:04X}:{device:04X}\nPCI_SUBSYS_ID={VENDOR:04X}:{device:04X}\n\
                 PCI_SLOT_NAME={slot}\n"
            ),
        ),
    ] {
        root.write(&format!("{pci}/{file}"), &text)?;
    }
    for (name, fact) in FILES {
        // The others' text is made when they are opened.
        let text = if fact == Fact::Vram { format!("{}\n", gpu.properties.vram_bytes) } else { String::new() };
        root.write(&format!("{pci}/{}", word_of(name).display()), &text)?;
    }
    discovery::render(gpu.properties.gfx_target_version, &mut Files { at: root.at.join(&pci) })?;
    root.link(&format!("{pci}/subsystem"), "../../../bus/pci")?;
    // The primary node too, as on a machine without a display: libdrm tells GPUs apart by it. AMD's
    // monitoring library counts them by their links `cardN`, and loops for ever without one.
    let cards = !sabotage::has(Switch::NoCards);
    for (node, minor) in cards.then(|| (format!("card{index}"), index)).into_iter().chain([(node, minor)]) {
        let (below, number) = (format!("../../devices/vkfd/{slot}/drm/{node}"), format!("{DRM_MAJOR}:{minor}"));
        root.write(&format!("{pci}/drm/{node}/dev"), &format!("{number}\n"))?;
        root.write(
            &format!("{pci}/drm/{node}/uevent"),
            &format!("MAJOR={DRM_MAJOR}\nMINOR={minor}\nDEVNAME=dri/{node}\nDEVTYPE=drm_minor\n"),
        )?;
        root.link(&format!("{pci}/drm/{node}/device"), &format!("../../../{slot}"))?;
        root.link(&format!("{pci}/drm/{node}/subsystem"), "../../../../../class/drm")?;
        root.link(&format!("sys/class/drm/{node}"), &below)?;
        root.link(&format!("sys/dev/char/{number}"), &below)?;
        root.write(&format!("dev/dri/{node}"), "")?;
        let kind = if node.starts_with("card") { "card" } else { "render" };
        root.link(&format!("dev/dri/by-path/pci-{slot}-{kind}"), &format!("../{node}"))?;
    }
    root.link(&format!("sys/bus/pci/devices/{slot}"), &format!("../../../devices/vkfd/{slot}"))
}

/// This computer's.
fn processors() -> Processors {
    let cores = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1));
    // SAFETY: sysconf has no preconditions.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let bytes = |n| u64::try_from(n).unwrap_or(0);
    let apics = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let apic = |line: &str| line.strip_prefix("apicid")?.trim_start().strip_prefix(':')?.trim().parse().ok();
    Processors {
        cores,
        first_apic: apics.lines().filter_map(apic).min().unwrap_or(0),
        ram: bytes(pages).saturating_mul(bytes(page)),
    }
}
