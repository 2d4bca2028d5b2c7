// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd lint` on kernels with planted bugs and their correct twins, in each of its forms.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Output;

use common::json;
use vkfd_isa::Target;

/// Kernels with planted bugs.
fn code(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../cu/tests/it/checks/planted-{target}.co"))
}

fn lint(file: &Path, more: &[&str]) -> Output {
    common::command(&["lint"]).arg(file).args(more).output().unwrap()
}

fn printed(run: &Output) -> String {
    String::from_utf8(run.stdout.clone()).unwrap()
}

#[test]
fn a_missing_wait_is_found_and_its_twin_is_silent() {
    for target in Target::ALL.map(Target::name) {
        let run = lint(&code(target), &["--kernel", "early_load"]);
        let text = printed(&run);
        assert_eq!(run.status.code(), Some(1), "{target}: {text}");
        assert!(text.contains("[waits/vmcnt]") && text.contains("(early_load + 0x"), "{target}: {text}");
        assert!(text.contains("the result is that of"), "{target}: {text}");
        let run = lint(&code(target), &["--kernel", "early_load_twin"]);
        assert_eq!((run.status.code(), &*printed(&run)), (Some(0), "1 kernels and functions: no finding\n"));
        // The other check does not look for waits.
        let run = lint(&code(target), &["--kernel", "early_load", "--check", "hazards"]);
        assert_eq!(run.status.code(), Some(0), "{target}: {}", printed(&run));
    }
}

#[test]
fn findings_are_documents_too() {
    let kernel = ["--kernel", "early_*", "--kernel", "store_all"];
    let run = lint(&code("gfx900"), &[&kernel[..], &["--json", "--error-exitcode", "7"]].concat());
    assert_eq!(run.status.code(), Some(7));
    let document = json(&run);
    let findings = document["findings"].as_array().unwrap();
    let rules: Vec<&str> = findings.iter().map(|finding| finding["rule"].as_str().unwrap()).collect();
    assert!(rules.contains(&"waits/vmcnt") && rules.contains(&"waits/lgkmcnt"), "{rules:?}");
    assert!(rules.iter().all(|rule| rule.starts_with("waits/")), "{rules:?}");

    let run = lint(&code("gfx900"), &[&kernel[..], &["--sarif"]].concat());
    let document = json(&run);
    assert_eq!(document["version"], "2.1.0");
    let results = document["runs"][0]["results"].as_array().unwrap();
    assert_eq!(results.len(), findings.len());
    let known = document["runs"][0]["tool"]["driver"]["rules"].as_array().unwrap();
    for result in results {
        assert!(known.iter().any(|rule| rule["id"] == result["ruleId"]), "{result}");
    }
}

#[test]
fn accepted_findings_are_none_and_unused_lines_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("accepted");
    std::fs::write(&file, "rule=waits/* kernel=early_*\nrule=race/* kernel=nobody\n").unwrap();
    let accepted = file.to_str().unwrap();
    let run = lint(&code("gfx90a"), &["--kernel", "early_*", "--suppress", accepted]);
    let text = printed(&run);
    assert_eq!(run.status.code(), Some(0), "{text}");
    assert!(text.contains("nobody") && !text.contains("[waits"), "{text}");
}

#[test]
fn a_file_that_cannot_be_read_ends_it() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    for file in [own.as_path(), Path::new("/nonexistent.co")] {
        let run = lint(file, &[]);
        let said = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains(file.file_name().unwrap().to_str().unwrap()), "{said}");
    }
}
