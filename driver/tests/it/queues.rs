// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a queue uses must be mapped: in a buffer object, or in SVM memory that the GPU always has
//! entries for.

use vkfd_driver::base::addr::PAGE;
use vkfd_driver::base::errno::Errno;
use vkfd_sim::svm::{rig, AT};
use vkfd_sim::{Rig, GPU_ID, WRITABLE_USERPTR};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::queue::{
    CreateQueueArgs, UpdateQueueArgs, MAX_QUEUE_PERCENTAGE, QUEUE_TYPE_COMPUTE_AQL, QUEUE_TYPE_SDMA,
};
use vkfd_uapi::svm::{
    SVM_ATTR_ACCESS, SVM_ATTR_ACCESS_IN_PLACE, SVM_ATTR_CLR_FLAGS, SVM_ATTR_NO_ACCESS, SVM_ATTR_SET_FLAGS,
    SVM_FLAG_GPU_ALWAYS_MAPPED,
};

/// A registered object of 16 pages: ring at its start, pointers behind, end-of-pipe buffer in the
/// last page.
const OBJECT: u64 = 0x40_0000_0000;
const RING: u32 = 4096;
const ALWAYS: (u32, u32) = (SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_ALWAYS_MAPPED);
const ACCESS: (u32, u32) = (SVM_ATTR_ACCESS, GPU_ID);
/// Pages of the save area in SVM memory, across a 2 MiB boundary.
const SAVED: (u64, u64) = (AT + 500, 24);

fn with_object() -> Rig {
    let rig = rig();
    rig.mm.map(1000, 16, true);
    let object = rig.register(OBJECT, &[(1000, 16)], WRITABLE_USERPTR).unwrap();
    rig.map(object).unwrap();
    rig
}

fn arguments() -> CreateQueueArgs {
    CreateQueueArgs {
        ring_base_address: OBJECT,
        write_pointer_address: OBJECT + PAGE,
        read_pointer_address: OBJECT + PAGE + 64,
        ring_size: RING,
        gpu_id: GPU_ID,
        queue_type: QUEUE_TYPE_COMPUTE_AQL,
        queue_percentage: MAX_QUEUE_PERCENTAGE,
        eop_buffer_address: OBJECT + 15 * PAGE,
        eop_buffer_size: PAGE,
        ctx_save_restore_address: SAVED.0 * PAGE,
        ctx_save_restore_size: u32::try_from(SAVED.1 * PAGE).unwrap(),
        ..CreateQueueArgs::zeroed()
    }
}

fn create(rig: &Rig, mut args: CreateQueueArgs) -> Result<u32, Errno> {
    rig.call(vkfd_uapi::command::CREATE_QUEUE.0, &mut args).map(|()| args.queue_id)
}

#[test]
fn the_save_area_may_be_in_svm_memory() {
    let rig = with_object();
    assert_eq!(create(&rig, arguments()), Err(Errno::EINVAL), "nothing is there");
    rig.set(SAVED.0, SAVED.1, &[ACCESS]).unwrap();
    assert_eq!(create(&rig, arguments()), Err(Errno::EINVAL), "entries that a fault would bring");
    rig.set(SAVED.0, SAVED.1, &[ALWAYS]).unwrap();
    assert_eq!(create(&rig, arguments()), Ok(0));
    // In two ranges, of which one has access in place.
    rig.set(SAVED.0 + 4, 3, &[(SVM_ATTR_ACCESS_IN_PLACE, GPU_ID)]).unwrap();
    assert_eq!(create(&rig, arguments()), Ok(1));
    let longer = CreateQueueArgs { ctx_save_restore_size: arguments().ctx_save_restore_size + 1, ..arguments() };
    assert_eq!(create(&rig, longer), Err(Errno::EINVAL), "it ends behind the range");
    let earlier = CreateQueueArgs { ctx_save_restore_address: (SAVED.0 - 1) * PAGE, ..arguments() };
    assert_eq!(create(&rig, earlier), Err(Errno::EINVAL), "it begins before the range");
    // A save area is asked of compute queues only.
    let sdma = CreateQueueArgs { queue_type: QUEUE_TYPE_SDMA, ..longer };
    assert_eq!(create(&rig, sdma), Ok(2));
}

#[test]
fn a_hole_in_the_save_area_is_seen_whatever_made_it() {
    let rig = with_object();
    let fresh = || rig.set(SAVED.0, SAVED.1, &[ACCESS, ALWAYS]).unwrap();
    fresh();
    assert!(create(&rig, arguments()).is_ok());
    for hole in [(SVM_ATTR_NO_ACCESS, GPU_ID), (SVM_ATTR_CLR_FLAGS, SVM_FLAG_GPU_ALWAYS_MAPPED)] {
        rig.set(SAVED.0 + 11, 1, &[hole]).unwrap();
        assert_eq!(create(&rig, arguments()), Err(Errno::EINVAL), "{hole:?}");
        fresh();
        assert!(create(&rig, arguments()).is_ok(), "{hole:?} taken back");
    }
    rig.mm.unmap(SAVED.0 + 11, 1);
    rig.mm.map(SAVED.0 + 11, 1, true);
    assert_eq!(create(&rig, arguments()), Err(Errno::EINVAL), "memory that came after is not the range's");
}

#[test]
fn access_of_another_gpu_is_not_enough() {
    let rig = with_object();
    rig.set(SAVED.0, SAVED.1, &[(SVM_ATTR_ACCESS, GPU_ID + 1), ALWAYS]).unwrap();
    assert_eq!(create(&rig, arguments()), Err(Errno::EINVAL));
}

#[test]
fn ring_pointers_and_end_of_pipe_buffer_may_be_in_svm_memory_too() {
    let rig = with_object();
    rig.set(SAVED.0, SAVED.1, &[ACCESS, ALWAYS]).unwrap();
    let at = AT + 600;
    let in_svm = CreateQueueArgs {
        ring_base_address: at * PAGE,
        write_pointer_address: (at + 1) * PAGE,
        read_pointer_address: (at + 2) * PAGE,
        eop_buffer_address: (at + 3) * PAGE,
        ..arguments()
    };
    let cases = [
        CreateQueueArgs { ring_base_address: in_svm.ring_base_address, ..arguments() },
        CreateQueueArgs { write_pointer_address: in_svm.write_pointer_address, ..arguments() },
        CreateQueueArgs { read_pointer_address: in_svm.read_pointer_address, ..arguments() },
        CreateQueueArgs { eop_buffer_address: in_svm.eop_buffer_address, ..arguments() },
        in_svm,
    ];
    for args in cases {
        assert_eq!(create(&rig, args), Err(Errno::EINVAL), "{args:?}");
    }
    rig.set(at, 4, &[ACCESS, ALWAYS]).unwrap();
    for (number, args) in (0..).zip(cases) {
        assert_eq!(create(&rig, args), Ok(number), "{args:?}");
    }
    // A ring that moves to another place is looked for in the same way.
    let mut update = UpdateQueueArgs {
        ring_base_address: at * PAGE,
        queue_id: 0,
        ring_size: RING,
        queue_percentage: MAX_QUEUE_PERCENTAGE,
        queue_priority: 0,
    };
    let mut change = || rig.call(vkfd_uapi::command::UPDATE_QUEUE.0, &mut update);
    assert_eq!(change(), Ok(()));
    rig.set(at, 1, &[(SVM_ATTR_NO_ACCESS, GPU_ID)]).unwrap();
    assert_eq!(change(), Err(Errno::EFAULT));
}
