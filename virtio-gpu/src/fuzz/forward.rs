// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest that uses contexts with forwarded calls: blobs that come and go, calls with arguments
//! that are nearly right, pieces of memory that exists or does not.

use vkfd_host::Description;
use vkfd_remote::protocol::blob;
use vkfd_remote::protocol::capset;
use vkfd_remote::protocol::control::{Command, Header, FLAG_FENCE, FLAG_RING};
use vkfd_remote::protocol::forward::{calls, BlobKind, File, Piece, Request};
use vkfd_remote::protocol::PAGE;
use vkfd_uapi::command as c;
use vkfd_uapi::event::{CreateEventArgs, EventData, WaitEventsArgs};
use vkfd_uapi::memory::{AllocMemoryOfGpuArgs, MapMemoryToGpuArgs};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::AcquireVmArgs;
use vkfd_uapi::queue::CreateQueueArgs;

use super::Input;
use crate::device::Device;

const FLAGS: [u32; 6] = [1 | 1 << 29, 1, 2, 4, 8, 16];

/// One command.
pub fn step(input: &mut Input<'_>, device: &mut Device) {
    let context = input.small(3);
    let (resource, flags) = (input.small(12), if input.byte() % 4 == 0 { FLAG_FENCE | FLAG_RING } else { 0 });
    let header = Header { kind: 0, flags, fence: 0, context, ring: input.byte() % 66 };
    let payload;
    let command = match input.byte() % 16 {
        0 => Command::CreateContext { capset: capset::KFD },
        1 if input.byte() % 8 == 0 => Command::DestroyContext,
        2 => Command::Unref { resource },
        3 => Command::Map { resource, offset: u64::from(input.byte()) * PAGE * 4 },
        4 => Command::Unmap { resource },
        5 | 6 => {
            let (id, size) = match input.byte() % 6 {
                0 => (BlobKind::Responses, 16 * PAGE),
                1 => (BlobKind::Doorbells(gpu() & 0xffff), 2 * PAGE),
                2 => (BlobKind::Page, PAGE),
                _ => (BlobKind::Memory, u64::from(input.byte() % 5) * PAGE),
            };
            let id = if input.byte() % 16 == 0 { u64::from(input.byte()) << 30 } else { id.id() };
            let memory = blob::MEM_HOST3D;
            Command::CreateBlob { resource, memory, flags: blob::FLAG_MAPPABLE, id, size, runs: Vec::new() }
        }
        7 => input.guest_blob(resource),
        _ => {
            payload = request(input);
            Command::Submit { payload: &payload }
        }
    };
    let mut bytes = command.encode(&header);
    if input.byte() % 32 == 0 {
        bytes.truncate(usize::from(input.byte()));
    }
    device.execute(&bytes, Box::new(|answer: &[u8]| assert!(answer.len() >= 24)));
}

fn gpu() -> u32 {
    Description::default().options().gpu_properties(0).gpu_id
}

fn request(input: &mut Input<'_>) -> Vec<u8> {
    let va = |input: &mut Input<'_>| (1 << 40) + u64::from(input.byte() % 8) * PAGE;
    let handle = |input: &mut Input<'_>| u64::from(input.byte() % 8);
    let mut pieces = Vec::new();
    let mut file = File::Kfd;
    let (command, argument) = match input.byte() % 16 {
        0 => (c::ACQUIRE_VM, AcquireVmArgs { drm_fd: 0, gpu_id: gpu() }.as_bytes().to_vec()),
        1..=4 => {
            for _ in 0..input.byte() % 4 {
                let (offset, bytes) = (u64::from(input.byte() % 5) * PAGE, u64::from(input.byte() % 5) * PAGE);
                pieces.push(Piece { resource: input.small(12), offset, bytes });
            }
            let sum = pieces.iter().map(|piece| piece.bytes).sum();
            let size = if pieces.is_empty() || input.byte() % 16 == 0 { PAGE } else { sum };
            let flags = FLAGS[usize::from(input.byte()) % FLAGS.len()] | 3 << 30;
            let args =
                AllocMemoryOfGpuArgs { va_addr: va(input), size, handle: 0, mmap_offset: 4096, gpu_id: gpu(), flags };
            (c::ALLOC_MEMORY_OF_GPU, args.as_bytes().to_vec())
        }
        5..=7 => {
            let (handle, n_devices) = (handle(input), input.small(3));
            let args = MapMemoryToGpuArgs { handle, device_ids_array_ptr: 1, n_devices, n_success: input.small(2) };
            let command = if input.byte() % 3 == 0 { c::UNMAP_MEMORY_FROM_GPU } else { c::MAP_MEMORY_TO_GPU };
            (command, args.as_bytes().to_vec())
        }
        8 => (c::FREE_MEMORY_OF_GPU, handle(input).to_le_bytes().to_vec()),
        9 => {
            let event_page_offset = if input.byte() % 2 == 0 { handle(input) } else { 0 };
            let event_type = input.small(9);
            let args = CreateEventArgs { event_page_offset, event_type, ..CreateEventArgs::zeroed() };
            (c::CREATE_EVENT, args.as_bytes().to_vec())
        }
        10 => {
            let (num_events, timeout) = (input.small(4), input.small(4));
            let args = WaitEventsArgs { events_ptr: 1, num_events, wait_for_all: 0, timeout, wait_result: 0 };
            (c::WAIT_EVENTS, args.as_bytes().to_vec())
        }
        11 => {
            let [ring, pointers] = [va(input), va(input)];
            let args = CreateQueueArgs {
                ring_base_address: ring,
                write_pointer_address: pointers,
                read_pointer_address: pointers + 8,
                ring_size: 4096,
                gpu_id: gpu(),
                queue_type: input.small(4),
                queue_percentage: 100,
                queue_priority: 7,
                ..CreateQueueArgs::zeroed()
            };
            (c::CREATE_QUEUE, args.as_bytes().to_vec())
        }
        12 => {
            file = File::Render(input.small(3));
            let command =
                vkfd_uapi::ioctl::Command::iowr::<[u64; 8]>(b'd', [0, 5, 12, 0x45][usize::from(input.byte() % 4)]);
            (command, (0..64).map(|_| input.byte()).collect())
        }
        _ => {
            let all: Vec<_> = c::ALL.iter().filter(|known| known.command != c::WAIT_EVENTS).collect();
            let command = all[usize::from(input.byte()) % all.len()].command;
            (command, (0..command.size().min(64)).map(|_| input.byte()).collect())
        }
    };
    let answer = input.small(5) * 16384;
    let contents: Vec<Vec<u8>> = calls::arrays(file, command, &{
        let mut whole = argument.clone();
        whole.resize(512, 0);
        whole
    })
    .unwrap_or_default()
    .iter()
    .map(|array| match command {
        c::WAIT_EVENTS => {
            EventData { event_id: input.small(5), ..EventData::zeroed() }.as_bytes().repeat(array.bytes / 48)
        }
        c::MAP_MEMORY_TO_GPU | c::UNMAP_MEMORY_FROM_GPU => gpu().to_le_bytes().repeat(array.bytes / 4),
        _ => vec![input.byte(); array.bytes],
    })
    .collect();
    match Request::new(file, command, argument, contents, pieces) {
        Ok(request) => request.encode(input.byte().into(), answer, 16384),
        // A call that is not offered: the device says so.
        Err(_) => {
            let known = Request::new(File::Kfd, c::GET_VERSION, vec![0; 8], Vec::new(), Vec::new());
            let mut bytes = known.map(|request| request.encode(1, answer, 64)).unwrap_or_default();
            vkfd_remote::protocol::put32(&mut bytes, 28, command.0);
            bytes
        }
    }
}
