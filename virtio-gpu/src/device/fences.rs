// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The order of answers with fences.
//!
//! The guest's kernel takes an answer for the word that everything before it on the same ring is
//! done, too. So an answer that is ready waits until all that were asked before on its ring have
//! been given. Rings do not wait for each other; what names no ring has one of its own.
//!
//! Lock: `rings`; a leaf. Answers are given without it, but in order: the giving thread holds the
//! ring's `giving` mark.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::Reply;

/// A ring: the context's number and the ring's, or the one that has no name.
type Ring = Option<(u32, u8)>;

/// A place in a ring's order.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    ring: Ring,
    number: u64,
}

struct Entry {
    number: u64,
    answer: Option<(Vec<u8>, Reply)>,
}

#[derive(Default)]
struct Order {
    entries: VecDeque<Entry>,
    giving: bool,
}

/// All rings.
#[derive(Default)]
pub struct Fences {
    rings: Mutex<(u64, HashMap<Ring, Order>)>,
}

impl Fences {
    /// Notes that an answer will come.
    pub fn enter(&self, ring: Ring) -> Ticket {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.0 += 1;
        let number = rings.0;
        rings.1.entry(ring).or_default().entries.push_back(Entry { number, answer: None });
        Ticket { ring, number }
    }

    /// The answer is ready. Gives it, and those behind it, unless one before it is missing.
    pub fn done(&self, ticket: Ticket, bytes: Vec<u8>, reply: Reply) {
        let mut answer = Some((bytes, reply));
        loop {
            let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(order) = rings.1.get_mut(&ticket.ring) else { return };
            if let Some(answer) = answer.take() {
                let Some(entry) = order.entries.iter_mut().find(|entry| entry.number == ticket.number) else { return };
                entry.answer = Some(answer);
                // Another thread is at it and will come to this one.
                if order.giving {
                    return;
                }
                order.giving = true;
            }
            let ready = order.entries.front_mut().and_then(|entry| entry.answer.take());
            let Some((bytes, reply)) = ready else {
                order.giving = false;
                if order.entries.is_empty() {
                    rings.1.remove(&ticket.ring);
                }
                return;
            };
            order.entries.pop_front();
            drop(rings);
            reply(&bytes);
        }
    }

    /// Forgets all: nobody waits any more.
    pub fn reset(&self) {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner).1.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{mpsc, Arc};

    #[test]
    fn a_ring_answers_in_order_and_waits_for_no_other() {
        let fences = Arc::new(Fences::default());
        let (sender, receiver) = mpsc::channel();
        let reply = |n: u8| -> Reply {
            let sender = sender.clone();
            Box::new(move |bytes: &[u8]| sender.send((n, bytes.to_vec())).unwrap())
        };
        let [a, b] = [fences.enter(Some((1, 0))), fences.enter(Some((1, 0)))];
        let [other, unnamed] = [fences.enter(Some((1, 1))), fences.enter(None)];
        fences.done(b, vec![2], reply(2));
        assert!(receiver.try_recv().is_err(), "the one before it is not done");
        fences.done(other, vec![3], reply(3));
        fences.done(unnamed, vec![4], reply(4));
        assert_eq!([receiver.try_recv().unwrap().0, receiver.try_recv().unwrap().0], [3, 4]);
        fences.done(a, vec![1], reply(1));
        assert_eq!([receiver.try_recv().unwrap(), receiver.try_recv().unwrap()], [(1, vec![1]), (2, vec![2])]);
        assert!(fences.rings.lock().unwrap().1.is_empty());
    }
}
