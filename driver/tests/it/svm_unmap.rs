// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM ranges whose memory is unmapped, against a simulated host: what had a range has none,
//! however and whenever it happens, and what is mapped there later is other memory.

use std::sync::atomic::{AtomicBool, Ordering};
use vkfd_driver::base::errno::Errno;
use vkfd_sim::svm::{rig, xnack_rig, AT};
use vkfd_sim::{Rig, GPU_ID, WRITABLE_USERPTR};
use vkfd_uapi::svm::*;

#[test]
fn unmapped_parts_of_ranges_disappear_without_stopping_anything() {
    let rig = rig();
    rig.set(AT, 1024, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_GRANULARITY, 3)]).unwrap();
    rig.mm.unmap(AT + 100, 200);
    assert!(rig.nothing_mapped(0, AT + 100, 200), "before the unmap went on");
    rig.check_svm(0, AT, 100);
    rig.check_svm(0, AT + 300, 724);
    assert_eq!(rig.info().evictions, 0);
    // What is mapped there later has no attributes.
    rig.mm.map(AT + 100, 200, true);
    assert_eq!(rig.get(AT + 100, 200, &[(SVM_ATTR_GRANULARITY, 0)]).unwrap()[0].1, 9);
    assert_eq!(rig.get(AT, 100, &[(SVM_ATTR_GRANULARITY, 0)]).unwrap()[0].1, 3);
    // And may be registered.
    let handle = rig.register(0x10_0000_0000, &[(AT + 100, 200)], WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    rig.check(0x10_0000_0000, &[(AT + 100, 200)]);
    // All of it: nothing is left, neither notifier nor page table.
    rig.mm.unmap(AT, 1024 + 100);
    assert!(rig.get(AT, 1, &[]).is_err());
    assert_eq!(rig.info().notifiers, 1, "the object's");
}

#[test]
fn each_page_that_was_unmapped_is_known_however_many_there_are() {
    let rig = rig();
    rig.set(AT, 2048, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_GRANULARITY, 3)]).unwrap();
    // Other memory is there before anybody asks.
    for i in 0..100 {
        rig.mm.unmap(AT + 10 + 20 * i, 10);
        rig.mm.map(AT + 10 + 20 * i, 10, true);
    }
    let ask = [(SVM_ATTR_GRANULARITY, 0)];
    for i in 0..100 {
        assert!(rig.nothing_mapped(0, AT + 10 + 20 * i, 10));
        assert_eq!(rig.get(AT + 10 + 20 * i, 10, &ask).unwrap()[0].1, 9);
        assert_eq!(rig.get(AT + 20 * i, 10, &ask).unwrap()[0].1, 3);
        rig.check_svm(0, AT + 20 * i, 10);
        rig.register(0x10_0000_0000 + i * 0x10_0000, &[(AT + 10 + 20 * i, 10)], WRITABLE_USERPTR).unwrap();
    }
    assert_eq!(rig.svm_counters().dropped.get(), 100);
}

/// A GPU's fault on memory that nobody registered looks what else there is in its mapping. Before a
/// range is made of that, another thread unmaps a part and maps other memory there. That is not the
/// fault's, so it can be registered, by a buffer's address, too.
#[test]
fn a_fault_makes_no_range_of_memory_that_came_after_its_look() {
    let rig = xnack_rig();
    // Once where nothing was watched yet, and once where other ranges are.
    for block in [AT, AT + 512] {
        let replaced = AtomicBool::new(false);
        rig.mm.after_look(move |mm, span, mapped| {
            // The last page that the look finds in the mapping.
            if mapped && span.start().0 == block * 4096 && !replaced.swap(true, Ordering::SeqCst) {
                mm.unmap(block + 88, 8);
                mm.cut([block + 88, block + 96]);
                mm.map(block + 88, 8, true);
            }
        });
        rig.mm.cpu_write(block + 200, 42);
        assert_eq!(rig.gpu_read(0, block + 200), Ok(42));
        rig.mm.no_hook();
        assert!(rig.nothing_mapped(0, block + 88, 8));
        assert!(rig.mm.is_cut(block + 88), "nobody looked");
        let object = rig.register((block + 88) * 4096, &[(block + 88, 8)], WRITABLE_USERPTR).unwrap();
        rig.free(object).unwrap();
        rig.check_svm(0, block + 96, 104);
    }
}

/// While a GPU's pages are faulted in, some of them are unmapped, dropped, and other memory is
/// mapped there.
fn replaced_while_it_is_mapped(rig: &Rig, map: impl FnOnce(&Rig) + Send) {
    let (begun, wait) = std::sync::mpsc::sync_channel(0);
    let (go_on, replaced) = std::sync::mpsc::sync_channel(0);
    let hook = std::sync::Mutex::new(Some((begun, replaced)));
    rig.mm.after_fault(move |_, _| {
        if let Some((begun, replaced)) = hook.lock().unwrap().take() {
            begun.send(()).unwrap();
            replaced.recv().unwrap();
        }
    });
    std::thread::scope(|s| {
        s.spawn(|| map(rig));
        wait.recv().unwrap();
        rig.mm.unmap(AT + 5, 2);
        // A thread that asks finds the range gone; from now on the addresses are free.
        assert_eq!(rig.get(AT + 200, 1, &[]), Ok(vec![]));
        rig.mm.map(AT + 5, 2, true);
        go_on.send(()).unwrap();
    });
    rig.settle();
    rig.mm.no_hook();
    assert!(rig.nothing_mapped(0, AT + 5, 2), "entries of no range");
    rig.check_svm(0, AT, 5);
    rig.check_svm(0, AT + 7, 505);
    // Another object has them, and keeps its entries whatever happens to the memory of the same
    // address.
    let va = (AT + 5) * 4096;
    rig.mm.map(AT + 4096, 2, true);
    let handle = rig.register(va, &[(AT + 4096, 2)], WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    rig.mm.renew(AT, 512);
    rig.settle();
    rig.check(va, &[(AT + 4096, 2)]);
}

#[test]
fn memory_that_is_replaced_while_a_call_maps_it_has_no_entries() {
    replaced_while_it_is_mapped(&rig(), |rig| rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap());
}

#[test]
fn memory_that_is_replaced_while_a_fault_maps_it_has_no_entries() {
    let rig = xnack_rig();
    replaced_while_it_is_mapped(&rig, |rig| assert!(rig.reach(0, AT, true).is_ok()));
}

#[test]
fn an_unmap_across_blocks_and_windows_takes_what_is_in_it() {
    let rig = rig();
    let end = (AT / (1 << 17) + 1) << 17;
    rig.mm.map(end - 1200, 2400, true);
    rig.set(end - 1200, 2400, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_GRANULARITY, 3)]).unwrap();
    rig.mm.unmap(end - 700, 1900);
    rig.mm.map(end - 700, 1900, true);
    let ask = [(SVM_ATTR_GRANULARITY, 0)];
    for (page, want) in [(-1200, 3), (-701, 3), (-700, 9), (-1, 9), (0, 9), (1199, 9)] {
        assert_eq!(rig.get(end.checked_add_signed(page).unwrap(), 1, &ask).unwrap()[0].1, want, "page {page}");
    }
    assert!(rig.nothing_mapped(0, end - 700, 1900));
    rig.check_svm(0, end - 1200, 500);
    assert_eq!(rig.info().notifiers, 1, "nothing is left in the second window");
}

#[test]
fn memory_that_is_unmapped_before_its_notifier_is_there_has_no_range() {
    let rig = rig();
    let ask = [(SVM_ATTR_GRANULARITY, 0)];
    // Nobody listens yet: it is not reported.
    rig.mm.before_watch(|mm| mm.unmap(AT + 8, 4));
    let _ = rig.set(AT, 16, &[(SVM_ATTR_GRANULARITY, 3)]);
    rig.mm.map(AT + 8, 4, true);
    for (page, want) in [(7, 3), (8, 9), (11, 9), (12, 3)] {
        assert_eq!(rig.get(AT + page, 1, &ask).unwrap()[0].1, want, "page {page}");
    }
    rig.register(0x10_0000_0000, &[(AT + 8, 4)], WRITABLE_USERPTR).unwrap();
    // The same for memory that a fault makes a range of.
    let far = AT + (1 << 17);
    rig.mm.map(far, 512, true);
    rig.process.set_xnack(true).unwrap();
    rig.mm.before_watch(move |mm| mm.unmap(far + 100, 50));
    rig.gpu_read(0, far + 10).unwrap();
    rig.mm.map(far + 100, 50, true);
    rig.register(0x11_0000_0000, &[(far + 100, 50)], WRITABLE_USERPTR).unwrap();
    assert_eq!(rig.register(0x12_0000_0000, &[(far + 99, 1)], WRITABLE_USERPTR), Err(Errno::EADDRINUSE));
    // And where nothing is left of it, neither is a notifier.
    let far = AT + (2 << 17);
    rig.mm.map(far, 16, true);
    let watches = rig.mm.watch_count();
    rig.mm.before_watch(move |mm| mm.unmap(far, 16));
    let _ = rig.set(far, 16, &[(SVM_ATTR_GRANULARITY, 3)]);
    assert_eq!(rig.mm.watch_count(), watches);
}

#[test]
fn what_was_unmapped_is_in_no_imports_way() {
    use vkfd_uapi::memory::*;
    let rig = xnack_rig();
    let (va, size) = (0x10_0000_0000, 16 * 4096);
    let flags = ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE;
    let handle = rig.alloc(va, size, flags).unwrap();
    let mut export = ExportDmabufArgs { handle, flags: 0, dmabuf_fd: 0 };
    rig.call(vkfd_uapi::command::EXPORT_DMABUF.0, &mut export).unwrap();
    rig.set(AT, 16, &[(SVM_ATTR_GRANULARITY, 3)]).unwrap();
    // The worker, which would look after it, is busy.
    let (begun, wait) = std::sync::mpsc::sync_channel(0);
    let (go_on, imported) = std::sync::mpsc::sync_channel(0);
    let hook = std::sync::Mutex::new(Some((begun, imported)));
    rig.mm.after_fault(move |_, _| {
        if let Some((begun, imported)) = hook.lock().unwrap().take() {
            begun.send(()).unwrap();
            imported.recv().unwrap();
        }
    });
    std::thread::scope(|s| {
        s.spawn(|| rig.reach(0, AT + 1024, false).unwrap());
        wait.recv().unwrap();
        rig.mm.unmap(AT, 16);
        rig.mm.map(AT, 16, true);
        let import = ImportDmabufArgs { va_addr: AT * 4096, handle: 0, gpu_id: GPU_ID, dmabuf_fd: export.dmabuf_fd };
        let imported = rig.call(vkfd_uapi::command::IMPORT_DMABUF.0, &mut { import });
        go_on.send(()).unwrap();
        assert_eq!(imported, Ok(()));
    });
}

#[test]
fn a_host_that_cannot_tell_unmaps_is_believed_when_something_is_in_the_way() {
    let rig = rig();
    rig.set(AT, 16, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.mm.unmap_untold(AT, 16);
    rig.settle();
    assert!(rig.nothing_mapped(0, AT, 16));
    rig.mm.map(AT + 4096, 16, true);
    let handle = rig.register(AT * 4096, &[(AT + 4096, 16)], WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    rig.check(AT * 4096, &[(AT + 4096, 16)]);
}

#[test]
fn a_conflict_with_much_memory_costs_few_questions() {
    let rig = rig();
    rig.set(AT, 2048, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    // The host does not say that a few are gone.
    rig.mm.unmap_untold(AT + 1, 3);
    let calls = || rig.mm.mapped_calls.load(Ordering::SeqCst);
    let before = calls();
    assert_eq!(rig.register(0x10_0000_0000, &[(AT + 4, 2044)], WRITABLE_USERPTR), Err(Errno::EADDRINUSE));
    assert_eq!(rig.register(AT * 4096, &[(AT, 2048)], WRITABLE_USERPTR), Err(Errno::EADDRINUSE));
    assert!(calls() - before < 30, "{} questions", calls() - before);
    let handle = rig.register((AT + 1) * 4096, &[(AT + 4096, 3)], WRITABLE_USERPTR);
    assert_eq!(handle, Err(Errno::EFAULT), "the addresses are free, but there is no memory for the object");
    rig.mm.map(AT + 4096, 3, true);
    rig.register((AT + 1) * 4096, &[(AT + 4096, 3)], WRITABLE_USERPTR).unwrap();
}
