// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Command words and arguments, before any meaning.

use vkfd_client::uapi::batch::ALLOC_MEMORY_OF_GPU_BATCH;
use vkfd_client::uapi::command;
use vkfd_client::uapi::ioctl::Command;
use vkfd_client::uapi::memory::ALLOC_MEM_FLAGS_VRAM;
use vkfd_client::uapi::pod::Pod as _;
use vkfd_client::uapi::process::{
    GetProcessAperturesNewArgs, GetVersionArgs, ProcessDeviceApertures, IOCTL_MAJOR_VERSION,
};
use vkfd_client::uapi::vkfd::{self, QUERY_CAPS};
use vkfd_client::{CpuVa, Errno, PAGE};

use crate::memory::Memory;
use crate::raw::{self, Form, Request, FORMS};
use crate::{Host, Scenario, Stop, World, WorldSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "batch_command_is_known_by_its_whole_word",
        about: "Number 0x28 is upstream's profiler with 16 bytes (ENOTTY here) and the batch with 48; other sizes are neither.",
        run: whole_word,
    },
    Scenario {
        name: "unknown_commands_are_enotty",
        about: "Unused numbers, other types, and upstream calls that are not offered.",
        run: unknown,
    },
    Scenario {
        name: "shorter_and_longer_arguments_are_those_of_older_and_newer_clients",
        about: "A short argument is not written past its end, what is missing counts as zero; a long one is cut.",
        run: sizes,
    },
    Scenario {
        name: "the_direction_of_a_commands_word_does_not_count",
        about: "Words that say that nothing is read or written: the call reads its argument and writes its result.",
        run: directions,
    },
    Scenario {
        name: "apertures_are_listed_for_as_many_nodes_as_there_are",
        about: "How many, a list of one, and EINVAL for a list of more than there are nodes.",
        run: apertures,
    },
    Scenario {
        name: "argument_pointers_that_cannot_be_read_are_bad_addresses",
        about: "Null, unmapped, kernel, and half readable arguments are EFAULT, and nothing happens.",
        run: pointers,
    },
    Scenario {
        name: "memory_calls_before_acquire_vm_are_enodev",
        about: "Row 13: a process that has no VM on the GPU cannot register or allocate.",
        run: no_vm,
    },
    Scenario {
        name: "forked_child_cannot_use_the_parents_file",
        about: "Calls of another process than the opener are EBADF, and the parent's go on working.",
        run: forked,
    },
];

fn whole_word() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(PAGE)?;
    let window = raw::gpu_window(PAGE)?;
    let client = world.client();
    // A whole batch argument behind each word: only the right one must look at it.
    let ranges = [memory.whole()];
    let mut words = [window.whole().start, PAGE, 0, CpuVa::of(ranges.as_ptr()).0, 1, u64::from(raw::USERPTR)];
    words[4] |= u64::from(world.id()) << 32;
    for size in [0, 8, 16, 24, 32, 40, 56, 64] {
        let Some(word) = ALLOC_MEMORY_OF_GPU_BATCH.with_size(size) else { bail!("no word for {size} bytes") };
        let mut longer = [0_u64; 8];
        longer[..6].copy_from_slice(&words);
        ensure_eq!(raw::ioctl(client, word, &mut longer), Err(Errno::NOTTY), "{:#x}", word.0);
    }
    ensure_eq!(raw::ioctl(client, command::PROFILER, &mut words), Err(Errno::NOTTY), "the profiler");
    ensure_eq!(command::PROFILER.0, 0xc010_4b28);
    ensure_eq!(client.snapshot()?.bos, 0);
    ensure_eq!(raw::ioctl(client, Command(0xc030_4b28), &mut words), Ok(()), "the batch");
    ensure_eq!(client.snapshot()?.userptr_ranges, 1);
    raw::free(client, words[2])?;
    Ok(())
}

fn unknown() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    // As long as a command word can say.
    let mut argument = [0_u64; 2048];
    let mut not_a_command = |word: u32| {
        let result = raw::ioctl(world.client(), Command(word), &mut argument);
        ensure_eq!(result, Err(Errno::NOTTY), "{word:#x}");
        Ok::<(), Stop>(())
    };
    for number in (0x29..0xe0).chain(0xe6..0xe8).chain(0xe9..=0xff).chain([0]) {
        not_a_command(0xc010_4b00 | number)?;
    }
    // The right number of another driver's type.
    not_a_command(0xc028_4416)?;
    not_a_command(0xc028_0016)?;
    not_a_command(0)?;
    not_a_command(u32::MAX)?;
    // A kernel's file has a process of its own already.
    let again = raw::ioctl(world.client(), command::CREATE_PROCESS, &mut [0_u64; 1]);
    ensure_eq!(again, Err(if world.in_process() { Errno::NOTTY } else { Errno::INVAL }));
    Ok(())
}

fn sizes() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let whole = 0xaaaa_aaaa_aaaa_aaaa_u64;
    let Some(short) = command::GET_VERSION.with_size(4) else { bail!("no word for 4 bytes") };
    let mut version = whole.to_ne_bytes();
    raw::ioctl(client, short, &mut version)?;
    ensure_eq!(version[..4], IOCTL_MAJOR_VERSION.to_ne_bytes());
    ensure_eq!(version[4..], [0xaa; 4], "bytes past a short argument");
    let mut long = [whole; 4];
    let Some(word) = command::GET_VERSION.with_size(32) else { bail!("no word for 32 bytes") };
    raw::ioctl(client, word, &mut long)?;
    let mut plain = GetVersionArgs { major_version: 0, minor_version: 0 };
    raw::ioctl(client, command::GET_VERSION, &mut plain)?;
    ensure_eq!(long[0], u64::from(plain.major_version) | u64::from(plain.minor_version) << 32);
    // As KFD, which has copied nothing in.
    ensure_eq!(long[1..], [0; 3], "bytes past the known argument of a call without input");
    // Older clients ask for fewer capabilities.
    let Some(word) = QUERY_CAPS.with_size(24) else { bail!("no word for 24 bytes") };
    let mut caps = [whole; 4];
    ensure_eq!(raw::ioctl(client, word, &mut caps), Ok(()), "a short QUERY_CAPS");
    ensure!(caps[1] & vkfd::CAP_BATCH_V2 != 0);
    ensure_eq!((caps[2], caps[3]), (client.caps().max_ranges, whole));
    // An ALLOC without its last 8 bytes has no GPU and no flags; one with 8 more is the same as
    // without.
    let window = raw::gpu_window(PAGE)?;
    let tail = u64::from(world.id()) | u64::from(ALLOC_MEM_FLAGS_VRAM) << 32;
    let mut words = [window.whole().start, PAGE, 0, 0, tail, whole];
    for (size, result) in [(32, Err(Errno::INVAL)), (48, Ok(()))] {
        let Some(word) = command::ALLOC_MEMORY_OF_GPU.with_size(size) else { bail!("no word for {size} bytes") };
        ensure_eq!(raw::ioctl(client, word, &mut words), result, "ALLOC with {size} bytes");
    }
    ensure_eq!(words[5], whole);
    raw::free(client, words[2])?;
    Ok(())
}

fn directions() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let window = raw::gpu_window(PAGE)?;
    let tail = u64::from(world.id()) | u64::from(ALLOC_MEM_FLAGS_VRAM) << 32;
    // Both bits, one, none.
    for direction in [3, 2, 1, 0] {
        let word = Command(command::ALLOC_MEMORY_OF_GPU.0 & !(3 << 30) | direction << 30);
        let mut words = [window.whole().start, PAGE, 0, 0, tail];
        ensure_eq!(raw::ioctl(world.client(), word, &mut words), Ok(()), "{:#x}", word.0);
        ensure!(words[2] != 0, "{:#x} returns no handle", word.0);
        raw::free(world.client(), words[2])?;
    }
    Ok(())
}

fn apertures() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let mut list = [ProcessDeviceApertures::zeroed(); 4];
    let at = CpuVa::of(list.as_mut_ptr()).0;
    let ask = |num_of_nodes| {
        let mut args = GetProcessAperturesNewArgs { kfd_process_device_apertures_ptr: at, num_of_nodes, pad: 0 };
        raw::ioctl(world.client(), command::GET_PROCESS_APERTURES_NEW, &mut args).map(|()| args.num_of_nodes)
    };
    let gpus = ask(0)?;
    ensure!(gpus >= 1, "{gpus} GPUs");
    ensure_eq!(ask(1), Ok(1));
    // A machine with 63 other nodes would be one of a kind.
    for more in [64, u32::MAX] {
        ensure_eq!(ask(more), Err(Errno::INVAL), "a list of {more}");
    }
    ensure_eq!(list[0].gpu_id, world.id());
    ensure_eq!(list[1].gpu_id, 0, "more than was asked for");
    Ok(())
}

fn pointers() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let transport = world.transport()?;
    let memory = Memory::anonymous(2 * PAGE)?;
    memory.unmap(PAGE, PAGE)?;
    let unmapped = CpuVa::of(memory.at(PAGE)).0;
    let half = unmapped - 4;
    let calls = [
        command::GET_VERSION,
        command::ALLOC_MEMORY_OF_GPU,
        command::FREE_MEMORY_OF_GPU,
        command::MAP_MEMORY_TO_GPU,
        command::CREATE_QUEUE,
        command::WAIT_EVENTS,
        command::SVM,
        ALLOC_MEMORY_OF_GPU_BATCH,
        QUERY_CAPS,
        vkfd::SNAPSHOT,
    ];
    for call in calls {
        for argument in [0, 1, unmapped, half, 1 << 47, 0xffff_8000_0000_0000, u64::MAX, u64::MAX - 3] {
            let result = raw::send(&*transport, call, argument);
            ensure_eq!(result, Err(Errno::FAULT), "{:#x} with its argument at {argument:#x}", call.0);
        }
    }
    // A readable argument whose result cannot be written back; an allocation whose handle cannot be
    // handed over is not made.
    let window = raw::gpu_window(PAGE)?;
    let vram = u64::from(world.id()) | u64::from(ALLOC_MEM_FLAGS_VRAM) << 32;
    for (at, word) in (0..).step_by(8).zip([window.whole().start, PAGE, 0, 0, vram]) {
        memory.write(at, &word.to_ne_bytes());
    }
    memory.protect(0, PAGE, libc::PROT_READ)?;
    for call in [command::GET_VERSION, command::ALLOC_MEMORY_OF_GPU] {
        let result = raw::send(&*transport, call, memory.whole().start);
        ensure_eq!(result, Err(Errno::FAULT), "a result that cannot be written");
    }
    ensure_eq!(world.client().snapshot()?.bos, 0);
    Ok(())
}

fn no_vm() -> Result<(), Stop> {
    let (transport, gpu, _host) = World::unbound(WorldSpec::default())?;
    let batch_too = !Host::is_stock();
    let memory = Memory::anonymous(2 * PAGE)?;
    let window = raw::gpu_window(PAGE)?;
    let tail = |flags: u32| u64::from(gpu.0) | u64::from(flags) << 32;
    let alloc = [window.whole().start, PAGE, 0, memory.whole().start, tail(raw::USERPTR)];
    let ranges = [memory.range(0, PAGE)];
    let list = CpuVa::of(ranges.as_ptr()).0;
    let counted = 1 | u64::from(gpu.0) << 32;
    let batch = [window.whole().start, PAGE, 0, list, counted, u64::from(raw::USERPTR)];
    let vram = [window.whole().start, PAGE, 0, 0, tail(ALLOC_MEM_FLAGS_VRAM)];
    let try_all = |expected: Result<(), Errno>| {
        for (call, words) in [
            (command::ALLOC_MEMORY_OF_GPU, &alloc[..]),
            (ALLOC_MEMORY_OF_GPU_BATCH, &batch[..]),
            (command::ALLOC_MEMORY_OF_GPU, &vram[..]),
        ] {
            if call == ALLOC_MEMORY_OF_GPU_BATCH && !batch_too {
                continue;
            }
            let mut words = words.to_vec();
            let result = raw::send(&*transport, call, CpuVa::of(words.as_mut_ptr()).0);
            ensure_eq!(result, expected, "{:#x}", call.0);
            if expected.is_ok() {
                raw::send(&*transport, command::FREE_MEMORY_OF_GPU, CpuVa::of(&raw const words[2]).0)?;
            }
        }
        Ok::<(), Stop>(())
    };
    try_all(Err(Errno::NODEV))?;
    let mut acquire = [transport.render_fd(gpu)?, gpu.0];
    raw::send(&*transport, command::ACQUIRE_VM, CpuVa::of(acquire.as_mut_ptr()).0)?;
    try_all(Ok(()))
}

fn forked() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(4 * PAGE)?;
    let window = raw::gpu_window(4 * PAGE)?;
    let requests = FORMS.map(|form| Request::new(form, world.gpu(0), window.whole().start, &[memory.whole()]));
    // SAFETY: the child makes calls that return at once, allocates a list with a heap that fork
    // keeps usable, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = requests.iter().all(|r| r.send(world.client()) == Err(Errno::BADF))
            && raw::last_error(world.client()) == Err(Errno::BADF)
            && raw::free(world.client(), 1) == Err(Errno::BADF);
        // SAFETY: ends the child without running anything of the parent.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for the child just made.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure_eq!(waited, child);
    ensure!(libc::WIFEXITED(status), "the child died: {status:#x}");
    ensure_eq!(libc::WEXITSTATUS(status), 0, "not every call of the child was EBADF");
    ensure_eq!(requests[0].form, Form::Command);
    for request in requests {
        raw::free(world.client(), request.send(world.client())?)?;
    }
    Ok(())
}
