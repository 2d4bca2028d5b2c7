// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Comparisons and products of 64 bits, by their words.

use crate::emit::{Emit, Mask, Order, Src};
use crate::width;
use iced_x86::Register;

/// A comparison of 64 bits, by its words.
pub(crate) fn compare64(e: &mut Emit, out: Mask, [a, b]: [[Src; 2]; 2], order: Order, signed: bool) {
    let [a, b] = [a, b].map(|pair| pair.map(|word| Src::Reg(e.reg(word))));
    match order {
        Order::Equal | Order::NotEqual => {
            let differ = e.temp();
            let other = e.temp();
            e.op(width::XOR, differ, a[0], b[0]);
            e.op(width::XOR, other, a[1], b[1]);
            e.op(width::OR, differ, Src::Reg(differ), Src::Reg(other));
            e.compare(out, Src::Reg(differ), Src::Const(0), order, true);
        }
        _ => {
            let strict = match order {
                Order::LessOrEqual => Order::Less,
                Order::NotLess => Order::Greater,
                other => other,
            };
            e.compare(out, a[0], b[0], order, false);
            let same = e.compared(a[1], b[1], Order::Equal, false);
            e.intersect(out, same);
            let more = e.once(|e| e.compared(a[1], b[1], strict, signed));
            e.unite(out, more);
        }
    }
}

/// A product of words and a sum of 64 bits: the low word, the high one, and the carry if it is
/// wanted.
pub(crate) fn multiply64(
    e: &mut Emit,
    to: [Register; 2],
    out: Option<Mask>,
    ([a, b], c): ([Src; 2], [Src; 2]),
    signed: bool,
) {
    let [low, high] = to;
    let (a, b) = (Src::Reg(e.reg(a)), Src::Reg(e.reg(b)));
    let c = c.map(|word| Src::Reg(e.reg(word)));
    e.mul_high(high, a, b);
    // Whether the product and the addend have different signs.
    let differ = signed.then(|| {
        let less = e.temp();
        for (one, two) in [(a, b), (b, a)] {
            e.sar(less, one, Src::Const(31));
            e.op(width::AND, less, Src::Reg(less), two);
            e.op(width::SUB, high, Src::Reg(high), Src::Reg(less));
        }
        if out.is_some() {
            e.op(width::XOR, less, Src::Reg(high), c[1]);
        }
        less
    });
    e.op(width::MUL, low, a, b);
    e.op(width::ADD, low, Src::Reg(low), c[0]);
    let one = e.temp();
    let round = out.map(|out| (out, e.temp()));
    e.op(width::ADD, high, Src::Reg(high), c[1]);
    if let Some((out, round)) = round {
        e.mov(round, Src::Const(u32::MAX));
        e.compare(out, Src::Reg(high), c[1], Order::Less, false);
    }
    e.op(width::ADD, one, Src::Reg(high), Src::Const(1));
    let carry = e.once(|e| e.compared(Src::Reg(low), c[0], Order::Less, false));
    e.blend(high, carry, Src::Reg(one));
    let Some((out, round)) = round else { return };
    // Both carries: the high word has become zero by the second one.
    e.blend(round, carry, Src::Reg(high));
    let more = e.once(|e| e.compared(Src::Reg(round), Src::Const(0), Order::Equal, false));
    e.unite(out, more);
    if let Some(differ) = differ {
        let mask = e.once(|e| e.compared(Src::Reg(differ), Src::Const(0), Order::Less, true));
        e.exchange(out, mask);
    }
}
