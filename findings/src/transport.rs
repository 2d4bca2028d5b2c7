// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Findings on their way from a process to another one of the same build.

use thiserror::Error;

use crate::list::{Counted, Findings};

/// A text without the form of findings.
#[derive(Debug, Error)]
#[error("no list of findings: {0}")]
pub struct BadTransport(#[from] serde_json::Error);

/// The findings as text, each with its count.
#[must_use]
pub fn to_transport(findings: &Findings) -> String {
    // JSON has a form for all of it.
    serde_json::to_string(findings.list()).unwrap_or_default()
}

/// The findings of a text.
///
/// # Errors
/// [`BadTransport`].
pub fn from_transport(text: &str) -> Result<Vec<Counted>, BadTransport> {
    Ok(serde_json::from_str(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Access, Address, Allocation, Check, Finding, Note, Place, Position, Severity, Thread};

    #[test]
    fn what_is_sent_arrives() {
        let place = Place { kernel: Some("k".into()), pc: 4, instruction: Some("s_nop 0".into()), ..Place::default() };
        let mut finding = Finding::new(Check::Race, "race/lds", Severity::Error, "a text".into(), place.clone());
        finding.thread = Some(Thread { group: [1, 2, 3], wave: 4, lane: None });
        let position = Position::Behind(4);
        let nearest = Some(Allocation { address: 0, bytes: 400, name: "LDS".into(), position });
        finding.address = Some(Address { address: 404, bytes: 4, access: Access::Write, nearest });
        finding.notes = vec![Note { message: "a note".into(), place: Some(place), thread: None }];
        let mut findings = Findings::default();
        findings.add_many(finding, 7);
        findings.add(Finding::new(Check::Init, "init/branch", Severity::Note, String::new(), Place::default()));
        assert_eq!(from_transport(&to_transport(&findings)).expect("what was sent"), findings.list());
        assert!(from_transport("{}").is_err());
    }
}
