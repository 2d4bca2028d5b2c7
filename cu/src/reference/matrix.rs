// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of CDNA: D = A * B + C over all lanes, whatever EXEC says.
//!
//! Registers: lane `l` of A holds row `l % M` of block `l / M % blocks`, and of that row the
//! elements that follow `l / (M * blocks)` times as many as a lane has. B is the same with columns.
//! Where C and D lie is in [`Shape::place`].
//!
//! Sums: single and double precision are a chain of fused operations over k. CDNA2 adds products of
//! halves and bfloat16 in groups as a tree, rounds each step to single precision, and knows no
//! denormals. CDNA3 aligns the terms of a group to the largest exponent and cuts them off, then
//! rounds once. Both follow published models that were compared with hardware. MODE changes nothing
//! of it.

use super::convert::{Tiny, BF8, FP8};
use super::float::{Format, Fpu, Number, BF16, F16, F32, F64};
use super::kind::{low32, sign_extend};
use super::operand::{self, row, whole};
use crate::exit::Exit;
use crate::few::Few;
use crate::group::Group;
use crate::wave::{Row, Wave};
use vkfd_isa::{Inst, Mods, Op, Operand, Target};

/// What A and B are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F64,
    F32,
    Xf32,
    F16,
    /// bfloat16 in groups of two on CDNA2.
    Bf16,
    /// bfloat16 in groups of four.
    Bf16K,
    Fp8,
    Bf8,
    I8,
}

impl Element {
    const fn bits(self) -> usize {
        match self {
            Element::F64 => 64,
            Element::F32 | Element::Xf32 => 32,
            Element::F16 | Element::Bf16 | Element::Bf16K => 16,
            Element::Fp8 | Element::Bf8 | Element::I8 => 8,
        }
    }
}

/// A matrix operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Rows of A and columns of B.
    pub(crate) m: usize,
    /// Length of the sums.
    pub(crate) k: usize,
    /// Independent products.
    pub(crate) blocks: usize,
    pub(crate) a: Element,
    pub(crate) b: Element,
    /// A has two of each four elements; the third source says which.
    pub(crate) sparse: bool,
}

/// The shape of a matrix operation.
pub(crate) fn shape(op: Op) -> Option<Shape> {
    use Element::{Bf16, Bf16K, Bf8, Fp8, Xf32, F16, F32, F64, I8};
    let of = |m, k, blocks, a| Some(Shape { m, k, blocks, a, b: a, sparse: false });
    let two = |m, k, a, b| Some(Shape { m, k, blocks: 1, a, b, sparse: false });
    let sparse = |m, k, a, b| Some(Shape { m, k, blocks: 1, a, b, sparse: true });
    match op {
        Op::VMfmaF32_32x32x1f32 => of(32, 1, 2, F32),
        Op::VMfmaF32_16x16x1f32 => of(16, 1, 4, F32),
        Op::VMfmaF32_4x4x1f32 => of(4, 1, 16, F32),
        Op::VMfmaF32_32x32x2f32 => of(32, 2, 1, F32),
        Op::VMfmaF32_16x16x4f32 => of(16, 4, 1, F32),
        Op::VMfmaF32_32x32x4f16 => of(32, 4, 2, F16),
        Op::VMfmaF32_16x16x4f16 => of(16, 4, 4, F16),
        Op::VMfmaF32_4x4x4f16 => of(4, 4, 16, F16),
        Op::VMfmaF32_32x32x8f16 => of(32, 8, 1, F16),
        Op::VMfmaF32_16x16x16f16 => of(16, 16, 1, F16),
        Op::VMfmaF32_32x32x2bf16 => of(32, 2, 2, Bf16),
        Op::VMfmaF32_16x16x2bf16 => of(16, 2, 4, Bf16),
        Op::VMfmaF32_4x4x2bf16 => of(4, 2, 16, Bf16),
        Op::VMfmaF32_32x32x4bf16 => of(32, 4, 1, Bf16),
        Op::VMfmaF32_16x16x8bf16 => of(16, 8, 1, Bf16),
        Op::VMfmaF32_32x32x4bf16_1k => of(32, 4, 2, Bf16K),
        Op::VMfmaF32_16x16x4bf16_1k => of(16, 4, 4, Bf16K),
        Op::VMfmaF32_4x4x4bf16_1k => of(4, 4, 16, Bf16K),
        Op::VMfmaF32_32x32x8bf16_1k => of(32, 8, 1, Bf16K),
        Op::VMfmaF32_16x16x16bf16_1k => of(16, 16, 1, Bf16K),
        Op::VMfmaI32_32x32x4i8 => of(32, 4, 2, I8),
        Op::VMfmaI32_16x16x4i8 => of(16, 4, 4, I8),
        Op::VMfmaI32_4x4x4i8 => of(4, 4, 16, I8),
        Op::VMfmaI32_32x32x8i8 => of(32, 8, 1, I8),
        Op::VMfmaI32_16x16x16i8 => of(16, 16, 1, I8),
        Op::VMfmaF64_16x16x4f64 => of(16, 4, 1, F64),
        Op::VMfmaF64_4x4x4f64 => of(4, 4, 4, F64),
        // CDNA3.
        Op::VMfmaI32_32x32x16I8 => of(32, 16, 1, I8),
        Op::VMfmaI32_16x16x32I8 => of(16, 32, 1, I8),
        Op::VMfmaF32_16x16x8Xf32 => of(16, 8, 1, Xf32),
        Op::VMfmaF32_32x32x4Xf32 => of(32, 4, 1, Xf32),
        Op::VMfmaF32_16x16x32Bf8Bf8 => two(16, 32, Bf8, Bf8),
        Op::VMfmaF32_16x16x32Bf8Fp8 => two(16, 32, Bf8, Fp8),
        Op::VMfmaF32_16x16x32Fp8Bf8 => two(16, 32, Fp8, Bf8),
        Op::VMfmaF32_16x16x32Fp8Fp8 => two(16, 32, Fp8, Fp8),
        Op::VMfmaF32_32x32x16Bf8Bf8 => two(32, 16, Bf8, Bf8),
        Op::VMfmaF32_32x32x16Bf8Fp8 => two(32, 16, Bf8, Fp8),
        Op::VMfmaF32_32x32x16Fp8Bf8 => two(32, 16, Fp8, Bf8),
        Op::VMfmaF32_32x32x16Fp8Fp8 => two(32, 16, Fp8, Fp8),
        Op::VSmfmacF32_16x16x32F16 => sparse(16, 32, F16, F16),
        Op::VSmfmacF32_32x32x16F16 => sparse(32, 16, F16, F16),
        Op::VSmfmacF32_16x16x32Bf16 => sparse(16, 32, Bf16K, Bf16K),
        Op::VSmfmacF32_32x32x16Bf16 => sparse(32, 16, Bf16K, Bf16K),
        Op::VSmfmacI32_16x16x64I8 => sparse(16, 64, I8, I8),
        Op::VSmfmacI32_32x32x32I8 => sparse(32, 32, I8, I8),
        Op::VSmfmacF32_16x16x64Bf8Bf8 => sparse(16, 64, Bf8, Bf8),
        Op::VSmfmacF32_16x16x64Bf8Fp8 => sparse(16, 64, Bf8, Fp8),
        Op::VSmfmacF32_16x16x64Fp8Bf8 => sparse(16, 64, Fp8, Bf8),
        Op::VSmfmacF32_16x16x64Fp8Fp8 => sparse(16, 64, Fp8, Fp8),
        Op::VSmfmacF32_32x32x32Bf8Bf8 => sparse(32, 32, Bf8, Bf8),
        Op::VSmfmacF32_32x32x32Bf8Fp8 => sparse(32, 32, Bf8, Fp8),
        Op::VSmfmacF32_32x32x32Fp8Bf8 => sparse(32, 32, Fp8, Bf8),
        Op::VSmfmacF32_32x32x32Fp8Fp8 => sparse(32, 32, Fp8, Fp8),
        _ => None,
    }
}

impl Shape {
    /// Elements of a row that one lane of B holds; A has as many, or half of them.
    pub(crate) const fn in_lane(&self) -> usize {
        self.k * self.m * self.blocks / 64
    }

    /// Elements of a row that one lane of A holds.
    pub(crate) const fn in_lane_of_a(&self) -> usize {
        if self.sparse {
            self.in_lane() / 2
        } else {
            self.in_lane()
        }
    }

    /// Lane and position in it of the `k`th element that a sparse row `i` has.
    pub(crate) const fn sparse_source(&self, i: usize, k: usize) -> (usize, usize) {
        (i + self.m * (k / self.in_lane_of_a()), k % self.in_lane_of_a())
    }

    /// Which element of a dense row that one is: the place in its four.
    pub(crate) const fn dense(&self, k: usize, place: usize) -> usize {
        self.in_lane() * (k / self.in_lane_of_a()) + 4 * (k % self.in_lane_of_a() / 2) + place
    }

    /// The first bit of the places in a lane's word: two bits for each element, in the part of the
    /// word that the instruction names.
    pub(crate) const fn first_place(&self, mods: Mods) -> usize {
        let bits = 2 * self.in_lane_of_a();
        if mods.cbsz == 0 {
            mods.abid as usize % (32 / bits) * bits
        } else {
            0
        }
    }

    /// Elements of D in a lane.
    pub(crate) const fn results(&self) -> usize {
        self.m * self.m * self.blocks / 64
    }

    /// Registers of D.
    const fn result_words(&self) -> usize {
        self.results() * if matches!(self.a, Element::F64) { 2 } else { 1 }
    }

    const fn words(elements: usize, element: Element) -> usize {
        (elements * element.bits()).div_ceil(32)
    }

    /// Lane and position in it of element `k` of row `i` of block `block`.
    pub(crate) const fn source(&self, i: usize, k: usize, block: usize) -> (usize, usize) {
        let in_lane = self.in_lane();
        (i + self.m * block + self.m * self.blocks * (k / in_lane), k % in_lane)
    }

    /// Row, column and block of result `at` in lane `lane`.
    pub(crate) const fn place(&self, lane: usize, at: usize) -> (usize, usize, usize) {
        match (self.m, self.a) {
            (4, Element::F64) => (lane / 16, lane % 4, lane / 4 % 4),
            (_, Element::F64) => (4 * at + lane / 16, lane % 16, 0),
            (4, _) => (at, lane % 4, lane / 4),
            (16, _) => (4 * (lane / 16) + at % 4, lane % 16, at / 4),
            _ => (8 * (at % 16 / 4) + 4 * (lane / 32) + at % 4, lane % 32, at / 16),
        }
    }
}

/// Rows that a source takes, or a constant in all of them.
struct Source {
    rows: Few<Row>,
}

impl Source {
    fn read(wave: &Wave, group: &Group, operand: Operand, words: usize, double: bool) -> Result<Source, Exit> {
        let count = u16::try_from(words).unwrap_or(u16::MAX);
        if matches!(operand, Operand::Vgpr(_) | Operand::Agpr(_)) {
            let first = row(wave, operand, count)?;
            return Ok(Source { rows: (first..first + words).map(|at| whole(wave, at)).collect() });
        }
        let kind = if double { super::kind::Kind::F64 } else { super::kind::Kind::F32 };
        let value = operand::uniform(wave, group, operand, kind)?;
        let word = |n: usize| low32(if double && n % 2 == 1 { value >> 32 } else { value });
        Ok(Source { rows: (0..words).map(|n| Row([word(n); 64])).collect() })
    }

    fn word(&self, lane: usize, n: usize) -> u64 {
        self.rows.get(n).and_then(|row| row.0.get(lane)).copied().unwrap_or(0).into()
    }

    /// Element `n` of `bits` bits in a lane.
    fn element(&self, lane: usize, n: usize, bits: usize) -> u64 {
        if bits == 64 {
            return self.word(lane, 2 * n) | self.word(lane, 2 * n + 1) << 32;
        }
        let in_word = 32 / bits;
        self.word(lane, n / in_word) >> (n % in_word * bits) & ((1 << bits) - 1)
    }
}

/// The lane of B that a lane's values come from.
fn permuted(blgp: u8, lane: usize) -> usize {
    match blgp {
        1 => lane % 32,
        2 => lane % 32 + 32,
        3 => (lane + 16) % 64,
        4..=7 => lane % 16 + 16 * usize::from(blgp - 4),
        _ => lane,
    }
}

/// Executes a matrix operation; nothing if it is none.
pub(crate) fn execute(inst: &Inst, wave: &mut Wave, group: &Group) -> Option<Result<(), Exit>> {
    if let Some(result) = super::wmma::execute(inst, wave, group) {
        return Some(result);
    }
    shape(inst.op).map(|shape| run(&shape, inst, wave, group))
}

fn run(shape: &Shape, inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let product = Product::read(shape, inst, wave, group)?;
    let words = shape.result_words();
    let dst = row(wave, inst.dst, u16::try_from(words).unwrap_or(u16::MAX))?;
    let mut out: Few<Row> = Few::filled(Row::ZERO, words);
    product.put_all(&mut out, |_, _| true);
    for (n, &row) in out.iter().enumerate() {
        if let Some(slot) = wave.rows.get_mut(dst + n) {
            *slot = row;
        }
    }
    Ok(())
}

/// A dense matrix operation without modifiers, by its rows of registers.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Dense {
    pub(crate) shape: Shape,
    /// The first rows of A, B and D.
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) d: usize,
    /// C's first row, or its value in all lanes.
    pub(crate) c: Result<usize, u32>,
}

#[cfg(target_arch = "x86_64")]
impl Dense {
    /// Computes the results in some rows and blocks of D, which has no register in common with A
    /// and B. All other results stay as they are.
    #[cold]
    pub(crate) fn part(&self, wave: &mut Wave, is_wanted: impl Fn(usize, usize) -> bool) {
        let shape = &self.shape;
        let rows =
            |first: usize, words: usize| Source { rows: (first..first + words).map(|at| whole(wave, at)).collect() };
        let words = Shape::words(shape.in_lane(), shape.a);
        let product = Product {
            shape,
            mods: Mods::default(),
            a: rows(self.a, words),
            b: rows(self.b, words),
            c: match self.c {
                Ok(first) => rows(first, shape.result_words()),
                Err(value) => Source { rows: Few::filled(Row([value; 64]), shape.result_words()) },
            },
            index: None,
            sum: Sum::new(wave.target, shape),
            negates: false,
        };
        let Some(out) = wave.rows.get_mut(self.d..self.d + shape.result_words()) else { return };
        product.put_all(out, is_wanted);
    }
}

/// An instruction's operands.
struct Product<'a> {
    shape: &'a Shape,
    mods: Mods,
    a: Source,
    b: Source,
    c: Source,
    /// Which elements a sparse row has.
    index: Option<Source>,
    sum: Sum,
    /// CDNA3's double precision has negations where the others permute.
    negates: bool,
}

impl Product<'_> {
    fn read<'a>(shape: &'a Shape, inst: &Inst, wave: &Wave, group: &Group) -> Result<Product<'a>, Exit> {
        let [a, b, c] = inst.src;
        let double = shape.a == Element::F64;
        let a = Source::read(wave, group, a, Shape::words(shape.in_lane_of_a(), shape.a), double)?;
        let b = Source::read(wave, group, b, Shape::words(shape.in_lane(), shape.b), double)?;
        let (c, index) =
            if shape.sparse { (inst.dst, Some(Source::read(wave, group, c, 1, false)?)) } else { (c, None) };
        let c = Source::read(wave, group, c, shape.result_words(), double)?;
        // NEW TARGET: whether double precision has negations
        let negates = double && wave.target == Target::Gfx942;
        Ok(Product { shape, mods: inst.mods, a, b, c, index, sum: Sum::new(wave.target, shape), negates })
    }

    /// Computes the results in wanted rows and blocks, and puts them among all results.
    fn put_all(&self, out: &mut [Row], is_wanted: impl Fn(usize, usize) -> bool) {
        for lane in 0..64 {
            for at in 0..self.shape.results() {
                let (row, _, block) = self.shape.place(lane, at);
                if is_wanted(row, block) {
                    self.put(lane, at, out);
                }
            }
        }
    }

    /// Computes result `at` of a lane, and puts it among all results.
    fn put(&self, at_lane: usize, at: usize, out: &mut [Row]) {
        let Product { shape, mods, negates, .. } = *self;
        let double = shape.a == Element::F64;
        let (i, j, block) = shape.place(at_lane, at);
        let width = 1 << mods.cbsz.min(4);
        let a_block = if double || shape.sparse || width == 1 {
            block
        } else {
            ((block & !(width - 1)) + usize::from(mods.abid)) & (shape.blocks - 1)
        };
        let mut terms: Few<(u64, u64)> = Few::new();
        for k in 0..if shape.sparse { shape.k / 2 } else { shape.k } {
            let (a_bits, k) = match &self.index {
                None => {
                    let (lane, n) = shape.source(i, k, a_block);
                    (self.a.element(lane, n, shape.a.bits()), k)
                }
                Some(index) => sparse_element(shape, &self.a, index, mods, i, k),
            };
            let (lane, n) = shape.source(j, k, block);
            let lane = if negates { lane } else { permuted(mods.blgp, lane) };
            terms.push((a_bits, self.b.element(lane, n, shape.b.bits())));
        }
        let c_bits = self.c.element(at_lane, at, if double { 64 } else { 32 });
        let negate = |n: u8| negates && mods.blgp >> n & 1 == 1;
        for (a, b) in terms.iter_mut() {
            *a ^= if negate(0) { F64.sign_bit() } else { 0 };
            *b ^= if negate(1) { F64.sign_bit() } else { 0 };
        }
        let c_bits = c_bits ^ if negate(2) { F64.sign_bit() } else { 0 };
        let result = self.sum.of(&terms, c_bits);
        let first = if double { 2 * at } else { at };
        for (n, word) in [low32(result), low32(result >> 32)].into_iter().enumerate().take(1 + usize::from(double)) {
            if let Some(slot) = out.get_mut(first + n).and_then(|row| row.0.get_mut(at_lane)) {
                *slot = word;
            }
        }
    }
}

/// Element `k` of a sparse row, and its index in the dense row.
fn sparse_element(shape: &Shape, a: &Source, index: &Source, mods: Mods, i: usize, k: usize) -> (u64, usize) {
    let (lane, n) = shape.sparse_source(i, k);
    let place = index.word(lane, 0) >> (shape.first_place(mods) + 2 * n) & 3;
    (a.element(lane, n, shape.a.bits()), shape.dense(k, usize::try_from(place).unwrap_or(0)))
}

/// How the products are added.
pub(crate) struct Sum {
    a: Element,
    b: Element,
    fused: bool,
    group: usize,
}

impl Sum {
    pub(crate) fn new(target: Target, shape: &Shape) -> Sum {
        // NEW TARGET: how products are added
        let fused = target == Target::Gfx942;
        let group = match shape.a {
            Element::F16 | Element::Bf16 | Element::Bf16K if fused => 8,
            Element::F16 | Element::Bf16K => 4,
            Element::Bf16 => 2,
            Element::Xf32 => 4,
            Element::Fp8 | Element::Bf8 => 16,
            _ => 1,
        };
        Sum { a: shape.a, b: shape.b, fused, group }
    }

    /// The sum of the products and `c`.
    pub(crate) fn of(&self, terms: &[(u64, u64)], c: u64) -> u64 {
        match self.a {
            Element::F64 => terms.iter().fold(c, |sum, &(a, b)| Fpu::exact(F64).fma(a, b, sum)),
            Element::F32 => terms.iter().fold(c, |sum, &(a, b)| Fpu::exact(F32).fma(a, b, sum)),
            Element::I8 => {
                let total: i64 = terms.iter().map(|&(a, b)| sign_extend(a, 8) * sign_extend(b, 8)).sum();
                low32((total as u64).wrapping_add(c)).into()
            }
            Element::F16 | Element::Bf16 | Element::Bf16K if !self.fused => {
                terms.chunks(self.group).fold(flushed(F32, c), |sum, group| tree_step(sum, self.tree(group)))
            }
            _ => terms.chunks(self.group).fold(c, |sum, group| self.aligned(group, sum)),
        }
    }

    /// CDNA2: the products of a group as a tree.
    fn tree(&self, group: &[(u64, u64)]) -> u64 {
        let format = if self.a == Element::F16 { F16 } else { BF16 };
        let single = Fpu::exact(F32).flushing();
        match group {
            [] => 0,
            &[(a, b)] => {
                let wide = |bits| Fpu::exact(F32).convert(Fpu::exact(format), flushed(format, bits));
                single.fma(wide(a), wide(b), 0)
            }
            _ => {
                let (left, right) = group.split_at(group.len() / 2);
                single.add(self.tree(left), self.tree(right))
            }
        }
    }

    /// CDNA3: the products of a group and the sum so far, aligned to the largest exponent.
    fn aligned(&self, group: &[(u64, u64)], c: u64) -> u64 {
        let terms: Few<(Term, Term)> =
            group.iter().map(|&(a, b)| (Term::new(self.a, a), Term::new(self.b, b))).collect();
        if let Some(special) = special(&terms, c) {
            return special;
        }
        let products: Few<Fixed> = terms.iter().map(|&(a, b)| Fixed::product(a, b)).collect();
        let (sum, exp) = if self.group == 16 {
            // 8-bit elements: even and odd ones apart, then both together.
            let part = |odd: usize| align(products.iter().skip(odd).step_by(2));
            let ((even, e0), (odd, e1)) = (part(0), part(1));
            let exp = e0.max(e1);
            (floor_shift(even, e0 - exp) + floor_shift(odd, e1 - exp), exp)
        } else {
            align(products.iter())
        };
        let addend = Fixed::product(Term::new(Element::F32, c), Term::ONE);
        let top = exp.max(addend.exp);
        // The sum keeps 31 bits of fraction, the addend 24.
        let sum = floor_shift(sum << 7, exp - top);
        let addend = if self.group == 16 && addend.exp < top - 25 { 0 } else { addend.fraction(24, top, true) << 7 };
        let total = sum + addend;
        Fpu::exact(F32).round(Number { exp: top - 31, ..Number::of(total) })
    }
}

/// CDNA2's last addition of a group.
fn tree_step(sum: u64, group: u64) -> u64 {
    Fpu::exact(F32).flushing().add(sum, group)
}

/// Denormals are positive zeros.
fn flushed(format: Format, bits: u64) -> u64 {
    if format.is_denormal(bits) {
        0
    } else {
        bits
    }
}

/// A factor: a significand with a point, so that a normal number's is between 1 and 2, and an
/// exponent.
#[derive(Clone, Copy, Debug)]
enum Term {
    Finite { negative: bool, sig: u128, man: i32, exp: i32 },
    Infinite(bool),
    Nan,
}

impl Term {
    const ONE: Term = Term::Finite { negative: false, sig: 1, man: 0, exp: 0 };

    fn new(element: Element, bits: u64) -> Term {
        let of = |f: Format, bits: u64| {
            if f.is_nan(bits) {
                return Term::Nan;
            }
            if f.is_infinite(bits) {
                return Term::Infinite(f.negative(bits));
            }
            let n = f.number(bits);
            let man = f.man as i32;
            Term::Finite { negative: n.negative, sig: n.sig, man, exp: n.exp + man }
        };
        let tiny = |tiny: Tiny, man: i32| match tiny.number(bits) {
            None => Term::Nan,
            Some(n) => Term::Finite { negative: n.negative, sig: n.sig, man, exp: n.exp + man },
        };
        match element {
            Element::F16 => of(F16, bits),
            Element::Bf16 | Element::Bf16K => of(BF16, bits),
            // The 13 lowest bits are cut off.
            Element::Xf32 => of(F32, bits & !0x1fff),
            Element::Fp8 => tiny(FP8, 3),
            Element::Bf8 => tiny(BF8, 2),
            _ => of(F32, bits),
        }
    }
}

/// A product as significand, bits behind its point, and exponent; zero has the least exponent.
#[derive(Clone, Copy)]
struct Fixed {
    negative: bool,
    sig: u128,
    man: i32,
    exp: i32,
}

impl Fixed {
    fn product(a: Term, b: Term) -> Fixed {
        match (a, b) {
            (Term::Finite { negative: n, sig: s, man: m, exp: e }, Term::Finite { negative, sig, man, exp })
                if s != 0 && sig != 0 =>
            {
                Fixed { negative: n != negative, sig: s * sig, man: m + man, exp: e + exp }
            }
            _ => Fixed { negative: false, sig: 0, man: 0, exp: -999 },
        }
    }

    /// In units of `2^(top - bits)`, cut off towards zero, or downwards.
    fn fraction(&self, bits: i32, top: i32, down: bool) -> i128 {
        let by = bits - self.man + self.exp - top;
        let sig = i128::try_from(self.sig).unwrap_or(0);
        let value = if self.negative { -sig } else { sig };
        if down {
            floor_shift(value, by)
        } else if self.negative {
            -floor_shift(sig, by)
        } else {
            floor_shift(sig, by)
        }
    }
}

fn floor_shift(value: i128, by: i32) -> i128 {
    if by >= 0 {
        value << by.min(60)
    } else {
        value >> (-by).min(127)
    }
}

/// The sum of products in units of 24 bits under the largest exponent, each cut off; and that
/// exponent.
fn align<'a>(products: impl Iterator<Item = &'a Fixed> + Clone) -> (i128, i32) {
    let top = products.clone().map(|product| product.exp).max().unwrap_or(-999);
    (products.map(|product| product.fraction(24, top, false)).sum(), top)
}

/// Results with infinities and NaNs.
fn special(terms: &[(Term, Term)], c: u64) -> Option<u64> {
    let zero = |term: Term| matches!(term, Term::Finite { sig: 0, .. });
    let (mut up, mut down, mut nan) = (false, false, F32.is_nan(c));
    if F32.is_infinite(c) {
        *if F32.negative(c) { &mut down } else { &mut up } = true;
    }
    for &(a, b) in terms {
        let sign = |term| match term {
            Term::Finite { negative, .. } | Term::Infinite(negative) => negative,
            Term::Nan => false,
        };
        match (a, b) {
            (Term::Nan, _) | (_, Term::Nan) => nan = true,
            (Term::Infinite(_), other) | (other, Term::Infinite(_)) if zero(other) => nan = true,
            (Term::Infinite(_), _) | (_, Term::Infinite(_)) => {
                *if sign(a) != sign(b) { &mut down } else { &mut up } = true;
            }
            _ => {
                // A product beyond single precision's range counts as infinite.
                let product = Fixed::product(a, b);
                let top = 127 - product.sig.leading_zeros() as i32 - product.man + product.exp;
                if product.sig != 0 && top >= 128 {
                    *if product.negative { &mut down } else { &mut up } = true;
                }
            }
        }
    }
    match (nan, up, down) {
        (true, ..) | (_, true, true) => Some(F32.invalid()),
        (_, true, _) => Some(F32.infinity()),
        (.., true) => Some(F32.signed(F32.infinity(), true)),
        _ => None,
    }
}
