// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files that calls give to their callers: buffers, and events.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vkfd_client::uapi::command;
use vkfd_client::uapi::event::{EVENT_MEMORY, WAIT_RESULT_COMPLETE};
use vkfd_client::uapi::memory::{
    AllocMemoryOfGpuArgs, ExportDmabufArgs, GetDmabufInfoArgs, ImportDmabufArgs, ALLOC_MEM_FLAGS_GTT,
    ALLOC_MEM_FLAGS_PUBLIC, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::smi::{event_mask, SmiEventsArgs, SMI_EVENT_VMFAULT};
use vkfd_client::{Errno, PAGE};

use super::runtime::{halves, packet, Pm4, Runtime, PATIENCE};
use crate::memory::Memory;
use crate::{raw, Scenario, Stop};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "buffers_share_their_memory_as_files",
        about: "Exported, asked about, imported elsewhere: one memory, which goes with the last of them.",
        run: dmabuf,
    },
    Scenario {
        name: "a_buffers_file_is_the_buffer_for_another_client",
        about: "One client's buffer, imported by another: what the one's queue writes the other reads, also when the one has gone.",
        run: between_clients,
    },
    Scenario {
        name: "event_files_tell_of_faults",
        about: "A fault is a line for who asked for it, and none for who did not; reading on is EAGAIN.",
        run: smi,
    },
];

/// A buffer's file.
fn export(runtime: &Runtime, handle: u64) -> Result<File, Stop> {
    let mut export = ExportDmabufArgs { handle, flags: 0, dmabuf_fd: 0 };
    match runtime.call(command::EXPORT_DMABUF, &mut export) {
        Err(Errno::OPNOTSUPP) => return Err(Stop::Skip("this host makes no files of buffers".into())),
        result => ensure_eq!(result, Ok(())),
    }
    // SAFETY: the call has given the descriptor to this process.
    Ok(unsafe { File::from_raw_fd(i32::try_from(export.dmabuf_fd)?) })
}

/// WRITE_DATA of a word.
fn write(va: u64, value: u32) -> Vec<u32> {
    let [low, high] = halves(va);
    packet(0x37, &[5 << 8, low, high, value])
}

/// COPY_DATA of a word, from memory to memory.
fn copy(from: u64, to: u64) -> Vec<u32> {
    let ([from_low, from_high], [to_low, to_high]) = (halves(from), halves(to));
    packet(0x40, &[2 | 5 << 8, from_low, from_high, to_low, to_high])
}

fn between_clients() -> Result<(), Stop> {
    for kind in [ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_GTT] {
        let giving = Runtime::new()?;
        let taking = giving.beside()?;
        let given = giving.alloc(kind, 4 * PAGE)?;
        let file = export(&giving, given.handle)?;
        let window = raw::gpu_window(4 * PAGE)?;
        let va = window.whole().start;
        let dmabuf_fd = u32::try_from(file.as_raw_fd())?;
        let mut import = ImportDmabufArgs { va_addr: va, handle: 0, gpu_id: taking.gpu, dmabuf_fd };
        ensure_eq!(taking.call(command::IMPORT_DMABUF, &mut import), Ok(()));
        drop(file);
        taking.map_on_gpu(import.handle)?;
        let mut queue = Pm4::new(&taking)?;
        queue.submit(&write(va + 3 * PAGE, 0x1234));
        queue.finish()?;
        ensure_eq!(given.word(3 * PAGE).load(Ordering::SeqCst), 0x1234);
        given.word(8).store(0x5678, Ordering::SeqCst);
        giving.unmap(given.handle)?;
        giving.free(given.handle)?;
        drop((given, giving));
        let seen = taking.alloc(ALLOC_MEM_FLAGS_GTT, PAGE)?;
        queue.submit(&copy(va + 8, seen.va()));
        queue.submit(&copy(va + 3 * PAGE, seen.va() + 4));
        queue.finish()?;
        ensure_eq!(seen.word(0).load(Ordering::SeqCst), 0x5678);
        ensure_eq!(seen.word(4).load(Ordering::SeqCst), 0x1234);
        queue.destroy()?;
        taking.unmap(import.handle)?;
        taking.free(import.handle)?;
    }
    Ok(())
}

fn dmabuf() -> Result<(), Stop> {
    let runtime = Runtime::new()?;
    for kind in [ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_GTT] {
        let first = runtime.alloc(kind, 4 * PAGE)?;
        let file = export(&runtime, first.handle)?;
        let fd = u32::try_from(file.as_raw_fd())?;
        let mut info = GetDmabufInfoArgs { dmabuf_fd: fd, ..GetDmabufInfoArgs::zeroed() };
        ensure_eq!(runtime.call(command::GET_DMABUF_INFO, &mut info), Ok(()));
        ensure_eq!((info.size, info.gpu_id, info.flags & kind), (4 * PAGE, runtime.gpu, kind));
        ensure_eq!(info.flags & ALLOC_MEM_FLAGS_PUBLIC, 0, "a hint is not told");
        ensure_eq!(file.metadata()?.len(), 4 * PAGE);
        // As libdrm asks for an import's size.
        ensure_eq!((&file).seek(SeekFrom::End(0))?, 4 * PAGE);
        ensure_eq!((&file).seek(SeekFrom::Start(0))?, 0);

        let window = raw::gpu_window(4 * PAGE)?;
        let import = ImportDmabufArgs { va_addr: window.whole().start, handle: 0, gpu_id: runtime.gpu, dmabuf_fd: fd };
        for (mut args, errno) in [
            (ImportDmabufArgs { va_addr: 1, ..import }, Errno::INVAL),
            (ImportDmabufArgs { va_addr: first.va(), ..import }, Errno::ADDRINUSE),
            (ImportDmabufArgs { gpu_id: 1, ..import }, Errno::INVAL),
            (ImportDmabufArgs { dmabuf_fd: u32::MAX, ..import }, Errno::BADF),
            (ImportDmabufArgs { dmabuf_fd: 0, ..import }, Errno::INVAL),
        ] {
            ensure_eq!(runtime.call(command::IMPORT_DMABUF, &mut args), Err(errno), "{args:?}");
        }
        let mut imported = import;
        ensure_eq!(runtime.call(command::IMPORT_DMABUF, &mut imported), Ok(()));
        runtime.map_on_gpu(imported.handle)?;
        // What a queue writes at the one address is at the other.
        let mut queue = Pm4::new(&runtime)?;
        queue.submit(&write(import.va_addr + 3 * PAGE, 0x1234));
        queue.finish()?;
        ensure_eq!(first.word(3 * PAGE).load(Ordering::SeqCst), 0x1234);
        // The memory outlives the object that it was made for.
        runtime.unmap(first.handle)?;
        runtime.free(first.handle)?;
        drop(file);
        queue.submit(&copy(import.va_addr + 3 * PAGE, import.va_addr));
        queue.finish()?;
        ensure_eq!(first.word(0).load(Ordering::SeqCst), 0x1234);
        queue.destroy()?;
        runtime.unmap(imported.handle)?;
        runtime.free(imported.handle)?;
    }
    // A caller's own memory is not for others.
    let memory = Memory::anonymous(PAGE)?;
    let window = raw::gpu_window(PAGE)?;
    let mut args = AllocMemoryOfGpuArgs {
        va_addr: window.whole().start,
        size: PAGE,
        handle: 0,
        mmap_offset: memory.whole().start,
        gpu_id: runtime.gpu,
        flags: ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE,
    };
    runtime.call(command::ALLOC_MEMORY_OF_GPU, &mut args)?;
    let mut export = ExportDmabufArgs { handle: args.handle, flags: 0, dmabuf_fd: 0 };
    ensure_eq!(runtime.call(command::EXPORT_DMABUF, &mut export), Err(Errno::PERM));
    Ok(())
}

fn smi() -> Result<(), Stop> {
    let runtime = Runtime::new()?;
    let open = || {
        let mut args = SmiEventsArgs { gpuid: runtime.gpu, anon_fd: 0 };
        match runtime.call(command::SMI_EVENTS, &mut args) {
            Err(Errno::OPNOTSUPP) => Err(Stop::Skip("this host makes no files of events".into())),
            Err(errno) => Err(errno.into()),
            // SAFETY: the call has given the descriptor to this process.
            Ok(()) => Ok(unsafe { File::from_raw_fd(i32::try_from(args.anon_fd)?) }),
        }
    };
    let (mut asked, mut silent, closed) = (open()?, open()?, open()?);
    let mut bad = SmiEventsArgs { gpuid: 1, anon_fd: 0 };
    ensure_eq!(runtime.call(command::SMI_EVENTS, &mut bad), Err(Errno::INVAL));
    drop(closed);
    asked.write_all(&event_mask(SMI_EVENT_VMFAULT).to_ne_bytes())?;
    let memory = runtime.event(EVENT_MEMORY, 0)?;
    let mut queue = Pm4::new(&runtime)?;
    queue.submit(&write(0x10_0000_0000, 1));
    ensure_eq!(runtime.wait(&[memory.event_id], true, 60_000).1, WAIT_RESULT_COMPLETE);
    // The line is written after the event: it comes, but not at once.
    let start = Instant::now();
    let mut line = [0; 96];
    let length = loop {
        match asked.read(&mut line) {
            Ok(length) => break length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => bail!("no line: {error}"),
        }
    };
    let text = String::from_utf8_lossy(&line[..length]).into_owned();
    let expected = format!("1 {:x}:", std::process::id());
    ensure!(text.starts_with(&expected) && text.ends_with('\n'), "{text:?} is not {expected}NAME");
    for file in [&mut asked, &mut silent] {
        let again = file.read(&mut line).map_err(|e| e.kind());
        ensure_eq!(again, Err(std::io::ErrorKind::WouldBlock));
    }
    queue.destroy()?;
    Ok(())
}
