// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The packet processors.

pub(crate) mod aql;
pub(crate) mod pm4;
pub(crate) mod poll;
pub(crate) mod registers;
pub(crate) mod sdma;
pub(crate) mod stream;
pub(crate) mod sub_window;
