// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The rules as a table of a page.

use std::fmt::Write as _;

use vkfd_isa::Target;

use crate::rules;

/// The lines that stand around the table in its page.
pub const BEGIN: &str = "<!-- rules: written by `cargo xtask lint --table --write` -->";
/// See [`BEGIN`].
pub const END: &str = "<!-- end of rules -->";

/// The table of all rules.
#[must_use]
pub fn table() -> String {
    let mut text = String::from("| rule | finding | wait states | targets | from |\n| --- | --- | --- | --- | --- |\n");
    for rule in rules() {
        let targets = if rule.targets.len() == Target::ALL.len() {
            String::from("all")
        } else {
            rule.targets.iter().map(|target| target.name()).collect::<Vec<_>>().join(", ")
        };
        let _ = writeln!(text, "| {} | {} | {} | {targets} | {} |", rule.id, rule.summary, rule.states, rule.source);
    }
    text
}

/// A page with the table of now in it. `None`: it has no place for one.
#[must_use]
pub fn page(page: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n{END}{after}", table()))
}
