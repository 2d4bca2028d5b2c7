// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scalar loads that look for their page together ([`Share`]).
//!
//! A kernel loads its arguments piece by piece, by one address that does not change. The first of
//! these loads looks for the page, and leaves in the context where it lies. Each of the others
//! compares its place in the page alone.
//!
//! Limits: a region shares one address at a time. Loops share none.

use super::{Item, Load, Rounds, Segment, Sequence};
use crate::scalar::bits;

/// Whose look for the page a load uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Alone,
    /// Its own, and it leaves it to others.
    First,
    /// That of the first one, from which it is so many bytes away.
    Next(i32),
}

impl Load {
    /// How many whole words it is behind another one, if it has its address.
    fn shares(&self, first: (u8, i32)) -> Option<i32> {
        let apart = self.imm.checked_sub(first.1)?;
        (self.base == first.0 && apart % 4 == 0).then_some(apart)
    }
}

/// Scalar registers that an item of a slice or a tail writes.
fn written(item: &Item) -> u128 {
    match item {
        Item::Scalar(scalar) => scalar.registers().1,
        Item::Load(load) => load.registers().1,
        _ => 0,
    }
}

/// What a sequence does with scalar registers, in its order.
enum Event {
    /// The load of this segment and number, by no register but its address: that and the offset.
    Load(usize, usize, (u8, i32)),
    Write(u128),
}

fn events(segments: &[Segment], mask_words: u8) -> Vec<Event> {
    let mut events = Vec::new();
    for (at, segment) in segments.iter().enumerate() {
        for (number, item) in segment.items.iter().enumerate() {
            if let Item::Load(load) = item {
                if load.offset.is_none() {
                    events.push(Event::Load(at, number, (load.base, load.imm)));
                }
            }
            events.push(Event::Write(written(item)));
        }
        // The strips come behind the slice.
        events.push(Event::Write(segment.masks(mask_words)));
        events.extend(segment.tail.iter().map(|(_, item)| Event::Write(written(item))));
    }
    events
}

impl Sequence {
    /// Finds the first loads that may share a look.
    pub(crate) fn share_loads(&mut self, mask_words: u8) {
        if self.rounds != Rounds::Once {
            return;
        }
        let events = events(&self.segments, mask_words);
        for (index, event) in events.iter().enumerate() {
            let Event::Load(at, number, first) = *event else { continue };
            let writes = |event: &Event| matches!(event, Event::Write(all) if all & bits(first.0, 2) != 0);
            let mut found = false;
            for event in events.iter().skip(index + 1).take_while(|event| !writes(event)) {
                let Event::Load(at, number, _) = *event else { continue };
                let Some(load) = self.load(at, number) else { continue };
                if let Some(apart) = load.shares(first) {
                    (load.share, found) = (Share::Next(apart), true);
                }
            }
            if let (true, Some(load)) = (found, self.load(at, number)) {
                load.share = Share::First;
                return;
            }
        }
    }

    fn load(&mut self, segment: usize, number: usize) -> Option<&mut Load> {
        match self.segments.get_mut(segment)?.items.get_mut(number)? {
            Item::Load(load) => Some(load),
            _ => None,
        }
    }
}
