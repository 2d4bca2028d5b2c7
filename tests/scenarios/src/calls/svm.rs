// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM: arguments, attributes, and buffers in the same places.

use vkfd_client::uapi::command;
use vkfd_client::uapi::memory::{ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_client::uapi::svm::{
    self, SVM_ATTR_ACCESS, SVM_ATTR_ACCESS_IN_PLACE, SVM_ATTR_CLR_FLAGS, SVM_ATTR_GRANULARITY, SVM_ATTR_NO_ACCESS,
    SVM_ATTR_PREFERRED_LOC, SVM_ATTR_PREFETCH_LOC, SVM_ATTR_SET_FLAGS, SVM_OP_GET_ATTR, SVM_OP_SET_ATTR,
};
use vkfd_client::{CpuVa, UserptrRange, PAGE};

use super::Calls;
use crate::raw::USERPTR;
use crate::Stop;

impl Calls {
    /// The call, with attributes. Shows those that come back.
    fn svm(&self, label: &str, range: UserptrRange, op: u32, attributes: &[(u32, u32)]) {
        let size = svm::args_size(attributes.len()).unwrap_or(0);
        let count = u32::try_from(attributes.len()).unwrap_or(0);
        self.svm_of(label, range, op, attributes, count, size);
    }

    /// The same, with another count or length than there are.
    fn svm_of(&self, label: &str, range: UserptrRange, op: u32, attributes: &[(u32, u32)], count: u32, size: usize) {
        let mut words = vec![range.start, range.size, u64::from(op) | u64::from(count) << 32];
        words.extend(attributes.iter().map(|(kind, value)| u64::from(*kind) | u64::from(*value) << 32));
        words.resize(words.len().max(64), 0);
        let show = |words: &[u64]| {
            let shown = words[3..3 + attributes.len()].iter().map(|word| {
                let (kind, value) = (word & 0xffff_ffff, word >> 32);
                let own = [(self.gpu(), "gpu"), (self.no_gpu(), "no GPU")];
                let own = own.iter().find(|(id, _)| u64::from(*id) == value);
                format!("{kind}:{}", own.map_or_else(|| format!("{value:#x}"), |(_, name)| (*name).to_owned()))
            });
            shown.collect::<Vec<_>>().join(" ")
        };
        let given = show(&words);
        let word = command::SVM.with_size(size).unwrap_or(command::SVM);
        let result = self.send(label, word, CpuVa::of(words.as_mut_ptr()).0);
        let came = if result.is_ok() && op == SVM_OP_GET_ATTR { show(&words) } else { String::new() };
        self.record.append(&given, &came);
    }
}

/// Sets one attribute.
pub(super) fn set(calls: &Calls, label: &str, range: UserptrRange, attribute: u32, value: u32) {
    calls.svm(label, range, SVM_OP_SET_ATTR, &[(attribute, value)]);
}

const SET: u32 = SVM_OP_SET_ATTR;
const GET: u32 = SVM_OP_GET_ATTR;

pub(super) fn arguments(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let memory = calls.memory("memory", 16 * PAGE)?;
    memory.fill_pages(0..16, 1);
    let start = memory.whole().start;
    let at = |start, size| UserptrRange { start, size };
    let harmless = [(SVM_ATTR_GRANULARITY, 9)];
    for (op, name) in [(SET, "set"), (GET, "get")] {
        for (what, range) in [
            ("good", at(start, 4 * PAGE)),
            ("at 0", at(0, PAGE)),
            ("no byte", at(start, 0)),
            ("a byte", at(start, 1)),
            ("at 1", at(start + 1, PAGE)),
            ("past the end", at(1 << 47, PAGE)),
            ("past 48 bits", at(1 << 48, PAGE)),
            ("the kernel's", at(0xffff_8000_0000_0000, PAGE)),
            ("wraps", at(start, PAGE.wrapping_neg())),
            ("wraps to 0", at(PAGE.wrapping_neg(), PAGE)),
            ("nothing mapped", at(PAGE * 17, PAGE)),
        ] {
            calls.svm(&format!("{name}, {what}"), range, op, &harmless);
        }
        let range = memory.range(0, 4 * PAGE);
        calls.svm(&format!("{name}, nothing"), range, op, &[]);
        calls.svm_of(&format!("{name}, more than there is room for"), range, op, &harmless, 2, 32);
        calls.svm_of(&format!("{name}, fewer than there is room for"), range, op, &harmless, 1, 64);
        calls.svm_of(&format!("{name}, none but a long argument"), range, op, &harmless, 0, 64);
        calls.svm_of(&format!("{name}, a short argument"), range, op, &harmless, 0, 16);
        calls.svm_of(&format!("{name}, as many as can be said"), range, op, &harmless, u32::MAX, 32);
        for kind in 0..10 {
            for (value, what) in
                [(0, "0"), (1, "1"), (calls.gpu(), "gpu"), (calls.no_gpu(), "no GPU"), (u32::MAX, "all ones")]
            {
                calls.svm(&format!("{name}, attribute {kind} of {what}"), range, op, &[(kind, value)]);
            }
        }
        calls.svm(&format!("{name}, attribute {:#x}", u32::MAX), range, op, &[(u32::MAX, 0)]);
        calls.svm(&format!("{name}, one that is wrong after one that is right"), range, op, &[(7, 3), (99, 0)]);
    }
    calls.svm("operation 2", memory.range(0, PAGE), 2, &harmless);
    calls.svm("operation of all ones", memory.range(0, PAGE), u32::MAX, &harmless);
    memory.unmap(2 * PAGE, PAGE)?;
    calls.svm("set, with a hole", memory.range(0, 4 * PAGE), SET, &harmless);
    calls.svm("get, with a hole", memory.range(0, 4 * PAGE), GET, &harmless);
    calls.svm("set, only a hole", memory.range(2 * PAGE, PAGE), SET, &harmless);
    Ok(())
}

pub(super) fn attributes(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let memory = calls.memory("memory", 4 << 20)?;
    memory.fill_pages(0..64, 1);
    let gpu = calls.gpu();
    let all = [
        (SVM_ATTR_PREFERRED_LOC, 0),
        (SVM_ATTR_PREFETCH_LOC, 0),
        (SVM_ATTR_ACCESS, gpu),
        (SVM_ATTR_SET_FLAGS, 0),
        (SVM_ATTR_CLR_FLAGS, 0),
        (SVM_ATTR_GRANULARITY, 0),
    ];
    let range = memory.range(0, 16 * PAGE);
    calls.svm("before", range, GET, &all);
    for (label, attribute, value) in [
        ("access", SVM_ATTR_ACCESS, gpu),
        ("in place", SVM_ATTR_ACCESS_IN_PLACE, gpu),
        ("no access", SVM_ATTR_NO_ACCESS, gpu),
        ("access again", SVM_ATTR_ACCESS, gpu),
        ("preferred on the GPU", SVM_ATTR_PREFERRED_LOC, gpu),
        ("preferred in the system", SVM_ATTR_PREFERRED_LOC, 0),
        ("not preferred", SVM_ATTR_PREFERRED_LOC, u32::MAX),
        ("prefetched to the GPU", SVM_ATTR_PREFETCH_LOC, gpu),
        ("prefetched to the GPU again", SVM_ATTR_PREFETCH_LOC, gpu),
        ("prefetched back", SVM_ATTR_PREFETCH_LOC, 0),
        ("granularity 0", SVM_ATTR_GRANULARITY, 0),
        ("granularity 9", SVM_ATTR_GRANULARITY, 9),
        ("granularity 63", SVM_ATTR_GRANULARITY, 63),
        ("granularity 64", SVM_ATTR_GRANULARITY, 64),
        ("granularity 1000", SVM_ATTR_GRANULARITY, 1000),
        ("no flag cleared", SVM_ATTR_CLR_FLAGS, 0),
        ("all flags cleared", SVM_ATTR_CLR_FLAGS, 0xff),
        ("all flags set", SVM_ATTR_SET_FLAGS, 0xff),
        ("unknown flags set", SVM_ATTR_SET_FLAGS, 0xffff_ff00),
        ("unknown flags cleared", SVM_ATTR_CLR_FLAGS, 0xffff_ff00),
    ] {
        calls.svm(label, range, SET, &[(attribute, value)]);
        calls.svm(&format!("after {label}"), range, GET, &all);
    }
    calls.svm("two of one kind", range, SET, &[(SVM_ATTR_GRANULARITY, 3), (SVM_ATTR_GRANULARITY, 5)]);
    calls.svm("set and cleared", range, SET, &[(SVM_ATTR_SET_FLAGS, 3), (SVM_ATTR_CLR_FLAGS, 1)]);
    calls.svm("after both", range, GET, &all);
    // A part of it is different.
    calls.svm(
        "a part",
        memory.range(4 * PAGE, 4 * PAGE),
        SET,
        &[(SVM_ATTR_GRANULARITY, 2), (SVM_ATTR_PREFERRED_LOC, gpu)],
    );
    calls.svm("the whole after it", range, GET, &all);
    calls.svm("the part after it", memory.range(4 * PAGE, 4 * PAGE), GET, &all);
    calls.svm("a part and what has none", memory.range(8 * PAGE, 32 * PAGE), GET, &all);
    calls.svm("what has none", memory.range(32 * PAGE, 4 * PAGE), GET, &all);
    calls.svm("in place asked for", range, GET, &[(SVM_ATTR_ACCESS_IN_PLACE, gpu), (SVM_ATTR_NO_ACCESS, gpu)]);
    calls.svm("prefetch of nothing", memory.range(1 << 20, 4 * PAGE), SET, &[(SVM_ATTR_PREFETCH_LOC, gpu)]);
    calls.svm("after the prefetch of nothing", memory.range(1 << 20, 4 * PAGE), GET, &all);
    memory.protect(0, 2 * PAGE, libc::PROT_READ)?;
    calls.svm("read only, prefetch", memory.range(0, 2 * PAGE), SET, &[(SVM_ATTR_PREFETCH_LOC, gpu)]);
    memory.protect(0, 2 * PAGE, libc::PROT_NONE)?;
    calls.svm("not to be read, prefetch", memory.range(0, 2 * PAGE), SET, &[(SVM_ATTR_PREFETCH_LOC, gpu)]);
    calls.svm("not to be read, access", memory.range(0, 2 * PAGE), SET, &[(SVM_ATTR_ACCESS, gpu)]);
    memory.unmap(16 * PAGE, 16 * PAGE)?;
    memory.map_again(16 * PAGE, 16 * PAGE)?;
    calls.svm("mapped again", memory.range(16 * PAGE, 16 * PAGE), GET, &all);
    Ok(())
}

pub(super) fn beside_buffers(calls: &Calls) -> Result<(), Stop> {
    calls.bind()?;
    let memory = calls.memory("memory", 64 * PAGE)?;
    memory.fill_pages(0..64, 1);
    let window = calls.memory("window", 64 * PAGE)?;
    let other = calls.memory("other", 64 * PAGE)?;
    let harmless = [(SVM_ATTR_GRANULARITY, 9)];
    let start = window.whole().start;
    for (kind, name) in [
        (ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE, "VRAM"),
        (ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE, "GTT"),
        (USERPTR, "userptr"),
    ] {
        let cpu = if kind == USERPTR { memory.whole().start } else { 0 };
        let made = calls.alloc(name, start + 8 * PAGE, 8 * PAGE, cpu, kind)?;
        calls.svm(&format!("over {name}"), window.range(8 * PAGE, 8 * PAGE), SET, &harmless);
        calls.svm(&format!("over {name}'s last page"), window.range(15 * PAGE, 2 * PAGE), SET, &harmless);
        calls.svm(&format!("after {name}"), window.range(16 * PAGE, PAGE), SET, &harmless);
        if kind == USERPTR {
            let apart = calls.window("apart", 8 * PAGE)?;
            let own =
                calls.alloc("userptr of other memory", apart.whole().start, 8 * PAGE, other.whole().start, USERPTR)?;
            calls.svm("over its memory", other.range(0, 8 * PAGE), SET, &harmless);
            calls.svm("over its memory's last page", other.range(7 * PAGE, 2 * PAGE), SET, &harmless);
            calls.svm("after its memory", other.range(8 * PAGE, PAGE), SET, &harmless);
            let _ = calls.free("free that of other memory", own.handle);
        }
        let _ = calls.map_on_gpu(&format!("{name}, map"), made.handle);
        calls.svm(&format!("over {name}, mapped"), window.range(8 * PAGE, 8 * PAGE), SET, &harmless);
        let _ = calls.unmap_from_gpu(&format!("{name}, unmap"), made.handle);
        let _ = calls.free(&format!("{name}, free"), made.handle);
        calls.svm(&format!("where {name} was"), window.range(8 * PAGE, 8 * PAGE), SET, &harmless);
        let again = calls.alloc(&format!("{name} over SVM"), start + 8 * PAGE, 8 * PAGE, cpu, kind);
        if let Ok(made) = again {
            let _ = calls.free(&format!("{name}, free what is over SVM"), made.handle);
        }
        window.unmap(0, 64 * PAGE)?;
        window.map_again(0, 64 * PAGE)?;
        if let Ok(made) = calls.alloc(&format!("{name} where SVM was"), start + 8 * PAGE, 8 * PAGE, cpu, kind) {
            let _ = calls.free(&format!("{name}, free what is where SVM was"), made.handle);
        }
    }
    let range = memory.range(32 * PAGE, 4 * PAGE);
    calls.svm("a range", range, SET, &harmless);
    if let Ok(made) = calls.alloc("userptr of a range", start, 4 * PAGE, range.start, USERPTR) {
        let _ = calls.free("free the userptr of a range", made.handle);
    }
    if let Ok(made) = calls.alloc("userptr beside a range", start, 4 * PAGE, range.start + 4 * PAGE, USERPTR) {
        let _ = calls.free("free the userptr beside a range", made.handle);
    }
    Ok(())
}
