// SPDX-License-Identifier: GPL-2.0 OR MIT
use super::*;
use crate::protocol::forward::calls::Way;
use vkfd_uapi::command as c;
use vkfd_uapi::event::{EventData, WaitEventsArgs};
use vkfd_uapi::memory::MapMemoryToGpuArgs;
use vkfd_uapi::pod::{slice_as_bytes, Pod};

fn wait(events: u32) -> Request {
    let args = WaitEventsArgs { events_ptr: 0x1000, num_events: events, ..WaitEventsArgs::zeroed() };
    let content = (0..events).flat_map(|n| EventData { event_id: n, ..EventData::zeroed() }.as_bytes().to_vec());
    let contents = if events > 0 { vec![content.collect()] } else { vec![] };
    Request::new(File::Kfd, c::WAIT_EVENTS, args.as_bytes().to_vec(), contents, vec![]).unwrap()
}

fn decode(bytes: &[u8]) -> Result<Request, Unfit> {
    Request::decode(Head::decode(bytes)?, bytes)
}

#[test]
fn a_request_is_what_it_was() {
    let ids = [7_u32, 9, 11];
    let args = MapMemoryToGpuArgs { handle: 5, device_ids_array_ptr: 0x7000, n_devices: 3, n_success: 0 };
    let map = Request::new(
        File::Kfd,
        c::MAP_MEMORY_TO_GPU,
        args.as_bytes().to_vec(),
        vec![slice_as_bytes(&ids).to_vec()],
        vec![Piece { resource: 3, offset: 4096, bytes: 8192 }],
    )
    .unwrap();
    for request in [map, wait(0), wait(5)] {
        let bytes = request.encode(77, 1024, 512);
        let again = decode(&bytes).unwrap();
        assert_eq!((again.head.sequence, again.head.answer, again.head.room), (77, 1024, 512));
        assert_eq!((&again.argument, &again.arrays), (&request.argument, &request.arrays));
        assert_eq!((&again.contents, &again.pieces), (&request.contents, &request.pieces));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "cut to {cut}");
        }
    }
}

#[test]
fn the_bytes_of_a_request_stay_as_they_are() {
    let bytes = wait(1).encode(0x0102_0304_0506_0708, 0x4000, 0x200);
    assert_eq!(bytes[..16], [1, 0, 0, 0, 112, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(bytes[16..40], [0, 0x40, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x0c, 0x4b, 0x18, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // The argument, then the one event.
    assert_eq!(bytes[40..52], [0, 0x10, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(bytes.len(), 40 + 24 + 48);
}

#[test]
fn an_answer_brings_back_what_the_call_wrote_and_nothing_else() {
    let mut asked = wait(2);
    let mut done = decode(&asked.encode(1, 0, 4096)).unwrap();
    done.contents[0][0] = 42;
    done.argument[20] = 1;
    let answer = done.answer(0);
    assert_eq!(answer.len(), asked.answer_bytes());
    assert_eq!(asked.take_answer(&answer), Ok(0));
    assert_eq!((asked.contents[0][0], asked.argument[20]), (42, 1));
    assert_eq!(asked.take_answer(&done.answer(62)), Ok(62), "an errno comes with what the call wrote");
    assert_eq!(asked.take_answer(&refusal(12)), Ok(12), "or alone");
    assert!(asked.take_answer(&refusal(0)).is_err() && asked.take_answer(&answer[..40]).is_err());
    let args = MapMemoryToGpuArgs { device_ids_array_ptr: 1, n_devices: 1, ..MapMemoryToGpuArgs::zeroed() };
    let map = Request::new(File::Kfd, c::MAP_MEMORY_TO_GPU, args.as_bytes().to_vec(), vec![vec![0; 4]], vec![]);
    assert_eq!(map.unwrap().answer_bytes(), ANSWER_HEAD_BYTES + 24, "what is only read does not come back");
}

#[test]
fn what_is_not_offered_is_refused() {
    use vkfd_uapi::vkfd;
    for command in [c::SVM, c::SMI_EVENTS, c::IMPORT_DMABUF, c::EXPORT_DMABUF, c::GET_DMABUF_INFO, c::CRIU_OP] {
        assert_eq!(calls::size(File::Kfd, command), Err(Refused::NO_CALL), "{command}");
    }
    for command in [c::DBG_TRAP, c::PROFILER, c::GET_QUEUE_WAVE_STATE, vkfd::SNAPSHOT, vkfd::MEASURE, vkfd::MOVE] {
        assert_eq!(calls::size(File::Kfd, command), Err(Refused::NO_CALL), "{command}");
    }
    assert_eq!(calls::size(File::Render(0), c::GET_VERSION), Err(Refused::NO_RENDER_CALL));
    assert_eq!(calls::size(File::Kfd, Command::iowr::<[u64; 8]>(b'd', 0)), Err(Refused::NO_CALL));
    let large = c::GET_VERSION.with_size(MAX_ARGUMENT_BYTES + 1).unwrap();
    assert_eq!(calls::size(File::Kfd, large), Err(Refused::VALUE));
    let args = WaitEventsArgs { events_ptr: 1, num_events: u32::MAX, ..WaitEventsArgs::zeroed() };
    assert_eq!(calls::arrays(File::Kfd, c::WAIT_EVENTS, args.as_bytes()), Err(Refused::TOO_MUCH));
}

#[test]
fn a_shorter_argument_is_filled_up_and_a_longer_one_cut() {
    for size in [4, 200] {
        let command = c::MAP_MEMORY_TO_GPU.with_size(size).unwrap();
        let request = Request::new(File::Kfd, command, vec![0; size], vec![], vec![]).unwrap();
        let again = decode(&request.encode(1, 0, 64)).unwrap();
        assert_eq!(again.argument.len(), size_of::<MapMemoryToGpuArgs>());
    }
}

#[test]
fn every_offered_call_has_its_arrays_within_its_argument() {
    let version = Command::iowr::<[u64; 8]>(b'd', 0);
    let mut argument = [0_u8; 64];
    for at in (16..64).step_by(8) {
        put64(&mut argument, at, 16);
    }
    let arrays = calls::arrays(File::Render(0), version, &argument).unwrap();
    assert_eq!(
        arrays.iter().map(|a| (a.pointer, a.bytes, a.way)).collect::<Vec<_>>(),
        [(24, 16, Way::Out), (40, 16, Way::Out), (56, 16, Way::Out)]
    );
    for known in c::ALL {
        if let Ok(size) = calls::size(File::Kfd, known.command) {
            assert!(calls::pointers(File::Kfd, known.command).unwrap().all(|at| at + 8 <= size), "{}", known.name);
        }
    }
}

#[test]
fn blob_numbers() {
    for kind in [BlobKind::Responses, BlobKind::Memory, BlobKind::Doorbells(0xffff_1234), BlobKind::Page] {
        assert_eq!(BlobKind::of(kind.id()), Some(kind));
    }
    assert!(BlobKind::of(4).is_none() && BlobKind::of(1 | 1 << 32).is_none());
}
