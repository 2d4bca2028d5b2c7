// SPDX-License-Identifier: GPL-2.0 OR MIT
//! In which order work-groups and waves run: the usual one, or one of many that a number chooses.
//!
//! Hardware promises no order, so a program that is right computes the same in each. Under
//! [`Schedule::Random`] a group's next turn, the wave that runs next, and how far it gets are drawn
//! from the number. Groups still begin in the order of their numbers, as on hardware, and waves
//! that wait for each other still make progress. Results of loads arrive at the wait only, which
//! the engine with checks does.
//!
//! With one thread a GPU, the same number gives the same order. A driver that takes memory away
//! interrupts waves at times of its own, so that runs with evictions may differ.

use std::fmt;
use std::str::FromStr;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Each wave in turn, as far as it gets.
    #[default]
    Usual,
    /// The order of a number.
    Random(u64),
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Usual => f.write_str("usual"),
            Schedule::Random(seed) => write!(f, "random:{seed}"),
        }
    }
}

/// A text that is no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSchedule;

impl FromStr for Schedule {
    type Err = UnknownSchedule;

    fn from_str(text: &str) -> Result<Schedule, UnknownSchedule> {
        match text.split_once(':') {
            Some(("random", seed)) => seed.parse().map(Schedule::Random).map_err(|_| UnknownSchedule),
            None if text == "usual" => Ok(Schedule::Usual),
            _ => Err(UnknownSchedule),
        }
    }
}

impl Schedule {
    /// The choices of launch number `launch`; none in the usual order.
    pub(crate) fn choices(self, launch: u64) -> Option<Choices> {
        match self {
            Schedule::Usual => None,
            Schedule::Random(seed) => Some(Choices::new(seed).branch(launch)),
        }
    }
}

/// Choices that follow from a number: Steele, Lea and Flood's SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Choices(u64);

impl Choices {
    fn new(seed: u64) -> Choices {
        Choices(seed)
    }

    /// Choices of their own for part `number`.
    pub(crate) fn branch(&self, number: u64) -> Choices {
        Choices(Choices(self.0 ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93)).next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `count` numbers from 0 on; 0 if there is none.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count.max(1)).unwrap_or(1);
        usize::try_from(self.next() % count).unwrap_or(0)
    }

    /// A power of two up to that of `most`, each as often.
    pub(super) fn power(&mut self, most: u32) -> u32 {
        1 << (self.next() % u64::from(most.min(31) + 1))
    }
}

/// An order of a group's waves, by two numbers and no list: nothing is allocated within the gate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    first: usize,
    step: usize,
}

impl Order {
    /// As they are numbered.
    pub(super) const USUAL: Order = Order { first: 0, step: 1 };

    /// One of the orders of `count` waves.
    pub(super) fn chosen(choices: &mut Choices, count: usize) -> Order {
        let first = choices.below(count);
        // A step without a common factor reaches each wave once.
        let mut step = 1 + choices.below(count);
        while common_factor(step, count) > 1 {
            step -= 1;
        }
        Order { first, step }
    }

    /// The wave at a place of the order.
    pub(super) fn at(self, place: usize, count: usize) -> usize {
        if self.step == 1 && self.first == 0 {
            return place;
        }
        (self.first + place * self.step) % count.max(1)
    }
}

fn common_factor(a: usize, b: usize) -> usize {
    if b == 0 {
        a
    } else {
        common_factor(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for schedule in [Schedule::Usual, Schedule::Random(0), Schedule::Random(u64::MAX)] {
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
        for bad in ["", "random", "random:", "random:x", "usual:1"] {
            assert_eq!(bad.parse::<Schedule>(), Err(UnknownSchedule), "{bad}");
        }
    }

    #[test]
    fn an_order_has_each_wave_once() {
        let mut choices = Choices::new(7);
        for count in 1..=16 {
            for _ in 0..50 {
                let order = Order::chosen(&mut choices, count);
                let mut waves: Vec<_> = (0..count).map(|place| order.at(place, count)).collect();
                waves.sort_unstable();
                assert_eq!(waves, (0..count).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn launches_have_choices_of_their_own() {
        let of = |seed, launch| {
            let mut choices = Schedule::Random(seed).choices(launch).unwrap();
            [0; 4].map(|_: i32| choices.below(1000))
        };
        assert_eq!(of(1, 2), of(1, 2));
        assert_ne!(of(1, 2), of(1, 3));
        assert_ne!(of(1, 2), of(2, 2));
        assert!(Schedule::Usual.choices(1).is_none());
    }
}
