// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The report of `vkfd bench userptr` as text and as a page.

use crate::report::{Head, Report};
use crate::run::Document;
use crate::{page, text};

impl Document for Report {
    fn head(&mut self) -> &mut Head {
        &mut self.head
    }

    fn text(&self) -> String {
        text::report(self)
    }

    fn page(&self) -> (&'static str, String) {
        ("vkfd bench userptr", page::render(self))
    }
}
