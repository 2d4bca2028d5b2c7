// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a thread's translations share: room for their code, routines, and what they have learned.

use crate::arena::Arena;
use crate::emit::Learned;
use crate::stubs::Stubs;
use crate::width::Width;
use crate::Why;
use std::sync::Arc;

/// Belongs to one thread.
#[derive(Debug, Default)]
pub struct Translator {
    pub(crate) arena: Arena,
    pub(crate) learned: Learned,
    stubs: Option<Arc<Stubs>>,
}

impl Translator {
    /// Forgets the memory that code is put into: it goes with the last piece of code in it.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.stubs = None;
    }

    /// The routines of code for these vectors, which it is to keep.
    pub(crate) fn stubs(&mut self, width: Width) -> Result<Arc<Stubs>, Why> {
        match &self.stubs {
            Some(stubs) if stubs.host.width == width => Ok(stubs.clone()),
            _ => Ok(self.stubs.insert(Arc::new(Stubs::new(width, &mut self.arena)?)).clone()),
        }
    }
}
