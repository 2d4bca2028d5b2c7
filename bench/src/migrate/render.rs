// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The report of `vkfd bench migrate` as text and as a page.

use super::report::Report;
use super::{page, text};
use crate::report::Head;
use crate::run::Document;

impl Document for Report {
    fn head(&mut self) -> &mut Head {
        &mut self.head
    }

    fn text(&self) -> String {
        text::report(self)
    }

    fn page(&self) -> (&'static str, String) {
        ("vkfd bench migrate", page::render(self))
    }
}
