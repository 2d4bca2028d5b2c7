// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random rings, packets and doorbells: the GPU may halt queues, nothing more.

use crate::rig::*;
use std::sync::atomic::Ordering::SeqCst;
use vkfd_gpu::*;
use vkfd_kernels::{code, Image};

/// Where real kernels are.
const CODE: u64 = 12 << 20;

fn image() -> Image {
    Image::new(code(90_000).unwrap()).unwrap()
}

fn survive(kind: QueueKind, seed: u64, shape: impl Fn(&mut Vec<u8>)) {
    let rig = Rig::with(Config::default(), seed % 2 == 0);
    let mut bytes = noise(seed, 0x10000);
    shape(&mut bytes);
    // Random descriptors and arguments, too.
    rig.write(0, &bytes);
    rig.write(SCRATCH, &noise(seed + 1, 0x10000));
    rig.write(CODE, &image().at(VA + CODE));
    let queue = rig.queue(kind);
    let random = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    queue.slot.store(if seed % 3 == 0 { random } else { 0x8000 }, SeqCst);
    rig.gpu.ring();
    let _ = rig.events.recv_timeout(std::time::Duration::from_millis(3));
    rig.gpu.suspend(VMID);
    rig.gpu.resume(VMID);
    queue.remove();
    assert_eq!(std::sync::Arc::strong_count(&rig.gpu), 1);
}

/// Makes some packet words look like mapped addresses.
fn plausible_addresses(bytes: &mut [u8]) {
    for chunk in bytes.chunks_exact_mut(32) {
        let va = VA + u64::from(chunk[0]) * 0x1_0008;
        chunk[4..12].copy_from_slice(&va.to_le_bytes());
        chunk[12..20].copy_from_slice(&va.to_le_bytes());
    }
}

#[test]
fn random_sdma_rings() {
    for seed in 0..40 {
        survive(QueueKind::Sdma, seed, |bytes| {
            for chunk in bytes.chunks_exact_mut(4) {
                chunk[0] %= 20;
                chunk[1] %= 3;
            }
            if seed % 4 == 1 {
                plausible_addresses(bytes);
            }
        });
    }
}

#[test]
fn random_pm4_rings() {
    const OPS: [u8; 14] = [0x10, 0x15, 0x16, 0x37, 0x3c, 0x3f, 0x40, 0x42, 0x46, 0x49, 0x58, 0x76, 0x79, 0x77];
    for seed in 0..40 {
        survive(QueueKind::Pm4, seed, |bytes| {
            for chunk in bytes.chunks_exact_mut(32) {
                // Type 3, a known opcode, and a body that fits.
                let (op, body) = (OPS[usize::from(chunk[1]) % OPS.len()], chunk[2] % 8);
                chunk[..4].copy_from_slice(&[0, op, body, 0xc0]);
            }
            if seed % 4 == 1 {
                plausible_addresses(bytes);
                for chunk in bytes.chunks_exact_mut(32) {
                    let op = OPS[usize::from(chunk[20]) % OPS.len()];
                    chunk[..4].copy_from_slice(&[0, op, 6, 0xc0]);
                }
            }
        });
    }
}

#[test]
fn random_aql_rings() {
    let image = image();
    for seed in 0..40 {
        survive(QueueKind::Aql, seed, |bytes| {
            for chunk in bytes.chunks_exact_mut(64) {
                chunk[0] %= 6;
                if seed % 4 == 1 {
                    let kernel = &image.kernels()[usize::from(chunk[1] % 8)];
                    let object = VA + CODE + kernel.descriptor;
                    let kernarg = VA + SCRATCH + u64::from(chunk[2]);
                    chunk[32..40].copy_from_slice(&object.to_le_bytes());
                    chunk[40..48].copy_from_slice(&kernarg.to_le_bytes());
                }
            }
        });
    }
}

#[test]
fn random_page_tables() {
    for seed in 0..20 {
        let rig = Rig::new();
        let mut queue = rig.queue(QueueKind::Sdma);
        // Valid-looking entries everywhere; the ring's own translations are cached.
        queue.submit(&[0]);
        queue.wait();
        let mut tables = noise(seed, 1 << 20);
        for entry in tables.chunks_exact_mut(8) {
            entry[0] |= 1;
            if seed % 2 == 0 {
                entry[3..].fill(0);
            }
        }
        rig.gpu.vram().copy_in(0, &tables).unwrap();
        for step in 0..100u64 {
            let va = step.wrapping_mul(0x1234_5678_9abc) & 0xffff_ffff_ffff;
            let _ = rig.gpu.translate(VMID, va);
        }
        queue.submit(&copy_packet(seed << 21, 0x7777_0000_0000, 4096));
        rig.gpu.flush_tlb(VMID);
        queue.remove();
    }
}
