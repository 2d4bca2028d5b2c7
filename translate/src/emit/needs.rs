// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The numbers of temporaries that instructions take. If registers were missing while code was
//! written, it is written again with these numbers.

/// How many temporaries each instruction takes, in each of a loop's two bodies, and in the last
/// place what is outside of them.
#[derive(Clone, Debug)]
pub(crate) struct Needs(Vec<Need>);

#[derive(Clone, Copy, Debug)]
struct Need {
    /// Registers that are left to the instruction.
    left: u8,
    /// What it has taken, and whether there were as many.
    taken: u8,
    is_short: bool,
}

impl Default for Needs {
    /// Of no instructions.
    fn default() -> Needs {
        Needs(vec![Need::of(USUAL)])
    }
}

impl Need {
    fn of(left: u8) -> Need {
        Need { left, taken: 0, is_short: false }
    }
}

impl Needs {
    pub(super) fn of(&self, number: usize) -> usize {
        self.0.get(number).map_or(0, |need| need.left.into())
    }

    pub(super) fn note(&mut self, number: usize, taken: usize, is_there: bool) {
        if let Some(need) = self.0.get_mut(number) {
            need.taken = need.taken.max(u8::try_from(taken).unwrap_or(u8::MAX));
            need.is_short |= !is_there;
        }
    }

    /// What the next attempt is made with. Rows in memory take temporaries, too: an instruction
    /// that was left as many as it takes, and is short of them, has all of its rows there.
    pub(crate) fn learned(mut self) -> Needs {
        for need in &mut self.0 {
            let left = if need.is_short && need.taken <= need.left { u8::MAX } else { need.taken.max(need.left) };
            *need = Need::of(left);
        }
        self
    }

    pub(super) fn last(&self) -> usize {
        self.0.len() - 1
    }

    /// Those of the second body.
    fn light(&self) -> std::ops::Range<usize> {
        self.last() / 2..self.last()
    }

    /// The most that an instruction of the second body takes, or what is outside of it.
    pub(crate) fn most_of_light(&self) -> usize {
        let light = self.0[self.light()].iter().map(|need| usize::from(need.left)).max();
        light.unwrap_or(0).max(self.outside())
    }

    /// Of two strips abreast: the second body twice.
    pub(super) fn abreast(&self) -> Needs {
        let light = &self.0[self.light()];
        Needs(light.iter().chain(light).chain(self.0.last()).map(|need| Need::of(need.left)).collect())
    }

    /// Adds what was learned of these.
    pub(super) fn learn(&mut self, abreast: &Needs) {
        let (light, last) = (self.light(), self.last());
        let places = light.clone().chain(light).chain([last]);
        for (place, other) in places.zip(&abreast.0) {
            let need = &mut self.0[place];
            need.taken = need.taken.max(other.taken);
            need.is_short |= other.is_short;
        }
    }

    pub(crate) fn outside(&self) -> usize {
        self.of(self.last())
    }
}

/// Kinds of instructions that are told apart.
const KINDS: usize = 2048;
/// Temporaries that most instructions take.
const USUAL: u8 = 1;

/// How many temporaries instructions took the last time, by their kinds and in which body: with
/// these, most code is written once. Too few cost another attempt, too many a register.
#[derive(Debug)]
pub(crate) struct Learned(Box<[u8]>);

impl Default for Learned {
    fn default() -> Learned {
        Learned(vec![USUAL; 2 * KINDS + 1].into_boxed_slice())
    }
}

impl Learned {
    /// The places of a segment's numbers: in one body, in the other, and outside of them.
    fn places(kinds: &[usize]) -> impl Iterator<Item = usize> + '_ {
        let body = |light: usize| kinds.iter().map(move |kind| kind % KINDS + light * KINDS);
        body(0).chain(body(1)).chain([2 * KINDS])
    }

    pub(crate) fn needs(&self, kinds: &[usize]) -> Needs {
        Needs(Learned::places(kinds).map(|place| Need::of(self.0[place])).collect())
    }

    pub(crate) fn note(&mut self, kinds: &[usize], needs: &Needs) {
        for (place, need) in Learned::places(kinds).zip(&needs.0) {
            // A body that a segment does not have has nothing to say.
            if need.taken != 0 {
                self.0[place] = need.taken;
            }
        }
    }
}
