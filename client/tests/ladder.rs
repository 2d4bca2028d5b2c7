// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ladder of registration, against a KFD that records what it is asked.

mod fake;

use fake::{Call, Fake, Script, GPUS};
use vkfd_client::uapi::memory::{ALLOC_MEM_FLAGS_NO_SUBSTITUTE, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_client::uapi::vkfd::{
    CapsArgs, LastErrorArgs, CAP_BATCH_FLAG, CAP_BATCH_V2, REASON_GPU_RANGE_BUSY, REASON_NOT_MAPPED,
};
use vkfd_client::{Client, ClientError, Errno, GpuSet, RangeFault, RegisterOptions, Strategy, UserptrRange};

/// Three ranges; the fake never looks at the memory.
const RANGES: [UserptrRange; 3] = [
    UserptrRange { start: 0x7000_0000, size: 0x3000 },
    UserptrRange { start: 0x5000_0000, size: 0x1000 },
    UserptrRange { start: 0x6000_0000, size: 0x2000 },
];

fn caps(caps: u64) -> Option<CapsArgs> {
    Some(CapsArgs { caps, version: 1, max_ranges: 1000, ..Default::default() })
}

fn client(fake: &std::sync::Arc<Fake>) -> Client {
    Client::with_transport(fake.clone()).unwrap()
}

fn register(
    client: &Client,
    ranges: &[UserptrRange],
    options: &RegisterOptions,
) -> vkfd_client::Result<vkfd_client::Buffer> {
    // SAFETY: the fake has no GPU; nothing accesses the memory.
    unsafe { client.register_ranges(ranges, options) }
}

fn gpus() -> Vec<u32> {
    GPUS.iter().map(|gpu| gpu.0).collect()
}

#[test]
fn with_the_capability_one_call_registers_all() {
    let fake = Fake::new(Script { caps: caps(CAP_BATCH_V2 | CAP_BATCH_FLAG), ..Script::default() });
    let client = client(&fake);
    let list = RANGES.to_vec();
    let buffer = register(&client, &list, &RegisterOptions::default()).unwrap();
    assert_eq!((buffer.len(), buffer.handles().len()), (0x6000, 1));
    let batch = Call::Batch {
        va: buffer.gpu_va().0,
        bytes: 0x6000,
        // The caller's list itself, not a copy.
        ranges_at: vkfd_client::CpuVa::of(list.as_ptr()).0,
        ranges: RANGES.to_vec(),
    };
    assert_eq!(fake.take(), [batch, Call::Map { handle: 0x100, gpus: gpus() }]);
}

#[test]
fn without_the_query_no_batch_form_is_ever_sent() {
    let fake = Fake::new(Script::default());
    let client = client(&fake);
    assert!(!client.caps().vkfd);
    let buffer = register(&client, &RANGES, &RegisterOptions::default()).unwrap();
    let va = buffer.gpu_va().0;
    let flags = ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_NO_SUBSTITUTE;
    let alloc = |offset, i: usize| Call::Alloc { va: va + offset, bytes: RANGES[i].size, cpu: RANGES[i].start, flags };
    let map = |handle| Call::Map { handle, gpus: gpus() };
    assert_eq!(fake.take(), [alloc(0, 0), alloc(0x3000, 1), alloc(0x4000, 2), map(0x100), map(0x101), map(0x102)]);
    assert_eq!((buffer.len(), buffer.handles().len()), (0x6000, 3));
    for strategy in [Strategy::Batch, Strategy::BatchFlag] {
        let options = RegisterOptions { strategy, ..Default::default() };
        let error = register(&client, &RANGES, &options).unwrap_err();
        assert!(matches!(error, ClientError::Unsupported(_)), "{error}");
    }
    buffer.free().unwrap();
    let unmap = |handle| Call::Unmap { handle, gpus: gpus() };
    let free = |handle| Call::Free { handle };
    assert_eq!(fake.take(), [unmap(0x102), free(0x102), unmap(0x101), free(0x101), unmap(0x100), free(0x100)]);
    assert!(!fake.saw_batch());
    assert_eq!(fake.live(), 0);
}

#[test]
fn the_flag_form_is_second_choice_and_can_be_asked_for() {
    let fake = Fake::new(Script { caps: caps(CAP_BATCH_FLAG), ..Script::default() });
    let buffer = register(&client(&fake), &RANGES, &RegisterOptions::default()).unwrap();
    let va = buffer.gpu_va().0;
    assert_eq!(fake.take()[0], Call::AllocFlag { va, bytes: 0x6000, ranges: RANGES.to_vec() });

    let fake = Fake::new(Script { caps: caps(CAP_BATCH_V2 | CAP_BATCH_FLAG), ..Script::default() });
    let options = RegisterOptions { strategy: Strategy::BatchFlag, ..Default::default() };
    let _buffer = register(&client(&fake), &RANGES, &options).unwrap();
    assert!(matches!(fake.take()[0], Call::AllocFlag { .. }));
}

#[test]
fn a_failure_in_the_middle_leaves_nothing() {
    let fail_alloc = Some((2, Errno::FAULT));
    let fake = Fake::new(Script { fail_alloc, ..Script::default() });
    let error = register(&client(&fake), &RANGES, &RegisterOptions::default()).unwrap_err();
    let range = error.range().unwrap();
    assert_eq!((range.index, range.start.0, range.bytes), (2, 0x6000_0000, 0x2000));
    assert_eq!((range.fault, range.errno), (RangeFault::NotMapped, Errno::FAULT));
    assert!(error.to_string().contains("range 2 at 0x60000000"), "{error}");
    let calls = fake.take();
    assert_eq!(calls[3..], [Call::Free { handle: 0x101 }, Call::Free { handle: 0x100 }]);
    assert_eq!(fake.live(), 0);
}

#[test]
fn a_failed_map_is_undone_in_reverse_on_exactly_the_gpus_done() {
    // The second BO maps on the first of two GPUs and fails on the other.
    let fake = Fake::new(Script { fail_map: Some((1, 1, Errno::NOMEM)), ..Script::default() });
    let error = register(&client(&fake), &RANGES, &RegisterOptions::default()).unwrap_err();
    assert_eq!(error.range().map(|range| range.index), Some(1));
    assert_eq!(error.errno(), Some(Errno::NOMEM));
    let unmap = |handle, gpus| Call::Unmap { handle, gpus };
    let free = |handle| Call::Free { handle };
    assert_eq!(
        fake.take()[5..],
        [unmap(0x101, vec![GPUS[0].0]), unmap(0x100, gpus()), free(0x102), free(0x101), free(0x100)]
    );
    assert_eq!(fake.live(), 0);
}

#[test]
fn the_drivers_own_words_are_used_where_it_has_them() {
    let last_error = LastErrorArgs {
        errno: 14,
        has_index: 1,
        index: 1,
        address: 0x5000_0000,
        size: 0x1000,
        reason: REASON_NOT_MAPPED,
        pad: 0,
    };
    let fail_alloc = Some((0, Errno::FAULT));
    let caps = caps(CAP_BATCH_V2);
    let fake = Fake::new(Script { caps, last_error, fail_alloc, ..Script::default() });
    let error = register(&client(&fake), &RANGES, &RegisterOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ALLOC_MEMORY_OF_GPU_BATCH: range 1 at 0x50000000, 0x1000 bytes: not mapped (EFAULT): \
         map the memory before registering it"
    );

    let last_error = LastErrorArgs { errno: 98, has_index: 0, reason: REASON_GPU_RANGE_BUSY, ..Default::default() };
    let fail_alloc = Some((0, Errno::ADDRINUSE));
    let fake = Fake::new(Script { caps, last_error, fail_alloc, ..Script::default() });
    let error = register(&client(&fake), &RANGES, &RegisterOptions::default()).unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error:?}");

    // A record of another failure is not taken for this one's.
    let fail_alloc = Some((0, Errno::NOMEM));
    let fake = Fake::new(Script { caps, last_error, fail_alloc, ..Script::default() });
    let error = register(&client(&fake), &RANGES, &RegisterOptions::default()).unwrap_err();
    assert!(matches!(error, ClientError::Call { errno: Errno::NOMEM, .. }), "{error:?}");
}

#[test]
fn a_bad_list_is_refused_before_any_call() {
    let fake = Fake::new(Script::default());
    let client = client(&fake);
    let bad = |at: usize, range: UserptrRange| {
        let mut list = RANGES;
        list[at] = range;
        let error = register(&client, &list, &RegisterOptions::default()).unwrap_err();
        let range = error.range().unwrap_or_else(|| panic!("{error}"));
        (range.index, range.fault)
    };
    let range = |start, size| UserptrRange { start, size };
    assert_eq!(bad(1, range(0x1001, 0x1000)), (1, RangeFault::ZeroOrUnaligned));
    assert_eq!(bad(2, range(0x1000, 0x1008)), (2, RangeFault::ZeroOrUnaligned));
    assert_eq!(bad(0, range(0x1000, 0)), (0, RangeFault::ZeroOrUnaligned));
    assert_eq!(bad(2, range(0, 0x1000)), (2, RangeFault::ZeroOrUnaligned));
    assert_eq!(bad(1, range(0xffff_ffff_ffff_f000, 0x1000)), (1, RangeFault::Wraps));
    let huge = range(0x1000, 0x8000_0000_0000_0000);
    let error = register(&client, &[huge, huge], &RegisterOptions::default()).unwrap_err();
    assert_eq!(error.range().map(|r| (r.index, r.fault)), Some((1, RangeFault::Wraps)));
    assert!(register(&client, &[], &RegisterOptions::default()).is_err());
    assert_eq!(fake.take(), []);
}

#[test]
fn more_ranges_than_a_batch_may_have_are_refused() {
    let many = vec![RANGES[0]; 1001];
    let fake = Fake::new(Script { caps: caps(CAP_BATCH_V2), ..Script::default() });
    let client = client(&fake);
    let error = register(&client, &many, &RegisterOptions::default()).unwrap_err();
    assert!(error.to_string().contains("1000"), "{error}");
    assert_eq!(fake.take(), []);
    let options = RegisterOptions { strategy: Strategy::PerRange, ..Default::default() };
    assert_eq!(register(&client, &many, &options).unwrap().handles().len(), 1001);
}

#[test]
fn busy_memory_is_tried_again() {
    let fake = Fake::new(Script { busy: 2, ..Script::default() });
    let buffer = register(&client(&fake), &RANGES, &RegisterOptions::default()).unwrap();
    assert_eq!(buffer.handles().len(), 3);
    assert_eq!(fake.state.lock().unwrap().commands.iter().filter(|c| **c == 0xc028_4b16).count(), 5);
}

#[test]
fn mapping_is_by_gpu_and_only_where_it_is_not_yet() {
    let fake = Fake::new(Script { caps: caps(CAP_BATCH_V2), ..Script::default() });
    let client = client(&fake);
    let options = RegisterOptions { gpus: GPUS[1].into(), map: false, ..Default::default() };
    let buffer = register(&client, &RANGES, &options).unwrap();
    assert_eq!(buffer.mapped_on(), []);
    fake.take();
    buffer.map(&GpuSet::from(GPUS[1])).unwrap();
    buffer.map(&GpuSet::All).unwrap();
    buffer.unmap(&GpuSet::from(GPUS[1])).unwrap();
    buffer.unmap(&GpuSet::from(GPUS[1])).unwrap();
    assert_eq!(buffer.mapped_on(), [GPUS[0]]);
    let (first, second) = (vec![GPUS[0].0], vec![GPUS[1].0]);
    assert_eq!(
        fake.take(),
        [
            Call::Map { handle: 0x100, gpus: second.clone() },
            Call::Map { handle: 0x100, gpus: first.clone() },
            Call::Unmap { handle: 0x100, gpus: second },
        ]
    );
    let unknown = GpuSet::from(vkfd_client::GpuId(7));
    assert!(matches!(buffer.map(&unknown), Err(ClientError::NoGpu(_))));
    drop(buffer);
    assert_eq!(fake.take(), [Call::Unmap { handle: 0x100, gpus: first }, Call::Free { handle: 0x100 }]);
}

#[test]
fn addresses_that_the_driver_still_uses_are_not_given_back() {
    let fake = Fake::new(Script { fail_free: Some(Errno::BUSY), ..Script::default() });
    let client = client(&fake);
    let buffer = register(&client, &RANGES[..1], &RegisterOptions::default()).unwrap();
    let va = buffer.gpu_va().0;
    assert_eq!(buffer.free().unwrap_err().errno(), Some(Errno::BUSY));
    let at = std::ptr::with_exposed_provenance_mut(usize::try_from(va).unwrap());
    // SAFETY: MS_ASYNC writes nothing, and the call itself checks that the page is mapped.
    let reserved = unsafe { libc::msync(at, 4096, libc::MS_ASYNC) } == 0;
    assert!(reserved);
}

#[test]
fn vram_and_gtt_are_mapped_at_their_gpu_address() {
    let fake = Fake::new(Script::default());
    let client = client(&fake);
    let buffer = client.alloc(&vkfd_client::AllocOptions::vram(GPUS[1], 3 << 20)).unwrap();
    let at = vkfd_client::CpuVa::of(buffer.cpu_ptr().unwrap().as_ptr());
    assert_eq!((at.0, at.0 % (2 << 20)), (buffer.gpu_va().0, 0));
    buffer.write(5, b"hello").unwrap();
    let mut back = [0; 5];
    buffer.read(5, &mut back).unwrap();
    assert_eq!(&back, b"hello");
    assert!(buffer.write((3 << 20) - 1, b"xy").is_err());
    assert!(buffer.read(u64::MAX, &mut back).is_err());
}

#[test]
fn kernels_are_offered_where_there_is_code_for_the_processor() {
    // gfx906, for which the library has none. Nothing is asked of the driver.
    let fake = Fake::new(Script::default());
    let error = vkfd_client::ComputeQueue::new(&client(&fake), GPUS[0]).err();
    assert!(matches!(error, Some(ClientError::Unsupported(_))), "{error:?}");
    assert_eq!(fake.take(), []);
    let error = client(&fake).snapshot().unwrap_err();
    assert!(matches!(error, ClientError::Unsupported(_)), "{error}");
}

#[test]
fn the_caller_may_choose_the_gpu_address() {
    let fake = Fake::new(Script::default());
    let client = client(&fake);
    let at = |va| RegisterOptions { at: Some(vkfd_client::GpuVa(va)), map: false, ..Default::default() };
    let buffer = register(&client, &RANGES, &at(0x2000_0000_0000)).unwrap();
    assert_eq!(buffer.gpu_va().0, 0x2000_0000_0000);
    let vas: Vec<_> =
        fake.take().iter().map(|call| if let Call::Alloc { va, .. } = call { va & 0xffff } else { 0 }).collect();
    assert_eq!(vas, [0, 0x3000, 0x4000]);
    assert!(matches!(register(&client, &RANGES, &at(0x1001)), Err(ClientError::Invalid(_))));
    assert!(matches!(register(&client, &RANGES, &at(0)), Err(ClientError::Invalid(_))));
    assert!(matches!(register(&client, &RANGES, &at((1 << 47) - 0x1000)), Err(ClientError::Unsupported(_))));
    assert_eq!(fake.take(), []);
}
