// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Constants as handlers read them: rows with a value in every lane, and words; and the temporary
//! rows.
//!
//! They live as long as the engine, at fixed addresses, which are exposed: a [`Source`] has them as
//! numbers.

use super::prepare::Lanes;
use super::step::Source;
use crate::wave::Row;
use std::collections::HashMap;

/// Rows for sources that an operation's own handler does not read.
pub(super) const TEMPORARIES: usize = 8;

/// Constants and temporary rows.
pub(super) struct Constants {
    rows: HashMap<u32, Box<Row>>,
    words: HashMap<u64, Box<u64>>,
    temporaries: Box<[Row; TEMPORARIES]>,
    #[allow(clippy::vec_box, reason = "tables do not move when there are more")]
    lanes: Vec<Box<Lanes>>,
}

impl Constants {
    pub(super) fn new() -> Constants {
        Constants {
            rows: HashMap::new(),
            words: HashMap::new(),
            temporaries: Box::new([Row::ZERO; TEMPORARIES]),
            lanes: Vec::new(),
        }
    }

    /// Bytes of them, as allocated; never less than before.
    pub(super) fn bytes(&self) -> usize {
        /// Of a table that is half full, and of an allocation's own.
        const PLACE: usize = 2 * 16 + 16;
        self.rows.len() * (size_of::<Row>() + PLACE)
            + self.words.len() * (size_of::<u64>() + PLACE)
            + self.lanes.len() * (size_of::<Lanes>() + PLACE)
    }

    /// A row with a value in every lane.
    pub(super) fn row(&mut self, value: u32) -> Source {
        let row = self.rows.entry(value).or_insert_with(|| Box::new(Row([value; 64])));
        Source::constant((&raw const **row).expose_provenance())
    }

    /// A word of 64 bits, whose low half is also one of 32.
    pub(super) fn word64(&mut self, value: u64) -> Source {
        let word = self.words.entry(value).or_insert_with(|| Box::new(value));
        Source::constant((&raw const **word).expose_provenance())
    }

    /// A table of lanes.
    pub(super) fn lanes(&mut self, lanes: Lanes) -> Source {
        let lanes = Box::new(lanes);
        let source = Source::constant((&raw const *lanes).expose_provenance());
        self.lanes.push(lanes);
        source
    }

    /// A temporary row: its address, to write it, and the source that it is.
    pub(super) fn temporary(&mut self, slot: usize) -> (usize, Source) {
        let row = &raw mut self.temporaries[slot % TEMPORARIES];
        let address = row.expose_provenance();
        (address, Source::constant(address))
    }
}
