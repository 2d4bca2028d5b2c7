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

/// Most answers that are due, of all rings. A virtqueue has room for 1,024; only a program at a
/// socket can ask for more before the first is answered.
pub const MAX_DUE: usize = 4096;

#[derive(Default)]
struct Rings {
    last: u64,
    due: usize,
    orders: HashMap<Ring, Order>,
}

/// All rings.
#[derive(Default)]
pub struct Fences {
    rings: Mutex<Rings>,
}

impl Fences {
    /// Notes that an answer will come. `None` where [`MAX_DUE`] are due.
    pub fn enter(&self, ring: Ring) -> Option<Ticket> {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if rings.due >= MAX_DUE {
            return None;
        }
        rings.due += 1;
        rings.last += 1;
        let number = rings.last;
        rings.orders.entry(ring).or_default().entries.push_back(Entry { number, answer: None });
        Some(Ticket { ring, number })
    }

    /// The answer is ready. Gives it, and those behind it, unless one before it is missing.
    pub fn done(&self, ticket: Ticket, bytes: Vec<u8>, reply: Reply) {
        let mut answer = Some((bytes, reply));
        loop {
            let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
            let rings_now = &mut *rings;
            let Some(order) = rings_now.orders.get_mut(&ticket.ring) else { return };
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
                    rings_now.orders.remove(&ticket.ring);
                }
                return;
            };
            order.entries.pop_front();
            rings_now.due -= 1;
            drop(rings);
            reply(&bytes);
        }
    }

    /// Forgets all: nobody waits any more.
    pub fn reset(&self) {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.due = 0;
        let orders = std::mem::take(&mut rings.orders);
        drop((rings, orders));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{mpsc, Arc};

    #[test]
    fn there_is_an_end_to_what_is_due() {
        let fences = Fences::default();
        let nothing = || -> Reply { Box::new(|_: &[u8]| ()) };
        let first = fences.enter(Some((1, 0))).unwrap();
        let mut others = Vec::new();
        while let Some(ticket) = fences.enter(Some((1, others.len().to_le_bytes()[0]))) {
            others.push(ticket);
        }
        assert_eq!(others.len() + 1, MAX_DUE);
        // Those of the first's ring wait for it.
        others.into_iter().for_each(|ticket| fences.done(ticket, vec![], nothing()));
        assert!(fences.enter(None).is_some());
        fences.done(first, vec![], nothing());
        assert_eq!(fences.rings.lock().unwrap().due, 1);
        fences.reset();
        assert_eq!(fences.rings.lock().unwrap().due, 0);
    }

    #[test]
    fn a_ring_answers_in_order_and_waits_for_no_other() {
        let fences = Arc::new(Fences::default());
        let (sender, receiver) = mpsc::channel();
        let reply = |n: u8| -> Reply {
            let sender = sender.clone();
            Box::new(move |bytes: &[u8]| sender.send((n, bytes.to_vec())).unwrap())
        };
        let enter = |ring| fences.enter(ring).unwrap();
        let [a, b] = [enter(Some((1, 0))), enter(Some((1, 0)))];
        let [other, unnamed] = [enter(Some((1, 1))), enter(None)];
        fences.done(b, vec![2], reply(2));
        assert!(receiver.try_recv().is_err(), "the one before it is not done");
        fences.done(other, vec![3], reply(3));
        fences.done(unnamed, vec![4], reply(4));
        assert_eq!([receiver.try_recv().unwrap().0, receiver.try_recv().unwrap().0], [3, 4]);
        fences.done(a, vec![1], reply(1));
        assert_eq!([receiver.try_recv().unwrap(), receiver.try_recv().unwrap()], [(1, vec![1]), (2, vec![2])]);
        assert!(fences.rings.lock().unwrap().orders.is_empty());
    }
}
