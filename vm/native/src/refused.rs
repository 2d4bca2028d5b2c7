// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a guest must not get by saying it: a case for each hole that was found in existing hosts,
//! and some more.

use anyhow::{ensure, Result};
use vkfd_remote::protocol::hsakmt::event::Event;
use vkfd_remote::protocol::hsakmt::memory::{Layout, Memory};
use vkfd_remote::protocol::hsakmt::query::Query;
use vkfd_remote::protocol::hsakmt::queue::{Create, Queue};
use vkfd_remote::protocol::hsakmt::Request;

use crate::library::Session;
use crate::memory::Buffer;

#[derive(clap::Args)]
pub struct Args {}

const BYTES: u64 = 1 << 20;

pub fn run(_args: &Args, layout: Layout) -> Result<()> {
    let mut session = Session::open(layout)?;
    let buffer = Buffer::new(BYTES)?;
    buffer.fill(1);
    let adopted = session.adopt(buffer.at(), BYTES)?;
    let (address, resource) = (adopted.address, adopted.gem.resource);
    let memory = |memory| Request::Memory(memory, layout);
    let register = |address, bytes, resource| memory(Memory::Register { address, bytes, flags: 0, resource });
    let nodes = vec![1];
    let here = std::ptr::from_ref(&session).expose_provenance() as u64;
    let cases = [
        ("registering any address of the host", register(here, 4096, 0)),
        ("registering the null page", register(0, 4096, 0)),
        ("registering the end of the address space", register(u64::MAX - 4095, 4096, 0)),
        ("registering more than the blob has", register(address, BYTES + 4096, 0)),
        ("registering past the blob's end", register(address + BYTES, 4096, 0)),
        ("a size that wraps", register(address, u64::MAX, 0)),
        ("registering under another resource", register(address, BYTES, resource + 1)),
        ("a resource that is none", memory(Memory::MapUserptr { resource: 999_999 })),
        (
            "mapping what is not registered",
            memory(Memory::MapToNodes { address, bytes: BYTES, resource: 0, nodes: nodes.clone() }),
        ),
        (
            "mapping an address of the host",
            memory(Memory::MapToNodes { address: here, bytes: 4096, resource: 0, nodes: nodes.clone() }),
        ),
        ("mapping on no node", memory(Memory::MapToNodes { address, bytes: BYTES, resource: 0, nodes: vec![] })),
        (
            "mapping on the processors",
            memory(Memory::MapToNodes { address, bytes: BYTES, resource: 0, nodes: vec![0] }),
        ),
        (
            "mapping on a node that is none",
            memory(Memory::MapToNodes { address, bytes: BYTES, resource: 0, nodes: vec![77] }),
        ),
        ("unregistering what is not registered", memory(Memory::Deregister { address, resource: 0 })),
        ("freeing the guest's own memory", memory(Memory::Free { address })),
        (
            "allocating nothing",
            memory(Memory::Alloc { node: 1, flags: 0, bytes: 0, address: 0, alignment: 0, blob: 500 }),
        ),
        (
            "allocating everything",
            memory(Memory::Alloc { node: 1, flags: 0, bytes: u64::MAX, address: 0, alignment: 0, blob: 501 }),
        ),
        (
            "allocating on a node that is none",
            memory(Memory::Alloc { node: 99, flags: 0, bytes: 4096, address: 0, alignment: 0, blob: 502 }),
        ),
        (
            "allocating as the response memory",
            memory(Memory::Alloc { node: 1, flags: 0, bytes: 4096, address: 0, alignment: 0, blob: 0 }),
        ),
        ("memory requests that are not offered", memory(Memory::NotOffered(18))),
        ("a raw DRM command on a file of the host", Request::Query(Query::NotOffered(18))),
        ("a device handle of the host", Request::Query(Query::NotOffered(17))),
        ("a node that is none", Request::Query(Query::Node(1000))),
        ("lists of a node that is none", Request::Query(Query::Caches(1000, u32::MAX))),
        ("an event by an address", Request::Event(Event::Set(0xdead_beef))),
        (
            "waiting for an event that is none",
            Request::Event(Event::Wait { events: vec![12345], all: true, milliseconds: 1 }),
        ),
        ("destroying an event that is none", Request::Event(Event::Destroy(12345))),
        (
            "a trap handler",
            Request::Event(Event::SetTrap { node: 1, code: here, code_bytes: 1 << 40, buffer: here, buffer_bytes: 1 }),
        ),
        ("a queue on memory that is not the guest's", queue(here, 4096)),
        ("a queue without a ring", queue(0, 0)),
        ("a queue with a ring of 4 GiB", queue(address, 1 << 32)),
        ("destroying a queue that is none", Request::Queue(Queue::Destroy { queue: 4711, resource: 0 })),
        ("graphics memory", Request::Graphics),
    ];
    for (what, request) in &cases {
        let answer = session.send(request)?;
        ensure!(answer.status != 0, "{what}: the host has agreed");
    }
    println!("{} requests that no guest may make: all refused", cases.len());
    // And the context works as before.
    session.register_again(&adopted)?;
    session.deregister(&adopted)?;
    let stock = session.stand_in;
    println!(
        "{}",
        if stock { "this kernel refuses userptr blobs (EINVAL), as it must" } else { "this kernel has userptr blobs" }
    );
    Ok(())
}

fn queue(ring: u64, ring_bytes: u64) -> Request {
    Request::Queue(Queue::Create(Create {
        node: 1,
        kind: 2,
        percentage: 100,
        ring,
        ring_bytes,
        blob: 600,
        pointers_blob: 601,
        doorbell_blob: 602,
        ..Create::default()
    }))
}
