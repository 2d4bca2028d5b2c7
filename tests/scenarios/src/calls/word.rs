// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Command words and pointers to arguments.

use vkfd_client::uapi::call::Known;
use vkfd_client::uapi::command;
use vkfd_client::uapi::ioctl::Command;
use vkfd_client::uapi::memory::ALLOC_MEM_FLAGS_VRAM;
use vkfd_client::{CpuVa, PAGE};

use super::record::outcome;
use super::Calls;
use crate::Stop;

/// Words that are no call's, or a call's with another length.
pub(super) fn words(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    // As long as a command word can say.
    let mut argument = [0_u64; 2048];
    let at = CpuVa::of(argument.as_mut_ptr()).0;
    calls.record.name(at, 16384, "argument");
    for word in [
        0xc010_4b00,
        0xc010_4b29,
        0xc010_4b2a,
        0xc010_4b3f,
        0xc010_4b50,
        0xc010_4b7f, // past the table
        0x0000_4b00,
        0x0000_0000,
        0xffff_ffff,
        0xc028_0016,
        0xc028_4416,
        0x8008_4401, // another letter
    ] {
        let _ = calls.send(&format!("word {word:#x}"), Command(word), at);
    }
    let mut version = |size: usize, label: &str| {
        argument.fill(u64::MAX);
        let Some(word) = command::GET_VERSION.with_size(size) else { return };
        let _ = calls.send(label, word, at);
        let written = argument.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0xff).count();
        calls.record.note("bytes written", written.to_string());
    };
    version(0, "version without a byte");
    version(4, "version of 4 bytes");
    version(8, "version of 8 bytes");
    version(16, "version of 16 bytes");
    version(32, "version of 32 bytes");
    let window = calls.window("window", PAGE)?;
    let tail = u64::from(calls.gpu()) | u64::from(ALLOC_MEM_FLAGS_VRAM) << 32;
    for size in [0, 8, 32, 36, 40, 48, 64] {
        let Some(word) = command::ALLOC_MEMORY_OF_GPU.with_size(size) else { continue };
        let mut words = [window.whole().start, PAGE, 0, 0, tail, u64::MAX, u64::MAX, u64::MAX];
        let result = calls.send(&format!("alloc of {size} bytes"), word, CpuVa::of(words.as_mut_ptr()).0);
        calls.record.note("what follows", format!("{:x?}", &words[5..]));
        if result.is_ok() {
            let _ = calls.free(&format!("free what {size} bytes made"), words[2]);
        }
    }
    // Another direction than the call's.
    let direction = |word: u32, label: &str| {
        let mut words = [window.whole().start, PAGE, 0, 0, tail];
        let result = calls.send(label, Command(word), CpuVa::of(words.as_mut_ptr()).0);
        calls.record.note("handle", if words[2] == 0 { "none" } else { "written" });
        if result.is_ok() && words[2] != 0 {
            let _ = calls.free(&format!("free after {label}"), words[2]);
        }
    };
    direction(0x8028_4b16, "alloc that is only written");
    direction(0x0028_4b16, "alloc of no direction");
    let _ = calls.send("version of no direction", Command(0x0008_4b01), at);
    let mut version = [u64::MAX; 2];
    let _ = calls.send("version both ways", Command(0xc008_4b01), CpuVa::of(version.as_mut_ptr()).0);
    Ok(())
}

/// Every call with arguments that cannot be read or written.
pub(super) fn pointers(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let memory = calls.memory("memory", 2 * PAGE)?;
    memory.unmap(PAGE, PAGE)?;
    let unmapped = memory.whole().start + PAGE;
    let places = [
        (0, "null"),
        (1, "1"),
        (unmapped, "unmapped"),
        (unmapped - 4, "half unmapped"),
        (1 << 47, "past the end"),
        (0xffff_8000_0000_0000, "the kernel's"),
        (u64::MAX - 3, "the last bytes"),
    ];
    // Without an argument CREATE_PROCESS would do its work.
    let all = command::ALL.iter().filter(|known| known.command != command::CREATE_PROCESS);
    for Known { name, command, .. } in all {
        calls.record.be_silent(true);
        let outcomes = places.map(|(place, what)| (outcome(calls.send(what, *command, place)), what));
        calls.record.be_silent(false);
        calls.record.step(format!("{name} {:#x}", command.0));
        let first = &outcomes[0].0;
        let alike = outcomes.iter().all(|(outcome, _)| outcome == first);
        let all = format!("{first} wherever the argument is");
        calls.record.note("bad pointers", if alike { all } else { format!("{outcomes:?}") });
    }
    // Where a result cannot be written, an argument can still be read.
    let window = calls.window("window", PAGE)?;
    let vram = u64::from(calls.gpu()) | u64::from(ALLOC_MEM_FLAGS_VRAM) << 32;
    for (at, word) in (0..).step_by(8).zip([window.whole().start, PAGE, 0, 0, vram]) {
        memory.write(at, &word.to_ne_bytes());
    }
    memory.protect(0, PAGE, libc::PROT_READ)?;
    let _ = calls.send("version, not to be written", command::GET_VERSION, memory.whole().start);
    let _ = calls.send("alloc, not to be written", command::ALLOC_MEMORY_OF_GPU, memory.whole().start);
    let _ = calls.alloc("the same addresses", window.whole().start, PAGE, 0, ALLOC_MEM_FLAGS_VRAM);
    Ok(())
}
