// SPDX-License-Identifier: GPL-2.0 OR MIT
use super::event::Event;
use super::memory::{Layout, Memory};
use super::query::Query;
use super::queue::{Create, Queue};
use super::*;
use crate::protocol::put64;
use proptest::prelude::*;

fn decode(bytes: &[u8]) -> Result<Request, Malformed> {
    let head = Head::decode(bytes)?;
    Request::decode(&head, &bytes[..index(head.length)])
}

fn samples() -> Vec<Request> {
    let mut all = vec![Request::Nop, Request::Graphics];
    let queries = [
        Query::GpuInfo,
        Query::OpenKfd { heap: 0x5555_5555_0000 },
        Query::Version,
        Query::ReleaseSystem,
        Query::System,
        Query::Node(1),
        Query::Xnack,
        Query::RuntimeEnable,
        Query::RuntimeDisable,
        Query::Banks(1, 2),
        Query::Caches(1, 3),
        Query::Links(0, 1),
        Query::Clocks(1),
        Query::Pointer(0x7000_0000_0000),
        Query::Tile(1),
        Query::NanoTime,
        Query::Capabilities,
        Query::SetXnack(1),
        Query::NotOffered(18),
    ];
    all.extend(queries.map(Request::Query));
    let address = 0x7000_0020_0000;
    for layout in [Layout::Y2025, Layout::Y2026] {
        let alignment = if layout == Layout::Y2026 { 1 << 21 } else { 0 };
        let memory = [
            Memory::Alloc { node: 1, flags: 0x40, bytes: 4096, address: 0, alignment, blob: 7 },
            Memory::MapToNodes { address, bytes: 4096, resource: 3, nodes: vec![1, 2, 3] },
            Memory::Free { address },
            Memory::Unmap { address },
            Memory::Available { node: 1 },
            Memory::Map { address, bytes: 4096, scratch: true },
            Memory::Register { address, bytes: 1 << 30, flags: 8, resource: 9 },
            Memory::Deregister { address, resource: 9 },
            Memory::MapUserptr { resource: 9 },
            Memory::NotOffered(17),
        ];
        all.extend(memory.map(|memory| Request::Memory(memory, layout)));
    }
    let events = [
        Event::Create { kind: 0, node: 1, manual: false, signalled: true, blob: 5 },
        Event::Destroy(3),
        Event::Set(3),
        Event::Reset(3),
        Event::QueryState(3),
        Event::Wait { events: vec![1, 2], all: true, milliseconds: 1000 },
        Event::SetTrap { node: 1, code: 1, code_bytes: 2, buffer: 3, buffer_bytes: 4 },
    ];
    all.extend(events.map(Request::Event));
    let create = Create {
        node: 1,
        kind: queue::kind::SDMA,
        percentage: 100,
        priority: -3,
        engine: 1,
        ring: address,
        ring_bytes: 65536,
        write_pointer: 1,
        read_pointer: 2,
        blob: 3,
        pointers_blob: 4,
        doorbell_blob: 5,
    };
    all.extend(
        [Queue::Create(create), Queue::Destroy { queue: 1, resource: 2 }, Queue::NotOffered(2)].map(Request::Queue),
    );
    all
}

#[test]
fn what_is_encoded_is_decoded() {
    for request in samples() {
        let bytes = request.encode(17, 64);
        assert_eq!(decode(&bytes), Ok(request.clone()));
        assert_eq!(Head::decode(&bytes).unwrap().sequence, 17);
        for end in 0..bytes.len() {
            assert!(Head::decode(&bytes[..end]).is_err(), "{request:?} cut to {end}");
        }
    }
}

#[test]
fn sizes_and_places_are_those_of_the_header_files() {
    let length = |request: Request| request.encode(0, 0).len();
    assert_eq!(length(Request::Query(Query::Version)), 128);
    assert_eq!(length(Request::Event(Event::Set(1))), 104);
    assert_eq!(length(Request::Memory(Memory::Free { address: 0 }, Layout::Y2025)), 80);
    assert_eq!(length(Request::Memory(Memory::Free { address: 0 }, Layout::Y2026)), 312);
    assert_eq!(length(Request::Queue(Queue::Destroy { queue: 0, resource: 0 })), 136);
    // Type and resource of MEMORY, July 2025.
    let bytes = Request::Memory(Memory::MapUserptr { resource: 0x55 }, Layout::Y2025).encode(1, 2);
    assert_eq!((bytes[72], bytes[76], bytes[4], bytes[8], bytes[12]), (8, 0x55, 80, 1, 2));
    let bytes = Request::Memory(Memory::MapUserptr { resource: 0x55 }, Layout::Y2026).encode(1, 2);
    assert_eq!((bytes[304], bytes[308]), (8, 0x55));
    let nodes = Memory::MapToNodes { address: 1, bytes: 2, resource: 0, nodes: vec![1] };
    assert_eq!(Request::Memory(nodes, Layout::Y2025).encode(0, 0).len(), 88);
}

#[test]
fn counts_are_bounded() {
    let mut bytes =
        Request::Memory(Memory::MapToNodes { address: 1, bytes: 2, resource: 0, nodes: vec![1] }, Layout::Y2025)
            .encode(0, 0);
    for count in [3, 33, u64::MAX] {
        put64(&mut bytes, 48, count);
        assert!(decode(&bytes).is_err(), "{count} nodes");
    }
    let mut bytes = Request::Event(Event::Wait { events: vec![1], all: false, milliseconds: 1 }).encode(0, 0);
    for count in [0, 2, 257, u32::MAX] {
        put32(&mut bytes, 16, count);
        assert!(decode(&bytes).is_err(), "{count} events");
    }
    let mut bytes = Request::Nop.encode(0, 0);
    for length in [0, 15, 17, u32::MAX] {
        put32(&mut bytes, 4, length);
        assert!(decode(&bytes).is_err(), "{length} bytes");
    }
}

#[test]
fn a_submission_is_a_row_of_requests() {
    let mut row = Request::Nop.encode(1, 0);
    row.extend(Request::Query(Query::Version).encode(2, 0));
    let heads: Vec<_> = requests(&row).map(|request| request.unwrap().0.sequence).collect();
    assert_eq!(heads, [1, 2]);
    let cut: Vec<_> = requests(&row[..40]).collect();
    assert_eq!(cut.len(), 2);
    assert_eq!(cut[1].unwrap_err(), Malformed::Short);
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..700), command in 0u32..8, kind in 0u32..24) {
        let mut bytes = bytes;
        if bytes.len() >= 16 {
            put32(&mut bytes, 0, command);
            let length = u32::try_from(bytes.len()).unwrap();
            put32(&mut bytes, 4, length);
        }
        for at in [48, 72, 80, 124, 304] {
            if bytes.len() >= at + 4 {
                put32(&mut bytes, at, kind);
            }
        }
        let _ = decode(&bytes);
        let _ = requests(&bytes).count();
    }
}
