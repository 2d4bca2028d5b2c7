// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The nine kernels: sizes, data, and plain models of their results.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of work-items, halves of words, results in single precision"
)]

use anyhow::{ensure, Result};

/// Bytes of the buffers.
pub const IN_BYTES: usize = 16 << 20;
pub const OUT_BYTES: usize = 4 << 20;

/// A kernel.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Forces between bodies
    Nbody,
    /// Rotations, sums, products and bits
    IntegerMix,
    /// A product of matrices through LDS
    TiledProduct,
    /// Mandelbrot's set
    Mandelbrot,
    /// Prices of options
    BlackScholes,
    /// A sum
    Reduction,
    /// How often each byte occurs
    Histogram,
    /// A matrix times a vector, in double precision
    Dgemv,
    /// Means of neighbours
    Stencil,
}

impl Work {
    pub const ALL: [Work; 9] = [
        Work::Nbody,
        Work::IntegerMix,
        Work::TiledProduct,
        Work::Mandelbrot,
        Work::BlackScholes,
        Work::Reduction,
        Work::Histogram,
        Work::Dgemv,
        Work::Stencil,
    ];

    /// Its name in the source.
    pub fn kernel(self) -> &'static str {
        match self {
            Work::Nbody => "nbody",
            Work::IntegerMix => "integer_mix",
            Work::TiledProduct => "tiled_product",
            Work::Mandelbrot => "mandelbrot",
            Work::BlackScholes => "black_scholes",
            Work::Reduction => "reduction",
            Work::Histogram => "histogram",
            Work::Dgemv => "dgemv",
            Work::Stencil => "stencil",
        }
    }

    /// What is to be reached.
    pub fn goal(self) -> &'static str {
        match self {
            Work::Nbody => "n-body: speed relative to PoCL",
            Work::IntegerMix => "integer mix: speed relative to PoCL",
            Work::TiledProduct => "tiled product: speed relative to PoCL",
            Work::Mandelbrot => "Mandelbrot: speed relative to PoCL",
            Work::BlackScholes => "Black-Scholes: speed relative to PoCL",
            Work::Reduction => "reduction: speed relative to PoCL",
            Work::Histogram => "histogram: speed relative to PoCL",
            Work::Dgemv => "matrix times vector: speed relative to PoCL",
            Work::Stencil => "stencil: speed relative to PoCL",
        }
    }

    /// The least ratio, with vectors of 64 bytes and with shorter ones.
    pub fn limit(self, wide: bool) -> f64 {
        let (narrow, broad) = match self {
            Work::Nbody => (1.2, 2.0),
            Work::IntegerMix => (3.0, 6.0),
            Work::TiledProduct => (1.3, 1.8),
            Work::Mandelbrot => (1.0, 1.5),
            Work::BlackScholes => (0.8, 1.0),
            Work::Reduction => (0.8, 0.8),
            Work::Histogram => (1.5, 1.5),
            Work::Dgemv => (2.0, 2.0),
            Work::Stencil => (0.2, 0.3),
        };
        if wide {
            broad
        } else {
            narrow
        }
    }
}

/// A kernel with its sizes.
pub struct Case {
    pub work: Work,
    pub grid: [u32; 3],
    pub group: [u16; 3],
    /// The kernel's arguments n and m.
    pub numbers: [u32; 2],
    pub out_bytes: usize,
}

/// What a result is to be: words to the bit, or numbers about so.
pub enum Expected {
    Words(Vec<u32>),
    About(Vec<f32>),
}

impl Case {
    pub fn of(work: Work, quick: bool) -> Case {
        let by = if quick { 4 } else { 1 };
        let line = |items: u32, numbers, words: u32| Case {
            work,
            grid: [items, 1, 1],
            group: [256, 1, 1],
            numbers,
            out_bytes: 4 * words as usize,
        };
        match work {
            Work::Nbody => line(4096 / by, [4096 / by, 0], 4 * 4096 / by),
            Work::IntegerMix => line(32_768 / by, [1000, 0], 32_768 / by),
            Work::TiledProduct => {
                let n = if quick { 128 } else { 384 };
                Case { grid: [n, n, 1], group: [16, 16, 1], ..line(0, [n, 0], n * n) }
            }
            Work::Mandelbrot => line(65_536 / by, [256, 500], 65_536 / by),
            Work::BlackScholes => line(65_536 / by, [65_536 / by, 16], 2 * 65_536 / by),
            Work::Reduction => line(64 * 256, [64, (4 << 20) / by], 64),
            Work::Histogram => line(64 * 256, [64, (4 << 20) / by], 256),
            Work::Dgemv => line(1024, [1024, 1024 / by], 2 * 1024),
            Work::Stencil => {
                let (w, h) = (1024, 1024 / by);
                Case { grid: [w, h, 1], group: [64, 4, 1], ..line(0, [w, h], w * h) }
            }
        }
    }

    /// Small whole numbers, whose sums are exact, for all but the options' data.
    pub fn input(&self) -> Vec<u8> {
        let word = |n: usize| (n as u32).wrapping_mul(2_654_435_761) >> 7;
        match self.work {
            Work::Histogram => (0..IN_BYTES / 4).flat_map(|n| word(n).to_le_bytes()).collect(),
            Work::Dgemv => (0..IN_BYTES / 8).flat_map(|n| (f64::from(word(n) % 1000) / 7.0).to_le_bytes()).collect(),
            Work::Nbody | Work::BlackScholes => {
                (0..IN_BYTES / 4).flat_map(|n| (0.5 + (word(n) % 1024) as f32 / 1024.0).to_le_bytes()).collect()
            }
            _ => (0..IN_BYTES / 4).flat_map(|n| ((word(n) % 7) as f32 - 3.0).to_le_bytes()).collect(),
        }
    }

    /// What the plain model makes of it.
    pub fn expected(&self, input: &[u8]) -> Expected {
        let [n, m] = self.numbers.map(|number| number as usize);
        let singles = || -> Vec<f32> { words(input).map(f32::from_bits).collect() };
        let bits = |values: Vec<f32>| Expected::Words(values.into_iter().map(f32::to_bits).collect());
        match self.work {
            Work::Nbody => Expected::About(forces(&singles(), n)),
            Work::IntegerMix => Expected::Words((0..self.grid[0]).map(|i| mixed(i, n)).collect()),
            Work::TiledProduct => {
                let data = singles();
                let (a, b) = data.split_at(n * n);
                let element = |i: usize| (0..n).fold(0.0, |sum, k| a[i / n * n + k].mul_add(b[k * n + i % n], sum));
                bits((0..n * n).map(element).collect())
            }
            Work::Mandelbrot => Expected::Words((0..self.grid[0] as usize).map(|i| escapes(i, n, m)).collect()),
            Work::BlackScholes => Expected::About(prices(&singles(), n, m)),
            Work::Reduction => {
                let data = singles();
                let mut sums = vec![0f32; n];
                data.iter().take(m).enumerate().for_each(|(i, value)| sums[i % (n * 256) / 256] += value);
                bits(sums)
            }
            Work::Histogram => {
                let mut bins = vec![0; 256];
                words(input).take(m).for_each(|word| bins[word as usize & 255] += 1);
                Expected::Words(bins)
            }
            Work::Dgemv => {
                let data: Vec<f64> = input
                    .chunks_exact(8)
                    .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap_or_default()))
                    .collect();
                let (a, x) = data.split_at(n * m);
                let row = |i: usize| (0..m).fold(0.0f64, |sum, k| a[k * n + i].mul_add(x[k], sum));
                let halves = |value: f64| [value.to_bits() as u32, (value.to_bits() >> 32) as u32];
                Expected::Words((0..n).flat_map(|i| halves(row(i))).collect())
            }
            Work::Stencil => {
                let data = singles();
                let point = |i: usize| {
                    let (x, y) = (i % n, i / n);
                    if x == 0 || y == 0 || x == n - 1 || y == m - 1 {
                        return 0.0;
                    }
                    0.2 * (data[i] + data[i - 1] + data[i + 1] + data[i - n] + data[i + n])
                };
                bits((0..n * m).map(point).collect())
            }
        }
    }

    /// Whether a result is right.
    pub fn check(&self, expected: &Expected, found: &[u8]) -> Result<()> {
        match expected {
            Expected::Words(expected) => {
                let wrong = words(found).zip(expected).position(|(one, two)| one != *two);
                ensure!(wrong.is_none(), "word {} of the result is wrong", wrong.unwrap_or(0));
            }
            Expected::About(expected) => {
                for (index, (one, two)) in words(found).map(f32::from_bits).zip(expected).enumerate() {
                    let near = (one - two).abs() <= 2e-3 * (1.0 + two.abs());
                    ensure!(near, "number {index} of the result is {one}, not {two}");
                }
            }
        }
        Ok(())
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap_or_default()))
}

fn forces(bodies: &[f32], n: usize) -> Vec<f32> {
    let force = |i: usize| {
        let mut sums = [0f64; 3];
        for j in 0..n {
            let d: [f64; 3] = std::array::from_fn(|axis| f64::from(bodies[4 * j + axis] - bodies[4 * i + axis]));
            let r = (d.iter().map(|d| d * d).sum::<f64>() + 0.01).sqrt().recip();
            let s = f64::from(bodies[4 * j + 3]) * r * r * r;
            sums.iter_mut().zip(d).for_each(|(sum, d)| *sum += d * s);
        }
        [sums[0] as f32, sums[1] as f32, sums[2] as f32, 0.0]
    };
    (0..n).flat_map(force).collect()
}

fn mixed(i: u32, rounds: usize) -> u32 {
    let (mut a, mut b) = (i.wrapping_mul(2_654_435_761), i ^ 0x9e37_79b9);
    for _ in 0..rounds {
        a = a.rotate_left(7) ^ b;
        b = (b >> 3).wrapping_add(a.wrapping_mul(5));
        a = a.wrapping_add((b & 0xffff) | a << 16);
        b ^= a.wrapping_mul(0x85eb_ca6b);
    }
    a ^ b
}

fn escapes(i: usize, columns: usize, most: usize) -> u32 {
    let step = 3.0f32 / 256.0;
    let cx = ((i % columns) as f32).mul_add(step, -2.0);
    let cy = ((i / columns) as f32).mul_add(step, -1.5);
    let (mut x, mut y, mut round) = (0f32, 0f32, 0);
    while (round as usize) < most && x.mul_add(x, y * y) < 4.0 {
        let next = x.mul_add(x, (-y).mul_add(y, cx));
        y = (2.0 * x).mul_add(y, cy);
        x = next;
        round += 1;
    }
    round
}

fn normal(d: f64) -> f64 {
    let k = (0.231_641_9 * d.abs() + 1.0).recip();
    let coefficients = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_53];
    let sum = coefficients.into_iter().fold(0.0, |sum, coefficient| sum * k + coefficient);
    let c = 0.398_942_28 * (-0.5 * d * d).exp() * (k * sum);
    if d > 0.0 {
        1.0 - c
    } else {
        c
    }
}

fn prices(data: &[f32], n: usize, rounds: usize) -> Vec<f32> {
    let mut all = vec![0f32; 2 * n];
    for i in 0..n {
        let [stock, strike, mut years] = [0, 1, 2].map(|part| f64::from(data[part * n + i]));
        for _ in 0..rounds {
            let root = 0.3 * years.sqrt();
            let d1 = ((stock / strike).ln() + 0.065 * years) / root;
            let discount = (-0.02 * years).exp();
            let (c1, c2) = (normal(d1), normal(d1 - root));
            let price = stock * c1 - strike * discount * c2;
            all[i] = price as f32;
            all[n + i] = (strike * discount * (1.0 - c2) - stock * (1.0 - c1)) as f32;
            years += 0.01 * price.abs();
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_and_a_number_too_far_are_noticed() {
        let case = Case::of(Work::Histogram, true);
        let expected = case.expected(&case.input());
        let Expected::Words(words) = &expected else { panic!("words") };
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(case.check(&expected, &bytes).is_ok());
        bytes[17] ^= 1;
        assert!(case.check(&expected, &bytes).is_err());
        let about = Expected::About(vec![1.0, 2.0]);
        let bytes = |values: [f32; 2]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert!(case.check(&about, &bytes([1.0001, 2.0])).is_ok());
        assert!(case.check(&about, &bytes([1.0, 2.1])).is_err());
        assert!(case.check(&about, &bytes([1.0, f32::NAN])).is_err());
    }
}
