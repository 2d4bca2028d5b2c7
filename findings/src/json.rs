// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Findings as one JSON document.

use serde_json::{json, Value};

use crate::list::Findings;

/// The document: `findings`, each with its count, and the numbers of those that are not in it.
#[must_use]
pub fn json(findings: &Findings) -> Value {
    let unused: Vec<Value> =
        findings.unused_suppressions().into_iter().map(|(line, text)| json!({ "line": line, "text": text })).collect();
    json!({
        "findings": findings.list(),
        "suppressed": findings.suppressed(),
        "dropped": findings.dropped(),
        "unused_suppressions": unused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Access, Address, Allocation, Check, Finding, Place, Position, Severity, Thread};

    #[test]
    fn a_finding_has_its_facts() {
        let place = Place { kernel: Some("sum".to_string()), pc: 0x40, offset: Some(0x40), ..Place::default() };
        let mut finding = Finding::new(Check::Memory, "memory/bounds", Severity::Error, "text".to_string(), place);
        finding.thread = Some(Thread { group: [1, 2, 3], wave: 4, lane: Some(5) });
        let position = Position::Behind(4);
        let nearest = Some(Allocation { address: 0x1000, bytes: 400, name: "device memory".to_string(), position });
        finding.address = Some(Address { address: 0x1194, bytes: 4, access: Access::Write, nearest });
        let mut findings = Findings::default();
        findings.add_many(finding, 3);
        let expected = json!({
            "findings": [{
                "check": "memory",
                "rule": "memory/bounds",
                "severity": "error",
                "message": "text",
                "count": 3,
                "place": { "kernel": "sum", "pc": 0x40, "offset": 0x40 },
                "thread": { "group": [1, 2, 3], "wave": 4, "lane": 5 },
                "address": {
                    "address": 0x1194,
                    "bytes": 4,
                    "access": "write",
                    "nearest": { "address": 0x1000, "bytes": 400, "name": "device memory", "position": { "behind": 4 } },
                },
            }],
            "suppressed": 0,
            "dropped": 0,
            "unused_suppressions": [],
        });
        assert_eq!(json(&findings), expected);
    }
}
