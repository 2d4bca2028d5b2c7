// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files that calls give, and what the device's own shows.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use vkfd_client::uapi::command;
use vkfd_client::uapi::memory::{
    ExportDmabufArgs, GetDmabufInfoArgs, ImportDmabufArgs, ALLOC_MEM_FLAGS_DOORBELL, ALLOC_MEM_FLAGS_GTT,
    ALLOC_MEM_FLAGS_MMIO_REMAP, ALLOC_MEM_FLAGS_PUBLIC, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE, INVALID_FD,
};
use vkfd_client::uapi::mmap as offsets;
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::smi::SmiEventsArgs;
use vkfd_client::uapi::svm::SVM_ATTR_PREFETCH_LOC;
use vkfd_client::{MmapFile, PAGE};

use super::plain::map;
use super::{number, Calls};
use crate::raw::USERPTR;
use crate::Stop;

const VRAM: u32 = ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_PUBLIC;
const GTT: u32 = ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE;
/// Time for a line of an event to come.
const LINES: Duration = Duration::from_millis(300);

impl Calls {
    fn export(&self, label: &str, handle: u64, flags: u32) -> Option<OwnedFd> {
        let mut args = ExportDmabufArgs { handle, flags, dmabuf_fd: 0 };
        self.call(label, command::EXPORT_DMABUF, &mut args).ok()?;
        // SAFETY: the call has given the descriptor to this process.
        Some(unsafe { OwnedFd::from_raw_fd(i32::try_from(args.dmabuf_fd).ok()?) })
    }

    fn import(&self, label: &str, va_addr: u64, gpu_id: u32, dmabuf_fd: u32) -> Option<u64> {
        let mut args = ImportDmabufArgs { va_addr, handle: 0, gpu_id, dmabuf_fd };
        self.call(label, command::IMPORT_DMABUF, &mut args).ok().map(|()| args.handle)
    }
}

pub(super) fn dmabuf(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let window = calls.window("window", 64 * PAGE)?;
    let memory = calls.memory("memory", 4 * PAGE)?;
    let null = OwnedFd::from(File::open("/dev/null")?);
    let (va, gpu) = (window.whole().start, calls.gpu());
    for (kind, name) in [(VRAM, "VRAM"), (GTT, "GTT")] {
        let object = calls.object(name, kind, 4 * PAGE)?;
        for (flags, what) in [(1, "flag 1"), (libc::O_CLOEXEC.unsigned_abs(), "closed"), (u32::MAX, "all flags")] {
            let _ = calls.export(&format!("{name}, export with {what}"), object.handle, flags);
        }
        let Some(file) = calls.export(&format!("{name}, export"), object.handle, libc::O_RDWR.unsigned_abs()) else {
            continue;
        };
        let fd = number(&file);
        let mut info = GetDmabufInfoArgs { dmabuf_fd: fd, ..GetDmabufInfoArgs::zeroed() };
        let _ = calls.call(&format!("{name}, info"), command::GET_DMABUF_INFO, &mut info);
        info = GetDmabufInfoArgs { dmabuf_fd: fd, metadata_ptr: memory.whole().start, metadata_size: 256, ..info };
        let _ = calls.call(&format!("{name}, info with room"), command::GET_DMABUF_INFO, &mut info);
        info = GetDmabufInfoArgs { dmabuf_fd: fd, metadata_ptr: 1, metadata_size: 256, ..info };
        let _ = calls.call(&format!("{name}, info to nowhere"), command::GET_DMABUF_INFO, &mut info);
        let end = (&File::from(file.try_clone()?)).seek(SeekFrom::End(0)).map_err(|error| error.kind());
        calls.record.note("its end", format!("{end:?}"));
        let import = |what: &str, va, gpu, fd| calls.import(&format!("{name}, import {what}"), va, gpu, fd);
        for (what, va, gpu, fd) in [
            ("for no GPU", va, calls.no_gpu(), fd),
            ("for GPU 0", va, 0, fd),
            ("of no file", va, gpu, INVALID_FD),
            ("of no such file", va, gpu, 9999),
            ("of a file of nothing", va, gpu, number(&null)),
        ] {
            import(what, va, gpu, fd);
        }
        // Addresses are looked at whatever the kind.
        for (what, va) in [
            ("at an unaligned address", va + 1),
            ("over itself", object.va()),
            ("over its last page", object.va() + 3 * PAGE),
            ("past 47 bits", 1 << 47),
            ("past 48 bits", 1 << 48),
        ]
        .into_iter()
        .filter(|_| kind == GTT)
        {
            let _together = calls.record.together();
            if let Some(handle) = import(what, va, gpu, fd) {
                let _ = calls.free(what, handle);
            }
        }
        if let Some(handle) = import("at 0", 0, gpu, fd) {
            let _ = calls.map_on_gpu(&format!("{name}, map the import at 0"), handle);
            let _ = calls.free(&format!("{name}, free the import at 0"), handle);
        }
        let Some(handle) = import("good", va, gpu, fd) else { continue };
        if let Some(twice) = import("a second time", va + 8 * PAGE, gpu, fd) {
            let _ = calls.free(&format!("{name}, free the second"), twice);
        }
        let _ = calls.map_on_gpu(&format!("{name}, map the import"), handle);
        let _ = calls.unmap_from_gpu(&format!("{name}, unmap the original"), object.handle);
        let _ = calls.free(&format!("{name}, free the original"), object.handle);
        let _ = calls.export(&format!("{name}, export the import"), handle, 0);
        let _ = calls.unmap_from_gpu(&format!("{name}, unmap the import"), handle);
        let _ = calls.free(&format!("{name}, free the import"), handle);
    }
    let own = calls.alloc("userptr", va, PAGE, memory.whole().start, USERPTR)?;
    let _ = calls.export("export a userptr", own.handle, 0);
    let _ = calls.free("free the userptr", own.handle);
    for (kind, bytes, name) in
        [(ALLOC_MEM_FLAGS_DOORBELL, 2 * PAGE, "doorbells"), (ALLOC_MEM_FLAGS_MMIO_REMAP, PAGE, "registers")]
    {
        if let Ok(made) = calls.alloc(name, va, bytes, 0, kind) {
            let _ = calls.export(&format!("export {name}"), made.handle, 0);
            let _ = calls.free(&format!("free {name}"), made.handle);
        }
    }
    for (handle, label) in [(0, "export 0"), (u64::from(gpu) << 32 | 999, "export no handle"), (1, "export of GPU 0")] {
        let _ = calls.export(label, handle, 0);
    }
    for (fd, label) in
        [(INVALID_FD, "info of no file"), (9999, "info of no such file"), (number(&null), "info of a file of nothing")]
    {
        let mut info = GetDmabufInfoArgs { dmabuf_fd: fd, ..GetDmabufInfoArgs::zeroed() };
        let _ = calls.call(label, command::GET_DMABUF_INFO, &mut info);
    }
    Ok(())
}

/// A line of an event without the parts that differ between runs.
fn words(line: &str) -> String {
    let mut words = line.split(' ');
    let number = words.next().unwrap_or_default();
    // A time comes next, except of a virtual memory fault.
    let rest: Vec<&str> = (0..)
        .zip(words)
        .map(|(at, word)| match word {
            word if word.starts_with('-') => "-PID",
            word if word.starts_with('@') => "@PAGE",
            word if at == 0 && word.bytes().all(|byte| byte.is_ascii_digit()) => "TIME",
            word => word,
        })
        .collect();
    format!("{number} {}", rest.join(" "))
}

pub(super) fn smi(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    for (gpuid, label) in [(calls.no_gpu(), "of no GPU"), (0, "of GPU 0")] {
        let _ = calls.call(label, command::SMI_EVENTS, &mut SmiEventsArgs { gpuid, anon_fd: 0 });
    }
    let open = |label: &str| -> Result<File, Stop> {
        let mut args = SmiEventsArgs { gpuid: calls.gpu(), anon_fd: 0 };
        calls.call(label, command::SMI_EVENTS, &mut args)?;
        // SAFETY: the call has given the descriptor to this process.
        Ok(unsafe { File::from_raw_fd(i32::try_from(args.anon_fd)?) })
    };
    let mut file = open("open")?;
    let record = &calls.record;
    let outcome = |result: std::io::Result<usize>| match result {
        Ok(bytes) => format!("{bytes} bytes"),
        Err(error) => crate::calls::record::outcome(Err(vkfd_client::Errno(error.raw_os_error().unwrap_or(0)))),
    };
    let mut room = [0; 256];
    record.step("read, with nothing asked for");
    record.note("read of 256 bytes", outcome(file.read(&mut room)));
    for (bytes, label) in [
        (&[0xff_u8; 4][..], "ask with 4 bytes"),
        (&[0; 0], "ask with no byte"),
        (&[0xff; 16], "ask with 16 bytes"),
        (&[0; 8], "ask for nothing"),
    ] {
        record.step(label);
        record.note("write", outcome(file.write(bytes)));
    }
    let mut file = open("open another")?;
    record.step("ask for all");
    record.note("write", outcome(file.write(&[0xff; 8])));
    record.step("read, with all asked for");
    record.note("read of 256 bytes", outcome(file.read(&mut room)));
    record.note("read of no byte", outcome(file.read(&mut [])));
    // SVM memory that moves makes lines. No GPU has access: queues that stop meanwhile would make
    // more of them, or fewer.
    let memory = calls.memory("memory", 2 << 20)?;
    let range = memory.range(0, 4 * PAGE);
    memory.fill_pages(0..4, 1);
    super::svm::set(calls, "prefetch", range, SVM_ATTR_PREFETCH_LOC, calls.gpu());
    lines(calls, &mut file, "lines of a prefetch");
    super::svm::set(calls, "prefetch back", range, SVM_ATTR_PREFETCH_LOC, 0);
    lines(calls, &mut file, "lines of a prefetch back");
    // A userptr that changes under a mapping, without a queue.
    let window = calls.window("window", 4 * PAGE)?;
    let own = calls.memory("own", PAGE)?;
    own.fill_pages(0..1, 2);
    let made = calls.alloc("userptr", window.whole().start, PAGE, own.whole().start, USERPTR)?;
    let _ = calls.map_on_gpu("map the userptr", made.handle);
    lines(calls, &mut file, "lines before the change");
    own.discard(0, PAGE)?;
    lines(calls, &mut file, "lines of a change");
    Ok(())
}

/// Notes the lines that come.
fn lines(calls: &Calls, file: &mut File, label: &str) {
    let start = Instant::now();
    let mut all = Vec::new();
    let mut room = [0; 4096];
    while start.elapsed() < LINES {
        match file.read(&mut room) {
            Ok(bytes) if bytes > 0 => all.extend_from_slice(&room[..bytes]),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let text = String::from_utf8_lossy(&all);
    let shown: Vec<String> = text.lines().map(words).collect();
    calls.record.step(label);
    let gpu = format!("{:x}", calls.gpu());
    calls.record.note("lines", format!("{:?}", shown).replace(&gpu, "GPU"));
}

pub(super) fn mmap(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let window = calls.window("window", 64 * PAGE)?;
    let memory = calls.memory("memory", 4 * PAGE)?;
    let (va, gpu, none) = (window.whole().start, calls.gpu(), calls.no_gpu());
    let doorbell = offsets::encode(offsets::MMAP_TYPE_DOORBELL, gpu);
    let registers = offsets::encode(offsets::MMAP_TYPE_MMIO, gpu);
    let kfd = |label: &str, bytes, offset| map(calls, label, MmapFile::Kfd, bytes, offset);
    kfd("doorbells", 2 * PAGE, doorbell);
    kfd("doorbells, a page", PAGE, doorbell);
    kfd("doorbells, three pages", 3 * PAGE, doorbell);
    kfd("doorbells of no GPU", 2 * PAGE, offsets::encode(offsets::MMAP_TYPE_DOORBELL, none));
    kfd("doorbells of GPU 0", 2 * PAGE, offsets::encode(offsets::MMAP_TYPE_DOORBELL, 0));
    kfd("doorbells, the second page", PAGE, doorbell + PAGE);
    kfd("registers", PAGE, registers);
    kfd("registers, two pages", 2 * PAGE, registers);
    kfd("registers of no GPU", PAGE, offsets::encode(offsets::MMAP_TYPE_MMIO, none));
    kfd("events", 8 * PAGE, offsets::MMAP_TYPE_EVENTS);
    kfd("events, a page", PAGE, offsets::MMAP_TYPE_EVENTS);
    kfd("events, nine pages", 9 * PAGE, offsets::MMAP_TYPE_EVENTS);
    kfd("reserved", PAGE, offsets::encode(offsets::MMAP_TYPE_RESERVED_MEM, gpu));
    kfd("nothing", PAGE, 0);
    let render = |label: &str, bytes, offset| map(calls, label, MmapFile::Render(calls.gpu.id), bytes, offset);
    for (kind, name) in [(VRAM, "public VRAM"), (VRAM & !ALLOC_MEM_FLAGS_PUBLIC, "VRAM"), (GTT, "GTT")] {
        let made = calls.alloc(name, va, 4 * PAGE, 0, kind)?;
        render(&format!("{name}, mapped"), 4 * PAGE, made.mmap_offset);
        render(&format!("{name}, a page mapped"), PAGE, made.mmap_offset);
        render(&format!("{name}, its second page mapped"), PAGE, made.mmap_offset + PAGE);
        render(&format!("{name}, mapped past its end"), 5 * PAGE, made.mmap_offset);
        let _ = calls.free(&format!("{name}, freed"), made.handle);
        render(&format!("{name}, mapped after it"), 4 * PAGE, made.mmap_offset);
    }
    if let Ok(made) = calls.alloc("doorbells of an object", va, 2 * PAGE, 0, ALLOC_MEM_FLAGS_DOORBELL) {
        let _ = calls.free("doorbells of an object, freed", made.handle);
    }
    let own = calls.alloc("userptr", va, PAGE, memory.whole().start, USERPTR)?;
    render("userptr, mapped", PAGE, own.mmap_offset);
    let _ = calls.free("userptr, freed", own.handle);
    render("nothing of the render node", PAGE, 0);
    Ok(())
}
