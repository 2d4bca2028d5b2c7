// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Accesses and packets of any values: nothing panics, hangs, or reaches memory that is not there.

use crate::rig::*;
use vkfd_asic::pci::bar;
use vkfd_asic::registers::{gc, sdma};

/// Random numbers, the same every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        halves(self.0)[1]
    }
}

#[test]
fn any_register_writes_are_survived() {
    let (rig, mut noise) = (Rig::up(), Noise(7));
    for _ in 0..20_000 {
        // Half of them near what does something.
        let at = match noise.next() % 4 {
            0 => gc::CP_MQD_BASE_ADDR + noise.next() % 56,
            1 => sdma::ENGINES[usize::try_from(noise.next() % 5).unwrap()] + noise.next() % sdma::WORDS,
            _ => noise.next() % 0x2_0000,
        };
        rig.set(at, noise.next());
        rig.get(noise.next() % 0x2_0000);
        rig.doorbell(noise.next() % 0x1000, noise.next().into());
    }
    rig.asic.reset();
    // It is as good as new.
    let mut bytes = [0; 4];
    rig.asic.read(bar::REGISTERS, u64::from(gc::SCRATCH_REG0) * 4, &mut bytes);
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn any_packets_are_survived() {
    let mut noise = Noise(9);
    for round in 0..60 {
        let (rig, mut done, mut copied) = (Rig::up(), 0, 0);
        rig.start_copy_ring();
        for _ in 0..8 {
            let ops = [0x10, 0x37, 0x3c, 0x3f, 0x40, 0x49, 0x79, 0x98, 0xa0, 0xa2, 0xa3, 0xa4, 0xa5];
            let op = ops[usize::try_from(noise.next()).unwrap() % ops.len()];
            let body = usize::try_from(1 + noise.next() % 8).unwrap();
            let mut words = vec![pm4(op, body)];
            // Addresses are near what there is, so that something happens.
            words.extend((0..body).map(|index| match (index % 2, round % 2) {
                (1, 0) => 0x7fff,
                _ => noise.next() & 0x00ff_ffff,
            }));
            rig.write_words(KIQ_RING + 4 * done, &words);
            done += words.len() as u64;
            let words: Vec<u32> =
                (0..6).map(|index| if index == 0 { noise.next() % 16 } else { noise.next() }).collect();
            rig.write_words(COPY_RING + 4 * copied, &words);
            copied += 6;
        }
        rig.doorbell(KIQ_DOORBELL, done);
        rig.doorbell(COPY_DOORBELL, copied * 4);
        // A ring may wait for a value that never comes; what matters is that it can be ended.
        rig.asic.settle(std::time::Duration::from_millis(20));
        rig.asic.reset();
        assert!(rig.asic.settle(HANG), "round {round}");
    }
}
