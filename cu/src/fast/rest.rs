// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a handler of `vector` leaves: another MODE, and lanes that its operation does not compute.
//!
//! Each handler has a second one here, which does the whole instruction by vectors as far as
//! possible. Denormals that MODE loses are made zero before and behind the operation. NaNs of
//! minima, maxima and halves are picked as the reference engine picks them. For the remaining lanes
//! it asks the reference engine's function of one lane. So a NaN costs little more than a number.
//!
//! Vectors are for a MODE with IEEE, in which NaNs become quiet. Without it every lane is computed
//! by the function, because a signalling NaN passes as it is.

use super::operation::{low_nan, tiny, vectors, Binary, Check, Ternary, Unary, LEAST};
use super::simd::{Simd, QUIET};
use super::step::{Cx, Flow, Run, Step};
use crate::reference::Function;
use crate::wave::{Mode, Row};
use std::marker::PhantomData;
use vkfd_isa::{Op, Operand};

/// What is set in a half that is NaN and is handed on.
const QUIET_HALF: u32 = 1 << 9;

/// A half that an invalid operation makes.
const INVALID_HALF: u32 = 0xfe00;

/// A low half, which if it is NaN is the first of the sources' low halves that is.
#[inline(always)]
unsafe fn handed_on<S: Simd, const N: usize>(value: S::V, sources: [S::V; N]) -> S::V {
    // SAFETY: the caller's, as in all of these.
    unsafe {
        let mut nan = S::splat(INVALID_HALF);
        for n in (0..N).rev() {
            let quiet = S::or(S::and(sources[n], S::splat(0xffff)), S::splat(QUIET_HALF));
            nan = S::select(low_nan::<S>(sources[n]), nan, quiet);
        }
        S::select(low_nan::<S>(value), value, nan)
    }
}

#[inline(always)]
unsafe fn above<S: Simd, const N: usize>(sources: [S::V; N]) -> [S::V; N] {
    let mut halves = sources;
    for n in 0..N {
        // SAFETY: as above.
        halves[n] = unsafe { S::shr(sources[n], S::splat(16)) };
    }
    halves
}

/// The same of both halves.
#[inline(always)]
unsafe fn both_handed_on<S: Simd, const N: usize>(value: S::V, sources: [S::V; N]) -> S::V {
    // SAFETY: as above.
    unsafe {
        let low = handed_on::<S, N>(S::and(value, S::splat(0xffff)), sources);
        let high = handed_on::<S, N>(S::shr(value, S::splat(16)), above::<S, N>(sources));
        S::or(low, S::shl(high, S::splat(16)))
    }
}

/// All ones where the bit that quiets is not set.
#[inline(always)]
unsafe fn silent<S: Simd>(a: S::V, quiet: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::eq(S::and(a, quiet), S::splat(0)) }
}

/// A minimum or maximum of two, of which `value` is that of numbers: with a NaN it is the other
/// one.
#[inline(always)]
unsafe fn extreme<S: Simd>(value: S::V, [a, b]: [S::V; 2]) -> S::V {
    // SAFETY: as above.
    unsafe {
        let (nan_a, nan_b) = (S::unordered(a, a), S::unordered(b, b));
        let value = S::select(nan_b, value, a);
        let value = S::select(nan_a, value, b);
        let quiet = S::splat(QUIET);
        let signals = [S::and(nan_a, silent::<S>(a, quiet)), S::and(nan_b, silent::<S>(b, quiet))];
        let value = S::select(signals[1], value, S::or(b, quiet));
        S::select(signals[0], value, S::or(a, quiet))
    }
}

/// The same of low halves.
#[inline(always)]
unsafe fn extreme_half<S: Simd>(value: S::V, [a, b]: [S::V; 2]) -> S::V {
    // SAFETY: as above.
    unsafe {
        let (a, b) = (S::and(a, S::splat(0xffff)), S::and(b, S::splat(0xffff)));
        let (nan_a, nan_b) = (low_nan::<S>(a), low_nan::<S>(b));
        let value = S::select(nan_b, value, a);
        let value = S::select(nan_a, value, b);
        let quiet = S::splat(QUIET_HALF);
        let signals = [S::and(nan_a, silent::<S>(a, quiet)), S::and(nan_b, silent::<S>(b, quiet))];
        let value = S::select(signals[1], value, S::or(b, quiet));
        S::select(signals[0], value, S::or(a, quiet))
    }
}

/// An operation with so many sources, however they are counted elsewhere.
trait Operation<const N: usize>: 'static {
    const CHECK: Check;
    unsafe fn value<S: Simd>(sources: [S::V; N]) -> S::V;
    unsafe fn bad<S: Simd>(sources: [S::V; N]) -> S::V;
    /// A minimum or maximum of two.
    #[inline(always)]
    unsafe fn picked<S: Simd>(value: S::V, sources: [S::V; N]) -> Option<S::V> {
        let _ = (value, sources);
        None
    }
}

struct One<O>(PhantomData<O>);
struct Two<O>(PhantomData<O>);
struct Three<O>(PhantomData<O>);

impl<O: Unary> Operation<1> for One<O> {
    const CHECK: Check = O::CHECK;
    #[inline(always)]
    unsafe fn value<S: Simd>([a]: [S::V; 1]) -> S::V {
        // SAFETY: as above.
        unsafe { O::f::<S>(a) }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>([a]: [S::V; 1]) -> S::V {
        // SAFETY: as above.
        unsafe { O::bad::<S>(a) }
    }
}

impl<O: Binary> Operation<2> for Two<O> {
    const CHECK: Check = O::CHECK;
    #[inline(always)]
    unsafe fn value<S: Simd>([a, b]: [S::V; 2]) -> S::V {
        // SAFETY: as above.
        unsafe { O::f::<S>(a, b) }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>(_: [S::V; 2]) -> S::V {
        // SAFETY: as above.
        unsafe { S::splat(0) }
    }
    #[inline(always)]
    unsafe fn picked<S: Simd>(value: S::V, sources: [S::V; 2]) -> Option<S::V> {
        // SAFETY: as above.
        unsafe {
            Some(match O::CHECK {
                Check::Extreme => extreme::<S>(value, sources),
                Check::HalfExtreme => extreme_half::<S>(value, sources),
                Check::HalvesExtreme => {
                    let low = extreme_half::<S>(S::and(value, S::splat(0xffff)), sources);
                    let high = extreme_half::<S>(S::shr(value, S::splat(16)), above::<S, 2>(sources));
                    S::or(low, S::shl(high, S::splat(16)))
                }
                _ => return None,
            })
        }
    }
}

impl<O: Ternary> Operation<3> for Three<O> {
    const CHECK: Check = O::CHECK;
    #[inline(always)]
    unsafe fn value<S: Simd>([a, b, c]: [S::V; 3]) -> S::V {
        // SAFETY: as above.
        unsafe { O::f::<S>(a, b, c) }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>([a, b, c]: [S::V; 3]) -> S::V {
        // SAFETY: as above.
        unsafe { O::bad::<S>(a, b, c) }
    }
}

/// What becomes of singles that are denormal: all ones where MODE makes them zero.
#[derive(Clone, Copy)]
pub(super) struct Lost<V> {
    before: V,
    behind: V,
}

impl<V: Copy> Lost<V> {
    #[inline(always)]
    pub(super) unsafe fn of<S: Simd<V = V>>(mode: Mode) -> Lost<V> {
        let all = |lost: bool| if lost { u32::MAX } else { 0 };
        // SAFETY: as above.
        unsafe { Lost { before: S::splat(all(!mode.denorm32_in())), behind: S::splat(all(!mode.denorm32_out())) } }
    }

    /// None is kept.
    #[inline(always)]
    pub(super) unsafe fn all<S: Simd<V = V>>() -> Lost<V> {
        // SAFETY: as above.
        unsafe { Lost { before: S::splat(u32::MAX), behind: S::splat(u32::MAX) } }
    }

    /// A source.
    #[inline(always)]
    pub(super) unsafe fn source<S: Simd<V = V>>(self, a: V) -> V {
        // SAFETY: as above.
        unsafe { flushed::<S>(a, self.before) }
    }

    /// A result, and where it may have been denormal before it was rounded.
    #[inline(always)]
    pub(super) unsafe fn result<S: Simd<V = V>>(self, a: V) -> (V, V) {
        // SAFETY: as above.
        unsafe {
            let least = S::eq(S::and(a, S::splat(0x7fff_ffff)), S::splat(LEAST));
            (flushed::<S>(a, self.behind), S::and(least, self.behind))
        }
    }
}

/// A denormal as zero, with its sign, where the mask is ones.
#[inline(always)]
pub(super) unsafe fn flushed<S: Simd>(a: S::V, mask: S::V) -> S::V {
    // SAFETY: as above.
    unsafe {
        let none = S::eq(S::and(a, S::splat(0x7f80_0000)), S::splat(0));
        S::select(S::and(none, mask), a, S::and(a, S::splat(1 << 31)))
    }
}

/// Does an instruction, some lanes of it by the reference engine's function.
#[inline(always)]
unsafe fn rest<S: Simd, O: Operation<N>, const N: usize>(step: &Step, cx: &mut Cx) -> Flow {
    if O::CHECK == Check::Never {
        return step.slow(cx);
    }
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let exec = cx.exec();
        let scalar;
        let mut rows = [std::ptr::null(); N];
        for n in 0..N {
            rows[n] = cx.row(step.src[n]);
        }
        if step.kind != super::operation::ROWS {
            let n = usize::from(step.kind) - 1;
            scalar = Row([cx.scalar(step.scalar[n]); 64]);
            rows[n] = scalar.0.as_ptr();
        }
        let mut values = [S::splat(0); 8];
        let mut left = exec;
        if O::CHECK.by_vectors(cx) {
            let lost = Lost::of::<S>(cx.wave.mode);
            let odd = S::splat(if cx.plain || !O::CHECK.mixed() { 0 } else { LEAST });
            left = 0;
            for group in 0..vectors(exec) {
                let mut sources = [S::splat(0); N];
                let mut bad = S::splat(0);
                for n in 0..N {
                    sources[n] = S::load(rows[n].add(8 * group));
                    if O::CHECK.flushes() {
                        sources[n] = lost.source::<S>(sources[n]);
                    }
                    bad = S::or(bad, tiny::<S>(sources[n], odd));
                }
                let mut value = O::value::<S>(sources);
                match O::CHECK {
                    Check::Half => value = handed_on::<S, N>(value, sources),
                    Check::HalfTurned => {
                        let mut turned = sources;
                        turned.reverse();
                        value = handed_on::<S, N>(value, turned);
                    }
                    Check::Halves => value = both_handed_on::<S, N>(value, sources),
                    _ => {}
                }
                if let Some(picked) = O::picked::<S>(value, sources) {
                    value = picked;
                } else {
                    bad = S::or(bad, O::CHECK.bad::<S, N>(sources));
                }
                if O::CHECK.custom() {
                    bad = S::or(bad, O::bad::<S>(sources));
                }
                if O::CHECK.flushes() {
                    let (flushed, least) = lost.result::<S>(value);
                    value = flushed;
                    bad = S::or(bad, least);
                } else {
                    bad = S::or(bad, tiny::<S>(value, odd));
                }
                values[group] = value;
                left |= u64::from(S::mask(bad)) << (8 * group);
            }
            left &= exec;
        }
        let function = Op::ALL.get(usize::from(step.op)).and_then(|&op| Function::of(op));
        if left != 0 && function.is_none() {
            return step.slow(cx);
        }
        let to = cx.row_mut(step.dst);
        for group in 0..vectors(exec) {
            let mask = S::lanes(((exec & !left) >> (8 * group)) as u8);
            S::store(to.add(8 * group), S::select(mask, S::load(to.add(8 * group)), values[group]));
        }
        if let Some(function) = function {
            lanes(cx, &function, &rows, to, left);
        }
    }
    step.done(cx)
}

/// Computes the lanes of a mask one by one.
#[inline(never)]
unsafe fn lanes(cx: &Cx, function: &Function, rows: &[*const u32], to: *mut u32, mask: u64) {
    let mut left = mask;
    // SAFETY: the rows and VCC exist.
    unsafe {
        let vcc = cx.pair(Operand::VCC);
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            left &= left - 1;
            let mut words = [0; 3];
            for (word, row) in words.iter_mut().zip(rows) {
                *word = row.add(lane).read();
            }
            to.add(lane).write(function.lane(cx.wave, lane, vcc, words, false) as u32);
        }
    }
}

macro_rules! rests {
    ($name:ident $wrap:ident $trait:ident $count:literal) => {
        /// The second handler of an operation.
        pub(super) fn $name<O: $trait>(avx2: bool) -> Run {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn wide<O: $trait>(step: &Step, cx: &mut Cx) -> Flow {
                    // SAFETY: the caller's.
                    unsafe { rest::<super::avx2::Avx2, $wrap<O>, $count>(step, cx) }
                }
                if avx2 {
                    return wide::<O>;
                }
            }
            let _ = avx2;
            unsafe fn narrow<O: $trait>(step: &Step, cx: &mut Cx) -> Flow {
                // SAFETY: the caller's.
                unsafe { rest::<super::simd::Portable, $wrap<O>, $count>(step, cx) }
            }
            narrow::<O>
        }
    };
}

rests!(unary One Unary 1);
rests!(binary Two Binary 2);
rests!(ternary Three Ternary 3);

#[cfg(test)]
mod tests {
    use super::super::simd::{Portable, WIDTH};
    use super::*;
    use crate::reference::single;

    /// NaNs of both kinds and signs, infinities, zeros, denormals, extremes.
    const SPECIAL: [u32; 16] = [
        0x7fc0_0001,
        0xffc0_0002,
        0x7f80_0003,
        0xff80_0004,
        0x7f80_0000,
        0xff80_0000,
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x3f80_0000,
        0xbfc0_0000,
    ];

    /// All combinations of three special values: the sums, differences, products and fused sums.
    unsafe fn combinations<S: Simd>() {
        for a in SPECIAL {
            for b in SPECIAL {
                for cs in SPECIAL.chunks(WIDTH) {
                    let c: [u32; WIDTH] = std::array::from_fn(|n| cs[n]);
                    // SAFETY: the caller's.
                    let results = unsafe {
                        let (x, y, z) = (S::splat(a), S::splat(b), S::from_array(c));
                        [S::fma(x, y, z), S::fadd(x, z), S::fsub(x, z), S::fmul(x, z)].map(|v| S::to_array(v))
                    };
                    for n in 0..WIDTH {
                        let sources = [a, b, c[n]];
                        let expected = [
                            single(Op::VFmaF32, sources),
                            single(Op::VAddF32, [a, c[n], 0]),
                            single(Op::VSubF32, [a, c[n], 0]),
                            single(Op::VMulF32, [a, c[n], 0]),
                        ];
                        let got: [u32; 4] = std::array::from_fn(|index| results[index][n]);
                        assert_eq!(got, expected, "{sources:#x?}");
                    }
                }
            }
        }
    }

    #[test]
    fn nans_are_handed_on_as_the_reference_engine_does() {
        // SAFETY: plain Rust.
        unsafe { combinations::<Portable>() };
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has it.
            unsafe { combinations::<super::super::avx2::Avx2>() };
        }
    }
}
