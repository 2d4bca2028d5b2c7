// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest's processes have the guest's memory and the window of the host's process, and nothing
//! else. The machine can retry page faults (XNACK): a retry would fetch the rest.

use crate::program;

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use program::{Memory, PAGE, SOON};
use vkfd_client::{AllocOptions, ClientError, SvmAccess, SvmSet, UserptrRange};
use vkfd_client::{Client, Confined, CopyQueue, Embedded, Location, Machine, MachineOptions, RegisterOptions};
use vkfd_host::{Grants, Source};
use vkfd_remote::protocol::hsakmt::memory::Layout;
use vkfd_remote::protocol::hsakmt::query::Query;
use vkfd_remote::protocol::hsakmt::Request;
use vkfd_sabotage::Switches;
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::simulated_guest::{scattered, Guest, Library};

/// Long enough for a fault to be served, had it been.
const NOT_SERVED: Duration = Duration::from_secs(2);

#[test]
fn a_guests_gpu_reaches_nothing_of_the_hosts_process() {
    let mut options = Options::default();
    options.machine.xnack = true;
    let mut guest = Guest::new(options);
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    assert_ne!(library.ask(&mut guest, &Request::Query(Query::SetXnack(1))).0, 0);
    let secret = Memory::new(4 * PAGE);
    secret.fill(77);
    // Reads and writes: each in a queue of its own, because a fault stops one.
    for writes in [false, true] {
        let mut copies = library.copies(&mut guest);
        let (copy, copy_at, _) = library.alloc(&mut guest, PAGE);
        guest.window.word(copy_at).store(1, Ordering::Release);
        let (to, from) = if writes { (secret.address(), copy) } else { (copy, secret.address()) };
        assert!(!copies.copy(&guest, to, from, PAGE, NOT_SERVED), "writes {writes}");
        assert_eq!(guest.window.word(copy_at).load(Ordering::Acquire), 1);
        assert_eq!(secret.wrong(77), None);
    }
    // The guest's own memory works as before.
    let mut copies = library.copies(&mut guest);
    let resource = guest.guest_blob(1, scattered(0, 8)).unwrap();
    let address = library.register(&mut guest, resource, 8 * PAGE);
    let (copy, _, _) = library.alloc(&mut guest, 8 * PAGE);
    assert!(copies.copy(&guest, copy, address, 8 * PAGE, SOON));
    drop((guest, library));
}

/// A process as a guest's context has it, of a machine that allows all there is, and the memory
/// that it was granted.
fn confined() -> (Client, Arc<Grants>, Memory, vkfd_host::Grant) {
    let mut options = MachineOptions { source: Source::Auto, xnack_capable: true, ..MachineOptions::default() };
    options.driver.diagnosis = true;
    let grants = Arc::new(Grants::default());
    let machine = Arc::new(Machine::new(&options).unwrap());
    let machine = Confined::new(machine, grants.clone(), Switches::NONE);
    let client = Client::with_transport(Arc::new(Embedded::open_confined(&machine).unwrap())).unwrap();
    let granted = Memory::new(16 * PAGE);
    let grant = grants.grant(granted.address(), 16 * PAGE);
    (client, grants, granted, grant)
}

/// Every call of KFD that could reach memory which nobody granted, made as a front end would that
/// forwards all of them.
#[test]
fn no_call_of_a_confined_process_reaches_more_than_was_granted() {
    let (client, grants, granted, grant) = confined();
    let gpu = client.gpus()[0].id;
    let own = Memory::new(16 * PAGE);
    own.fill(3);
    let errno = |error: ClientError| error.errno().unwrap().0;
    assert!(!client.caps().xnack && !client.caps().svm);
    assert_eq!(client.set_xnack(true).map_err(errno), Err(libc::EPERM));
    client.set_xnack(false).unwrap();
    // Granted memory is no SVM memory either.
    for memory in [&own, &granted] {
        let range = memory.range(0, 16);
        // SAFETY: the memory is the test's, and no reference to it exists.
        let set = unsafe { client.svm_set(range, &[SvmSet::Access(gpu, SvmAccess::Migrate)]) };
        assert_eq!(set.map_err(errno), Err(libc::EPERM));
        assert_eq!(client.prefetch(range, Location::Gpu(gpu)).map_err(errno), Err(libc::EPERM));
        assert_eq!(client.svm_get(range, gpu).map(drop).map_err(errno), Err(libc::EPERM));
        assert_eq!(client.move_to_gpu(range, gpu).map(drop).map_err(errno), Err(libc::EOPNOTSUPP));
        assert_eq!(client.move_to_system(range, gpu).map(drop).map_err(errno), Err(libc::EOPNOTSUPP));
    }
    let register = |ranges: &[UserptrRange]| {
        // SAFETY: as above; the memory outlives the test.
        unsafe { client.register_ranges(ranges, &RegisterOptions::default()) }
    };
    let past_the_end = UserptrRange { start: granted.address() + 15 * PAGE, size: 2 * PAGE };
    let before = UserptrRange { start: granted.address() - PAGE, size: PAGE };
    let lists: [&[UserptrRange]; 5] = [
        &[own.range(0, 1)],
        &[granted.range(0, 4), own.range(0, 1), granted.range(4, 4)],
        &[granted.range(0, 4), granted.range(8, 2), own.range(0, 1)],
        &[past_the_end],
        &[before],
    ];
    for list in lists {
        assert_eq!(register(list).map(drop).map_err(errno), Err(libc::EFAULT), "{list:x?}");
    }
    // Granted memory is registered, and the GPU reaches it.
    granted.fill(500);
    let pieces: Vec<_> = (0..8).map(|page| granted.range(15 - 2 * page, 1)).collect();
    let buffer = register(&pieces).unwrap();
    let copy = client.alloc(&AllocOptions { cpu_map: true, ..AllocOptions::vram(gpu, 8 * PAGE) }).unwrap();
    let mut queue = CopyQueue::new(&client, gpu).unwrap();
    queue.copy_now(copy.gpu_va(), buffer.gpu_va(), 8 * PAGE, SOON).unwrap();
    let mut word = [0; 8];
    copy.read(PAGE, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 500 + 13 * PAGE / 8);
    drop((buffer, queue));
    // The grant ends, and with it the right. Others leave room in the account.
    let others = Memory::new(16 * PAGE);
    let _others = grants.grant(others.address(), 16 * PAGE);
    drop(grant);
    assert_eq!(register(&pieces).map(drop).map_err(errno), Err(libc::EFAULT));
    assert_eq!(own.wrong(3), None);
}

/// The front ends' own answers, on a machine that can retry faults and on one that cannot.
#[test]
fn both_kinds_of_context_refuse_xnack_and_svm() {
    use vkfd_uapi::command as c;
    use vkfd_uapi::process::SetXnackModeArgs;
    for xnack in [false, true] {
        let mut options = program::options();
        options.machine.xnack = xnack;
        let (way, host) = program::way(options);
        for on in [1, 2, i32::MAX] {
            let mut args = SetXnackModeArgs { xnack_enabled: on };
            assert_eq!(program::call(&way, c::SET_XNACK_MODE, &mut args), Err(libc::EPERM), "{xnack} {on}");
        }
        let mut args = SetXnackModeArgs { xnack_enabled: -1 };
        program::call(&way, c::SET_XNACK_MODE, &mut args).unwrap();
        assert_eq!(args.xnack_enabled, 0);
        assert_eq!(program::call(&way, c::SVM, &mut [0_u64; 3]), Err(libc::EPERM));
        drop(way);
        host.finish();
        let mut guest = Guest::new(options);
        let mut library = Library::open(&mut guest, 1, Layout::Y2026);
        for on in [1, 2, u32::MAX] {
            assert_ne!(library.ask(&mut guest, &Request::Query(Query::SetXnack(on))).0, 0, "{xnack} {on}");
        }
        assert_eq!(library.value(&mut guest, &Request::Query(Query::Xnack)), 0);
    }
}
