// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Findings on their way from a process to another one of the same build.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::list::{Counted, Findings};

/// How much a dynamic check looked at. Without it, "nothing found" may mean that nothing ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Launches of kernels.
    pub launches: u64,
    /// Instructions of waves.
    pub instructions: u64,
}

impl Extent {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Extent) -> Extent {
        Extent {
            launches: self.launches.saturating_add(other.launches),
            instructions: self.instructions.saturating_add(other.instructions),
        }
    }
}

/// What a process sends: its findings, each with its count, and what it looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub findings: Vec<Counted>,
    pub extent: Extent,
}

/// A text without the form of findings.
#[derive(Debug, Error)]
#[error("no report of findings: {0}")]
pub struct BadTransport(#[from] serde_json::Error);

/// A report as text.
#[must_use]
pub fn to_transport(findings: &Findings, extent: Extent) -> String {
    // JSON has a form for all of it.
    serde_json::to_string(&Report { findings: findings.list().to_vec(), extent }).unwrap_or_default()
}

/// The report of a text.
///
/// # Errors
/// [`BadTransport`].
pub fn from_transport(text: &str) -> Result<Report, BadTransport> {
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
        let extent = Extent { launches: 2, instructions: u64::MAX };
        let sent = from_transport(&to_transport(&findings, extent)).expect("what was sent");
        assert_eq!(sent, Report { findings: findings.list().to_vec(), extent });
        assert_eq!(extent.plus(extent), Extent { launches: 4, instructions: u64::MAX });
        assert!(from_transport("{}").is_err());
    }
}
