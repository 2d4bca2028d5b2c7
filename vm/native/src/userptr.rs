// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Blobs of this program's own memory, which the guest's kernel pins
//! (`vm/virtio-gpu-userptr.patch`).

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use anyhow::{bail, ensure, Context, Result};
use vkfd_remote::guest::virtgpu::{Blob, SeriesUserptrBlob, UserptrBlob, FLAG_USERPTR};
use vkfd_remote::protocol::blob::{FLAG_MAPPABLE, MEM_HOST3D, MEM_HOST3D_GUEST};
use vkfd_remote::protocol::hsakmt::memory::Layout;

use crate::check::Bench;
use crate::drm::Gem;
use crate::library::poll;
use crate::memory::Buffer;

const BYTES: u64 = 16 << 20;
const PAGE: u64 = 4096;

pub fn run(layout: Layout) -> Result<()> {
    let mut bench = Bench::new(layout, BYTES)?;
    let before = locked()?;
    let buffer = Buffer::new(BYTES)?;
    buffer.fill(1);
    let registered = bench.session.register(buffer.at(), BYTES)?;
    ensure!(!bench.session.stand_in, "this kernel has no userptr blobs");
    ensure!(locked()? == before + BYTES, "of {BYTES} registered bytes {} count as locked", locked()? - before);
    // Without the pin, compaction would move pages from under the GPU.
    std::fs::write("/proc/sys/vm/compact_memory", "1").context("compact the guest's memory")?;
    bench.agree(&buffer, &registered, "after compaction")?;
    buffer.fill(2);
    bench.agree(&buffer, &registered, "after compaction and a write")?;
    let crc = buffer.crc();
    drop(buffer);
    let gpu = bench.gpu_crc(registered.address, BYTES)?;
    ensure!(gpu == crc, "after munmap the GPU has CRC {gpu:08x} and not {crc:08x} of what was there");
    println!("registered memory is locked, and the GPU's through compaction and munmap");
    bench.session.deregister(&registered)?;
    drop(registered);
    unlocked(before)?;
    refused(&bench, before)?;
    limited(&bench, before)
}

/// Every refusal, after which nothing is left.
fn refused(bench: &Bench, before: u64) -> Result<()> {
    let node = &bench.session.node;
    let buffer = Buffer::new(2 * PAGE)?;
    buffer.fill(3);
    let there = buffer.at().as_ptr().expose_provenance() as u64;
    let flags = FLAG_USERPTR;
    let blob = Blob { memory: MEM_HOST3D_GUEST, flags, size: PAGE, id: 4000, ..Blob::default() };
    let good = UserptrBlob { blob, hints: 0, pointer: there };
    let of = |change: &dyn Fn(&mut UserptrBlob)| {
        let mut args = good;
        change(&mut args);
        node.userptr_of(args)
    };
    let series = SeriesUserptrBlob { blob, pointer: there, offset: 0 };
    let constant = Buffer::new(2 * PAGE)?;
    // SAFETY: memory of this program, of which no reference exists; the second page goes with it.
    let changed = unsafe {
        libc::mprotect(constant.at().as_ptr(), 4096, libc::PROT_READ) == 0
            && libc::munmap(constant.at().as_ptr().byte_add(4096), 4096) == 0
    };
    ensure!(changed, "make memory constant: {}", io::Error::last_os_error());
    let constant = constant.at().as_ptr().expose_provenance() as u64;
    let cases = [
        ("an address inside of a page", of(&|args| args.pointer += 8), libc::EINVAL),
        ("a part of a page", of(&|args| args.blob.size = 100), libc::EINVAL),
        ("nothing", of(&|args| args.blob.size = 0), libc::EINVAL),
        ("more than can be counted", of(&|args| args.blob.size = 1 << 44), libc::EINVAL),
        ("an address that is none", of(&|args| args.pointer = 0), libc::EFAULT),
        ("an address of the kernel", of(&|args| args.pointer = 0xffff_8000 << 32), libc::EFAULT),
        ("constant memory", of(&|args| args.pointer = constant), libc::EFAULT),
        (
            "memory of which half is there",
            of(&|args| (args.pointer, args.blob.size) = (constant, 2 * PAGE)),
            libc::EFAULT,
        ),
        ("another flag besides", of(&|args| args.blob.flags |= FLAG_MAPPABLE), libc::EINVAL),
        ("memory of the host", of(&|args| args.blob.memory = MEM_HOST3D), libc::EINVAL),
        ("hints", of(&|args| args.hints = 1), libc::EINVAL),
        ("an address without the flag", of(&|args| args.blob.flags = 0), libc::EINVAL),
        ("the layout of the posted series", node.userptr_of_the_series(series), libc::EINVAL),
    ];
    let count = cases.len();
    for (what, result, errno) in cases {
        refusal(what, result, errno)?;
    }
    unlocked(before)?;
    // And all right is right.
    drop(of(&|_| ()).context("a page of this program")?);
    unlocked(before)?;
    println!("{count} blobs of memory that is not so: all refused, and nothing is left locked");
    Ok(())
}

fn refusal(what: &str, result: io::Result<Gem>, errno: i32) -> Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        Err(error) => bail!("{what}: {error}, where error number {errno} is wanted"),
        Ok(_) => bail!("{what}: the kernel has made a blob"),
    }
}

/// The limit of locked memory holds for a user that may not exceed it.
fn limited(bench: &Bench, before: u64) -> Result<()> {
    let buffer = Buffer::new(BYTES)?;
    buffer.fill(4);
    let limit = before + (1 << 20);
    let limits = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the structure is whole.
    ensure!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limits) } == 0, "set a limit of locked memory");
    without_ipc_lock()?;
    let all = bench.session.node.userptr(buffer.at(), BYTES, 4001);
    refusal("more than may be locked", all, libc::ENOMEM)?;
    let part = bench.session.node.userptr(buffer.at(), 1 << 20, 4002).context("as much as may be locked")?;
    let more: NonNull<c_void> = NonNull::new(buffer.at().as_ptr().wrapping_byte_add(1 << 20)).context("an address")?;
    refusal("a page more than may be locked", bench.session.node.userptr(more, PAGE, 4003), libc::ENOMEM)?;
    drop(part);
    unlocked(before)?;
    println!("the limit of locked memory holds");
    Ok(())
}

/// This program may not pass the limit of locked memory any more.
fn without_ipc_lock() -> Result<()> {
    const IPC_LOCK: u32 = 14;
    let mut header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: header and sets are as version 3 has them.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    ensure!(got == 0, "capget: {}", io::Error::last_os_error());
    sets[0] &= !(1 << IPC_LOCK);
    // SAFETY: as before.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_mut_ptr()) };
    ensure!(set == 0, "capset: {}", io::Error::last_os_error());
    Ok(())
}

/// Waits until no more is locked than before: the kernel lets go when the host has answered.
fn unlocked(before: u64) -> Result<()> {
    poll("what is locked to be let go", || locked().is_ok_and(|now| now == before))
}

/// Bytes of this program that count as locked.
fn locked() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()).context("no VmLck")?;
    Ok(kib.parse::<u64>()? << 10)
}
