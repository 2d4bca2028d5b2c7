// SPDX-License-Identifier: GPL-2.0 OR MIT
//! DRM's memory objects: made, shared with KFD both ways, mapped on the CPU and on the GPU, and
//! gone without a trace.

use std::cell::RefCell;
use vkfd_driver::base::addr::{CpuVa, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::calls::mmap::Mapped;
use vkfd_driver::drm::{Caller, RenderFile};
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::os::fault_injection::fail_nth;
use vkfd_sim::{Rig, GPU_ID, WRITABLE_USERPTR};
use vkfd_uapi::memory::{
    ExportDmabufArgs, GetDmabufInfoArgs, ImportDmabufArgs, ALLOC_MEM_FLAGS_PUBLIC, ALLOC_MEM_FLAGS_VRAM,
    ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_uapi::pod::Pod;

const GEM_CLOSE: u32 = 0x09;
const HANDLE_TO_FD: u32 = 0x2d;
const FD_TO_HANDLE: u32 = 0x2e;
const CREATE: u32 = 0x40;
const MMAP: u32 = 0x41;
const METADATA: u32 = 0x46;
const WAIT_IDLE: u32 = 0x47;
const VA: u32 = 0x48;
const OP: u32 = 0x50;
const GTT: u64 = 2;
const VRAM: u64 = 4;
const AT: u64 = 0x50_0000_0000;

/// A structure of the caller, as 32-bit words at address 0x1000.
struct Words(RefCell<[u32; 128]>);

impl Words {
    fn bytes(at: CpuVa, length: usize) -> Result<std::ops::Range<usize>> {
        let from = at.0.checked_sub(0x1000).and_then(|from| usize::try_from(from).ok()).ok_or(Errno::EFAULT)?;
        Ok(from..from.checked_add(length).filter(|end| *end <= 512).ok_or(Errno::EFAULT)?)
    }
}

impl Caller for Words {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        let places = Self::bytes(from, to.len())?;
        for (to, place) in to.iter_mut().zip(places) {
            *to = self.0.borrow()[place / 4].to_ne_bytes()[place % 4];
        }
        Ok(())
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        for (place, byte) in Self::bytes(to, from.len())?.zip(from) {
            let word = &mut self.0.borrow_mut()[place / 4];
            let mut bytes = word.to_ne_bytes();
            bytes[place % 4] = *byte;
            *word = u32::from_ne_bytes(bytes);
        }
        Ok(())
    }
}

/// An open render node.
struct Node<'a> {
    rig: &'a Rig,
    file: RenderFile,
    bound: bool,
}

fn halves(value: u64) -> [u32; 2] {
    [u32::try_from(value & 0xffff_ffff).unwrap(), u32::try_from(value >> 32).unwrap()]
}

impl<'a> Node<'a> {
    fn new(rig: &'a Rig) -> Self {
        Self { rig, file: RenderFile::new(rig.process.kfd(), 0).unwrap(), bound: true }
    }

    fn call(&self, number: u32, words: &[u32]) -> std::result::Result<[u32; 128], Errno> {
        let mut all = [0; 128];
        all[..words.len()].copy_from_slice(words);
        let memory = Words(RefCell::new(all));
        let command = 3 << 30 | 64 << 16 | u32::from(b'd') << 8 | number;
        let bound = self.bound.then_some(&self.rig.process);
        self.file.ioctl(&memory, bound, command, CpuVa(0x1000)).map_err(|error| error.errno)?;
        Ok(memory.0.into_inner())
    }

    fn create(&self, bytes: u64, domains: u64, flags: u64) -> std::result::Result<u32, Errno> {
        let words: Vec<u32> = [bytes, PAGE, domains, flags].into_iter().flat_map(halves).collect();
        self.call(CREATE, &words).map(|words| words[0])
    }

    fn va(&self, handle: u32, op: u32, va: u64, offset: u64, bytes: u64) -> std::result::Result<(), Errno> {
        let mut words = vec![handle, 0, op, 2 | 4 | 8];
        words.extend([va, offset, bytes].into_iter().flat_map(halves));
        self.call(VA, &words).map(drop)
    }

    fn map(&self, handle: u32, va: u64, offset: u64, bytes: u64) -> std::result::Result<(), Errno> {
        self.va(handle, 1, va, offset, bytes)
    }

    fn unmap(&self, handle: u32, va: u64) -> std::result::Result<(), Errno> {
        self.va(handle, 2, va, 0, PAGE)
    }

    /// The frames of the object's pages that the CPU maps.
    fn frames(&self, handle: u32, bytes: u64) -> Vec<u64> {
        let words = self.call(MMAP, &[handle]).unwrap();
        let offset = u64::from(words[0]) | u64::from(words[1]) << 32;
        let base = self.rig.process.kfd().devices()[0].properties().vram_base.0 / PAGE;
        match self.file.mmap(offset, bytes).unwrap().unwrap() {
            Mapped::Vram { pieces, .. } => pieces
                .iter()
                .flat_map(|(at, bytes)| (0..bytes / PAGE).map(move |page| base + at.0 / PAGE + page))
                .collect(),
            Mapped::Dma(..) => panic!("not VRAM"),
        }
    }
}

fn kfd_alloc(rig: &Rig, va: u64, bytes: u64) -> std::result::Result<u64, Errno> {
    rig.alloc(va, bytes, ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_PUBLIC)
}

#[test]
fn an_object_is_mapped_where_and_as_far_as_it_is_asked_for() {
    let rig = Rig::new(Options::default());
    let node = Node::new(&rig);
    let object = node.create(3 * PAGE, VRAM, 0).unwrap();
    let frames = node.frames(object, 3 * PAGE);
    node.map(object, AT, PAGE, 2 * PAGE).unwrap();
    let walked = [0, 1, 2].map(|page| rig.gpu.walk(AT + page * PAGE));
    assert_eq!(walked, [Some(frames[1]), Some(frames[2]), None]);
    // A second time elsewhere, and each mapping goes alone.
    node.map(object, AT + (1 << 21), 0, PAGE).unwrap();
    node.unmap(object, AT).unwrap();
    assert_eq!([AT, AT + (1 << 21)].map(|at| rig.gpu.walk(at)), [None, Some(frames[0])]);
    assert_eq!(node.unmap(object, AT), Err(Errno::ENOENT));
    // With the handle go its mappings.
    node.call(GEM_CLOSE, &[object]).unwrap();
    assert_eq!(rig.gpu.walk(AT + (1 << 21)), None);
    assert_eq!(node.call(GEM_CLOSE, &[object]).err(), Some(Errno::EINVAL));
    assert_eq!(node.map(object, AT, 0, PAGE), Err(Errno::ENOENT));
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let rig = Rig::new(Options::default());
    let used = rig.vram_used(0);
    let mut node = Node::new(&rig);
    for (bytes, domains, flags) in [(0, VRAM, 0), (PAGE, 0, 0), (PAGE, 8, 0), (PAGE, 1 << 33, 0), (PAGE, GTT, 1 << 63)]
    {
        assert_eq!(node.create(bytes, domains, flags), Err(Errno::EINVAL), "{bytes} {domains} {flags}");
    }
    assert_eq!(node.create(u64::MAX, GTT, 0), Err(Errno::EINVAL));
    let object = node.create(2 * PAGE, VRAM, 1 << 1).unwrap();
    assert_eq!(node.call(MMAP, &[object]).err(), Some(Errno::EPERM), "the CPU has no access");
    for number in [MMAP, METADATA, WAIT_IDLE, OP, HANDLE_TO_FD] {
        assert_eq!(node.call(number, &[77, 1]).err(), Some(Errno::ENOENT), "{number:#x}");
        assert_eq!(node.call(number, &[0, 1]).err(), Some(Errno::ENOENT), "{number:#x}");
    }
    for (va, offset, bytes) in [
        (0, 0, PAGE),
        (AT + 1, 0, PAGE),
        (AT, 1, PAGE),
        (AT, 0, 0),
        (AT, 0, PAGE + 1),
        (AT, PAGE, 2 * PAGE),
        (AT, u64::MAX - PAGE + 1, PAGE),
        (u64::MAX - PAGE + 1, 0, PAGE),
        ((1 << 47) - PAGE, 0, 2 * PAGE),
    ] {
        assert_eq!(node.map(object, va, offset, bytes), Err(Errno::EINVAL), "{va:#x} {offset:#x} {bytes:#x}");
    }
    assert_eq!(node.va(object, 3, AT, 0, PAGE), Err(Errno::EOPNOTSUPP));
    assert_eq!(node.va(object, 9, AT, 0, PAGE), Err(Errno::EINVAL));
    // KFD's addresses and DRM's are one space.
    let kfd = kfd_alloc(&rig, AT, PAGE).unwrap();
    assert_eq!(node.map(object, AT, 0, PAGE), Err(Errno::EINVAL));
    rig.free(kfd).unwrap();
    node.map(object, AT, 0, PAGE).unwrap();
    assert_eq!(kfd_alloc(&rig, AT, PAGE), Err(Errno::EADDRINUSE));
    // Its number is no handle of KFD.
    for number in 0..4 {
        assert_eq!(rig.free(u64::from(GPU_ID) << 32 | number), Err(Errno::EINVAL));
    }
    node.bound = false;
    assert_eq!(node.map(object, AT + PAGE, 0, PAGE), Err(Errno::EINVAL), "before ACQUIRE_VM");
    drop(node);
    assert_eq!(rig.gpu.walk(AT), None);
    assert_eq!(rig.vram_used(0), used);
}

#[test]
fn memory_becomes_kfds_and_drms_through_a_file() {
    let rig = Rig::new(Options::default());
    let node = Node::new(&rig);
    // From DRM to KFD, with the noted metadata.
    let object = node.create(PAGE, VRAM, 1).unwrap();
    let frame = node.frames(object, PAGE)[0];
    let mut noted = vec![object, 1, 7, 0, 9, 0, 6];
    noted.extend([0x6463_6261, 0x6665]);
    node.call(METADATA, &noted).unwrap();
    node.call(HANDLE_TO_FD, &[object, 0]).unwrap();
    let text = std::cell::Cell::new([0_u8; 16]);
    let mut info =
        GetDmabufInfoArgs { metadata_ptr: text.as_ptr() as u64, metadata_size: 5, ..GetDmabufInfoArgs::zeroed() };
    let ask = |info: &mut GetDmabufInfoArgs| rig.call(vkfd_uapi::command::GET_DMABUF_INFO.0, info);
    assert_eq!(ask(&mut info), Err(Errno::EINVAL), "no room for it");
    info.metadata_size = 16;
    ask(&mut info).unwrap();
    assert_eq!((info.size, info.metadata_size, &text.get()[..7]), (PAGE, 6, &b"abcdef\0"[..]));
    let mut import = ImportDmabufArgs { va_addr: AT, gpu_id: GPU_ID, dmabuf_fd: 3, ..ImportDmabufArgs::zeroed() };
    rig.call(vkfd_uapi::command::IMPORT_DMABUF.0, &mut import).unwrap();
    node.call(GEM_CLOSE, &[object]).unwrap();
    rig.map(import.handle).unwrap();
    assert_eq!(rig.gpu.walk(AT), Some(frame), "the memory outlives the object that it was made by");
    // And back: memory without addresses, as HIP's virtual memory has it.
    let bare = kfd_alloc(&rig, 0, 2 * PAGE).unwrap();
    assert_eq!(rig.map(bare), Err(Errno::EINVAL));
    let mut export = ExportDmabufArgs { handle: bare, ..ExportDmabufArgs::zeroed() };
    rig.call(vkfd_uapi::command::EXPORT_DMABUF.0, &mut export).unwrap();
    let imported = node.call(FD_TO_HANDLE, &[0, 0, export.dmabuf_fd]).unwrap()[0];
    assert_eq!(node.call(FD_TO_HANDLE, &[0, 0, export.dmabuf_fd]).unwrap()[0], imported, "one handle an object");
    let frames = node.frames(imported, 2 * PAGE);
    node.map(imported, AT + (1 << 30), 0, 2 * PAGE).unwrap();
    assert_eq!(rig.gpu.walk(AT + (1 << 30) + PAGE), Some(frames[1]));
    // Two without addresses are in nobody's way.
    let other = kfd_alloc(&rig, 0, 2 * PAGE).unwrap();
    rig.free(other).unwrap();
    rig.free(bare).unwrap();
    assert_eq!(rig.gpu.walk(AT + (1 << 30)), Some(frames[0]), "mapped as long as DRM has it");
}

#[test]
fn what_is_noted_of_memory_is_noted_of_each_of_its_files() {
    let rig = Rig::new(Options::default());
    let node = Node::new(&rig);
    let memory = kfd_alloc(&rig, AT, PAGE).unwrap();
    let export = |handle| {
        let mut export = ExportDmabufArgs { handle, ..ExportDmabufArgs::zeroed() };
        rig.call(vkfd_uapi::command::EXPORT_DMABUF.0, &mut export).unwrap();
        export.dmabuf_fd
    };
    let noted = || {
        let text = std::cell::Cell::new([0_u8; 16]);
        let mut info = GetDmabufInfoArgs {
            metadata_ptr: text.as_ptr() as u64,
            metadata_size: 16,
            dmabuf_fd: 3,
            ..GetDmabufInfoArgs::zeroed()
        };
        rig.call(vkfd_uapi::command::GET_DMABUF_INFO.0, &mut info).unwrap();
        text.get()[..info.metadata_size as usize].to_vec()
    };
    // ROCR notes a number by the first file, and a process that attaches to the memory reads it by
    // another.
    let object = node.call(FD_TO_HANDLE, &[0, 0, export(memory)]).unwrap()[0];
    node.call(METADATA, &[object, 1, 0, 0, 0, 0, 4, 0x6463_6261]).unwrap();
    assert_eq!(noted(), b"abcd");
    let dmabuf_fd = export(memory);
    assert_eq!(noted(), b"abcd");
    let mut import = ImportDmabufArgs { va_addr: AT + PAGE, gpu_id: GPU_ID, dmabuf_fd, ..ImportDmabufArgs::zeroed() };
    rig.call(vkfd_uapi::command::IMPORT_DMABUF.0, &mut import).unwrap();
    export(import.handle);
    assert_eq!(noted(), b"abcd");
    // Without addresses of its own, as ROCR imports what it maps through DRM.
    import.va_addr = 0;
    rig.call(vkfd_uapi::command::IMPORT_DMABUF.0, &mut import).unwrap();
    assert_eq!(rig.map(import.handle), Err(Errno::EINVAL));
    rig.free(import.handle).unwrap();
    // Other memory has nothing noted.
    export(kfd_alloc(&rig, AT + 2 * PAGE, PAGE).unwrap());
    assert_eq!(noted(), b"");
}

#[test]
fn only_memory_of_the_drivers_has_no_addresses() {
    let rig = Rig::new(Options::default());
    rig.mm.map(1000, 1, true);
    assert_eq!(rig.register(0, &[(1000, 1)], WRITABLE_USERPTR), Err(Errno::EINVAL));
    assert_eq!(kfd_alloc(&rig, 0, 0), Err(Errno::EINVAL));
}

#[test]
fn a_file_that_outlives_its_process_ends_without_a_trace() {
    let rig = Rig::new(Options::default());
    let used = rig.vram_used(0);
    let node = Node::new(&rig);
    let object = node.create(PAGE, VRAM, 0).unwrap();
    let system = node.create(4 * PAGE, GTT, 0).unwrap();
    assert_eq!(rig.process.kfd().limit().used(), 4 * PAGE);
    node.map(object, AT, 0, PAGE).unwrap();
    node.map(system, AT + (1 << 21), PAGE, PAGE).unwrap();
    rig.process.release();
    assert_eq!(rig.gpu.walk(AT), None);
    assert!(rig.vram_used(0) > 0 && rig.process.kfd().limit().used() == 4 * PAGE, "the objects are the file's");
    drop(node);
    assert_eq!(rig.process.kfd().limit().used(), 0);
    assert!(rig.vram_used(0) < used, "nor are page tables left");
}

/// A process ends while a render file, which lives on, is mapping an object for it. Whether its
/// page tables are left.
fn released_while_mapping(options: Options) -> (std::result::Result<(), Errno>, bool) {
    let rig = Rig::new(options);
    let before = rig.vram_used(0);
    let node = Node::new(&rig);
    let object = node.create(PAGE, GTT, 0).unwrap();
    let process = rig.process.clone();
    // Between the look for the VM and the object's entry into the process.
    rig.mm.at_settle(move |_| process.release());
    let mapped = node.map(object, AT, 0, PAGE);
    let left = rig.vram_used(0) >= before;
    drop(node);
    (mapped, left)
}

#[test]
fn nothing_enters_a_process_that_has_ended() {
    assert_eq!(released_while_mapping(Options::default()), (Err(Errno::ESRCH), false));
}

/// Negative control: the same look at a driver that lets it in.
#[cfg(debug_assertions)]
#[test]
fn an_object_behind_the_end_is_noticed() {
    let sabotage = vkfd_driver::sabotage::Switch::EnterReleased.into();
    let (mapped, left) = released_while_mapping(Options { sabotage, ..Options::default() });
    assert!(mapped.is_ok() && left, "{mapped:?}");
}

#[test]
fn every_failpoint_leaves_nothing() {
    let rig = Rig::new(Options::default());
    for step in 1.. {
        let charged = rig.process.kfd().limit().used();
        let node = Node::new(&rig);
        let (done, failed) = fail_nth(step, || {
            node.create(PAGE, GTT, 0).and_then(|object| node.map(object, AT, 0, PAGE).map(|()| object))
        });
        drop(node);
        assert_eq!(rig.process.kfd().limit().used(), charged, "step {step}");
        assert_eq!(rig.gpu.walk(AT), None, "step {step}");
        if !failed {
            done.unwrap();
            assert!(step > 5, "the calls pass more points than that");
            break;
        }
        assert_eq!(done, Err(Errno::ENOMEM), "step {step}");
    }
}
