// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Findings as SARIF 2.1.0, the format that GitHub's code scanning and editors read.
//!
//! A finding's location is its source line where the code object has a line table, and otherwise
//! the code object as a file. A logical location names the kernel, and the address goes with it.
//!
//! Limits: GitHub takes 25,000 results in a run, which is more than the list's default bound.

use serde_json::{json, Map, Value};

use crate::finding::{Note, Place};
use crate::list::{Counted, Findings};

/// A rule, as a tool's catalogue has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, as findings have it.
    pub id: String,
    /// A sentence without a full stop.
    pub summary: String,
    /// A page that explains it.
    pub help: Option<String>,
}

/// The program that made the findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    pub name: String,
    pub version: String,
    pub rules: Vec<Rule>,
}

/// The document.
#[must_use]
pub fn sarif(findings: &Findings, tool: &Tool) -> Value {
    let rules: Vec<Value> = tool
        .rules
        .iter()
        .map(|rule| {
            let mut value = json!({ "id": rule.id, "shortDescription": { "text": rule.summary } });
            if let Some(help) = &rule.help {
                value["helpUri"] = json!(help);
            }
            value
        })
        .collect();
    let results: Vec<Value> = findings.list().iter().map(|counted| result(counted, tool)).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": tool.name, "version": tool.version, "rules": rules } },
            "results": results,
            "properties": { "suppressed": findings.suppressed(), "dropped": findings.dropped() },
        }],
    })
}

fn result(counted: &Counted, tool: &Tool) -> Value {
    let Counted { finding, count } = counted;
    let mut text = finding.message.clone();
    if let Some(instruction) = &finding.place.instruction {
        text.push_str(": ");
        text.push_str(instruction);
    }
    let related: Vec<Value> = finding
        .notes
        .iter()
        .enumerate()
        .map(|(id, Note { message, place, .. })| {
            let mut value = place.as_ref().map_or_else(|| json!({}), location);
            value["id"] = json!(id);
            value["message"] = json!({ "text": message });
            value
        })
        .collect();
    let mut properties = Map::new();
    properties.insert("check".to_string(), json!(finding.check));
    if let Some(thread) = finding.thread {
        properties.insert("thread".to_string(), json!(thread));
    }
    if let Some(address) = &finding.address {
        properties.insert("address".to_string(), json!(address));
    }
    let kernel = finding.place.kernel.as_deref().unwrap_or("");
    // Lines move from build to build. The place in the kernel's code names a finding longest.
    let print = format!("{}:{kernel}:{:#x}", finding.rule, finding.place.offset.unwrap_or(finding.place.pc));
    let mut value = json!({
        "ruleId": finding.rule,
        "level": finding.severity.name(),
        "message": { "text": text },
        "locations": [location(&finding.place)],
        "occurrenceCount": count,
        "partialFingerprints": { "vkfd/v1": print },
        "properties": properties,
    });
    if let Some(index) = tool.rules.iter().position(|rule| rule.id == finding.rule) {
        value["ruleIndex"] = json!(index);
    }
    if !related.is_empty() {
        value["relatedLocations"] = json!(related);
    }
    value
}

fn location(place: &Place) -> Value {
    let mut value = Map::new();
    let file = place.source.as_ref().map(|source| source.file.as_str()).or(place.object.as_deref());
    if let Some(file) = file {
        let mut physical = json!({ "artifactLocation": { "uri": uri(file) } });
        if let Some(source) = place.source.as_ref().filter(|source| source.line > 0) {
            physical["region"] = json!({ "startLine": source.line });
            if source.column > 0 {
                physical["region"]["startColumn"] = json!(source.column);
            }
        } else {
            // An address in the code object; a result without a line is shown at its first.
            physical["region"] = json!({ "startLine": 1 });
            physical["address"] = json!({ "absoluteAddress": place.pc });
        }
        value.insert("physicalLocation".to_string(), physical);
    }
    if let Some(kernel) = &place.kernel {
        let name = match place.offset {
            Some(offset) => format!("{kernel}+{offset:#x}"),
            None => kernel.clone(),
        };
        let logical = json!([{ "name": kernel, "fullyQualifiedName": name, "kind": "function" }]);
        value.insert("logicalLocations".to_string(), logical);
    }
    Value::Object(value)
}

/// A path as a URI reference: other characters than a path's own as bytes in hexadecimal.
fn uri(path: &str) -> String {
    let mut uri = String::new();
    if path.starts_with('/') {
        uri.push_str("file://");
    }
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(byte.into()),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Check, Finding, Severity, Source};

    fn tool() -> Tool {
        let rule = |id: &str| Rule { id: id.to_string(), summary: "A rule".to_string(), help: None };
        Tool { name: "vkfd".to_string(), version: "1".to_string(), rules: vec![rule("other"), rule("waits/vmcnt")] }
    }

    #[test]
    fn a_result_has_rule_place_and_partner() {
        let place = Place {
            kernel: Some("sum".to_string()),
            pc: 0x1940,
            offset: Some(0x40),
            instruction: Some("v_add_u32 v0, v1, v2".to_string()),
            source: Some(Source { file: "src/my sum.hip".to_string(), line: 7, column: 9 }),
            ..Place::default()
        };
        let mut finding = Finding::new(Check::Waits, "waits/vmcnt", Severity::Error, "v1 is late".to_string(), place);
        let other = Place { object: Some("/tmp/a.co".to_string()), pc: 0x1900, ..Place::default() };
        finding.notes = vec![Note { message: "loaded here".to_string(), place: Some(other), thread: None }];
        let mut findings = Findings::default();
        findings.add_many(finding, 4);
        let document = sarif(&findings, &tool());
        assert_eq!(document["version"], "2.1.0");
        let result = &document["runs"][0]["results"][0];
        assert_eq!(result["ruleId"], "waits/vmcnt");
        assert_eq!(result["ruleIndex"], 1);
        assert_eq!(result["level"], "error");
        assert_eq!(result["occurrenceCount"], 4);
        assert_eq!(result["message"]["text"], "v1 is late: v_add_u32 v0, v1, v2");
        let physical = &result["locations"][0]["physicalLocation"];
        assert_eq!(physical["artifactLocation"]["uri"], "src/my%20sum.hip");
        assert_eq!(physical["region"], json!({ "startLine": 7, "startColumn": 9 }));
        assert_eq!(result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"], "sum+0x40");
        let related = &result["relatedLocations"][0];
        assert_eq!(related["message"]["text"], "loaded here");
        assert_eq!(related["physicalLocation"]["artifactLocation"]["uri"], "file:///tmp/a.co");
        assert_eq!(related["physicalLocation"]["address"]["absoluteAddress"], 0x1900);
    }

    #[test]
    fn no_findings_make_a_document_with_rules() {
        let document = sarif(&Findings::default(), &tool());
        assert_eq!(document["runs"][0]["results"], json!([]));
        assert_eq!(document["runs"][0]["tool"]["driver"]["rules"][1]["id"], "waits/vmcnt");
    }
}
