// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Real kernels by AQL: the client library's code objects, against the CPU.

use crate::rig::*;
use vkfd_gpu::*;
use vkfd_kernels::{code, Image, Kernel, GROUP};

const KERNARG: u64 = SCRATCH + 0x2000;
const SIGNAL: u64 = SCRATCH + 0x3000;
const OUT: u64 = SCRATCH + 0x5000;
/// Where the code object is loaded: behind everything else.
const CODE: u64 = 12 << 20;

/// A GPU with gfx900's kernels in its memory.
struct Loaded<'a> {
    rig: &'a Rig,
    queue: TestQueue<'a>,
    image: Image,
}

impl<'a> Loaded<'a> {
    fn new(rig: &'a Rig) -> Self {
        let image = Image::new(code(90_000).unwrap()).unwrap();
        rig.write(CODE, &image.at(VA + CODE));
        Loaded { rig, queue: rig.queue(QueueKind::Aql), image }
    }

    /// Runs a computation to its end; each of its dispatches has a signal.
    fn run(&mut self, kernel: &Kernel) {
        for step in kernel.steps() {
            let entry = self.image.kernel(step.name).unwrap();
            self.rig.write(KERNARG, &step.args);
            self.rig.write_u64(SIGNAL + 8, 1);
            let mut packet = [0; 64];
            packet[..4].copy_from_slice(&0x3_1402u32.to_le_bytes());
            for (at, size) in [(4, GROUP), (6, 1), (8, 1)] {
                packet[at..at + 2].copy_from_slice(&size.to_le_bytes());
            }
            for (at, size) in [12, 16, 20].into_iter().zip(step.grid) {
                packet[at..at + 4].copy_from_slice(&size.to_le_bytes());
            }
            packet[28..32].copy_from_slice(&entry.group_bytes.to_le_bytes());
            for (at, va) in [(32, VA + CODE + entry.descriptor), (40, VA + KERNARG), (56, VA + SIGNAL)] {
                packet[at..at + 8].copy_from_slice(&va.to_le_bytes());
            }
            self.queue.dispatch(&packet);
            self.queue.wait();
            until("signal", || self.rig.read_u64(SIGNAL + 8) == 0);
        }
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn integer_kernels_agree_with_the_cpu() {
    let rig = Rig::new();
    let mut gpu = Loaded::new(&rig);
    let count = 100_003u64;
    let data = noise(3, 800_024);
    rig.write(DATA + 4, &data);
    gpu.run(&Kernel::Sum64 { src: VA + DATA + 4, count, out: VA + OUT });
    assert_eq!(rig.read_u64(OUT), words(&data).iter().fold(0, |sum: u64, &word| sum.wrapping_add(word)));

    let start = u64::MAX - 5;
    gpu.run(&Kernel::Iota64 { dst: VA + DATA, count, start });
    let expected: Vec<u64> = (0..count).map(|index| start.wrapping_add(index)).collect();
    assert_eq!(words(&rig.read(DATA, 800_024)), expected);

    gpu.run(&Kernel::Copy64 { dst: VA + (3 << 20), src: VA + DATA, count });
    assert_eq!(words(&rig.read(3 << 20, 800_024)), expected);
    assert_eq!(rig.read_u64((3 << 20) + 800_024), 0);

    gpu.run(&Kernel::Fill64 { dst: VA + DATA + 8, count: count - 2, value: 42 });
    let filled = words(&rig.read(DATA, 800_024));
    assert_eq!((filled[0], filled[100_002]), (start, expected[100_002]));
    assert!(filled[1..100_002].iter().all(|&word| word == 42));
    // The sum is two dispatches.
    assert_eq!(rig.gpu.counters().kernels, 5);
}

#[test]
fn crc32_is_that_of_zlib() {
    let rig = Rig::new();
    let mut gpu = Loaded::new(&rig);
    let data = noise(4, 700_000);
    rig.write(DATA, &data);
    rig.write(SCRATCH, b"123456789");
    // More segments than work-items share one; most are short.
    let short = (0..100u64).map(|n| (VA + DATA + n, n));
    let segments: Vec<(u64, u64)> =
        [(VA + SCRATCH, 9), (VA + DATA + 1, 699_999), (0, 0)].into_iter().chain(short).collect();
    // The check value of CRC-32/ISO-HDLC, and a bitwise computation.
    let crc = |bytes: &[u8]| {
        !bytes.iter().fold(u32::MAX, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
        })
    };
    let short = (0..100).map(|n| crc(&data[n..2 * n]));
    let expected: Vec<u32> = [0xcbf4_3926, crc(&data[1..]), 0].into_iter().chain(short).collect();
    for count in [3, 103] {
        let list = &segments[..count];
        let list: Vec<u8> = list.iter().flat_map(|&(va, len)| [va, len]).flat_map(u64::to_le_bytes).collect();
        rig.write(8 << 20, &list);
        gpu.run(&Kernel::Crc32 { segments: VA + (8 << 20), count: count as u64, out: VA + OUT });
        let results: Vec<u32> = (0..count as u64).map(|n| rig.read_u32(OUT + 4 * n)).collect();
        assert_eq!(results, expected[..count]);
    }
}

#[test]
fn float_kernels_agree_with_the_cpu() {
    let rig = Rig::new();
    let mut gpu = Loaded::new(&rig);
    let count = 70_001;
    let number = |byte: u8| f32::from(byte) - 128.0;
    let (x, y): (Vec<f32>, Vec<f32>) =
        (noise(5, count).into_iter().map(number).collect(), noise(6, count).into_iter().map(number).collect());
    rig.write(DATA, &floats(&x));
    rig.write(2 << 20, &floats(&y));
    gpu.run(&Kernel::Saxpy { a: 0.1, x: VA + DATA, y: VA + (2 << 20), count: count as u64 });
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 0.1 * x + y).collect();
    assert_eq!(rig.read(2 << 20, count * 4), floats(&expected));

    let (m, n, k) = (130, 259, 131);
    let (a, b) = (&x[..m * k], &y[..k * n]);
    rig.write(DATA, &floats(a));
    rig.write(2 << 20, &floats(b));
    let [m64, n64, k64] = [m, n, k].map(|size| size as u64);
    gpu.run(&Kernel::Matmul { a: VA + DATA, b: VA + (2 << 20), c: VA + (3 << 20), m: m64, n: n64, k: k64 });
    let mut c = vec![0f32; m * n];
    for row in 0..m {
        for column in 0..n {
            c[row * n + column] = (0..k).map(|depth| a[row * k + depth] * b[depth * n + column]).sum();
        }
    }
    assert_eq!(rig.read(3 << 20, m * n * 4), floats(&c));
    assert_eq!(rig.read((3 << 20) + (m * n * 4) as u64, 4), [0; 4]);
}
