// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the time of a registration's life goes, step by step, beside that of one contiguous range:
//! which step makes a batch slower, and which is only the machine's memory.
//!
//! Faulting in is the host's work for the pages, measured without an object. What registering takes
//! beyond it is the driver's own: the list, the index, the commits. Mapping is page-table entries:
//! 65,536 of scattered pages, as few as 128 of contiguous ones.

use serde::Serialize;

use crate::spread::{Samples, Spread};
use crate::subject::{Operation, Subject};

/// One step.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    pub what: &'static str,
    /// Seconds of a batch.
    pub batch: Option<Spread>,
    /// Seconds of one contiguous range.
    pub contiguous: Option<Spread>,
    /// The one relative to the other, in each round.
    pub ratio: Option<Spread>,
}

/// The steps, from samples of all subjects on the same ranges.
pub fn of(samples: &Samples) -> Vec<Part> {
    use Operation::{Free, Lifetime, Map, Register, Unmap};
    let batch = |operation| (Subject::Batch, operation);
    let contiguous = |operation| (Subject::Contiguous, operation);
    let fault = [(Subject::Fault, Register), (Subject::FaultContiguous, Register)];
    let step = |what, [a, b]: [(Subject, Operation); 2]| Part {
        what,
        batch: samples.spread(a),
        contiguous: samples.spread(b),
        ratio: samples.ratio(a, b),
    };
    let own = [(batch(Register), fault[0]), (contiguous(Register), fault[1])];
    let own = own.map(|(all, fault)| samples.difference(all, fault));
    vec![
        step("faulting the pages in", fault),
        Part {
            what: "registering, beyond faulting: list, index, commits",
            batch: own[0],
            contiguous: own[1],
            ratio: None,
        },
        step("mapping: page-table entries", [batch(Map), contiguous(Map)]),
        step("unmapping", [batch(Unmap), contiguous(Unmap)]),
        step("freeing", [batch(Free), contiguous(Free)]),
        step("all of it", [batch(Lifetime), contiguous(Lifetime)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_not_faulting_is_the_drivers() {
        let mut samples = Samples::default();
        for (round, factor) in (1..=3_u64).enumerate() {
            let add = |samples: &mut Samples, subject, operation, micros| {
                samples.add(round, subject, operation, Duration::from_micros(micros * factor));
            };
            add(&mut samples, Subject::Batch, Operation::Register, 50);
            add(&mut samples, Subject::Fault, Operation::Register, 40);
            add(&mut samples, Subject::Batch, Operation::Map, 12);
            add(&mut samples, Subject::Contiguous, Operation::Map, 3);
        }
        let parts = of(&samples);
        let seconds = parts[1].batch.unwrap().median;
        assert!((seconds - 20e-6).abs() < 1e-9, "{seconds}");
        assert!(parts[0].ratio.is_none() && parts[1].contiguous.is_none());
        assert!((parts[2].ratio.unwrap().median - 4.0).abs() < 1e-9);
    }
}
