// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What `vkfd run` records of a program: `--timeline` and `--summary`.

use crate::common;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Compiles the program; `None`, with a word, where there is no compiler.
fn program(directory: &Path) -> Option<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests/recorded.c");
    let to = directory.join("recorded");
    let Ok(compiled) = Command::new("cc").args(["-O1", "-o"]).arg(&to).arg(source).output() else {
        println!("skipped: no C compiler");
        return None;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(to.to_str().unwrap().to_owned())
}

fn run(arguments: &[&str]) -> Output {
    let ran = common::command(&[&["run"], arguments].concat()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "before\nafter\n");
    ran
}

#[test]
fn a_timeline_has_calls_copies_and_evictions() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    let path = directory.path().join("timeline.json");
    run(&["--timeline", path.to_str().unwrap(), "--", &program]);
    let document: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    let [first, second] = named("copy")[..] else { panic!("{events:?}") };
    assert_eq!(first["args"]["bytes"], 3 * 4096);
    let time = |event: &Value| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap_or(0.0));
    assert!(time(first).0 + time(first).1 <= time(second).0, "{first} {second}");
    // The page that went stopped the queue between the two copies, for the reason that it did.
    let [stopped] = named("queues stopped")[..] else { panic!("{events:?}") };
    assert_eq!(stopped["args"]["reason"], "userptr");
    assert!(time(first).0 < time(stopped).0 && time(stopped).1 > 0.0, "{first} {stopped}");
    // The driver sends the event of the restore before the queues go on.
    assert!(time(stopped).0 + time(stopped).1 <= time(second).0 + time(second).1, "{stopped} {second}");
    let [queue] = named("CREATE_QUEUE")[..] else { panic!("{events:?}") };
    assert!(time(queue).0 + time(queue).1 <= time(first).0, "{queue} {first}");
    let failed = named("FREE_MEMORY_OF_GPU");
    assert!(failed.iter().any(|call| call["args"]["result"] == "EINVAL"), "{failed:?}");
}

#[test]
fn a_summary_is_appended() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    let path = directory.path().join("summary.md");
    std::fs::write(&path, "# Before\n").unwrap();
    run(&["--target", "gfx900", "--summary", path.to_str().unwrap(), "--", &program]);
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.starts_with("# Before\n## `") && text.contains("recorded` on vkfd\n"), "{text}");
    assert!(text.contains("one GPU of target gfx900") && text.contains("None ran."), "{text}");
    for row in ["| copies | 2 |", "| bytes copied | 24576 |", "| evictions | 1 |", "| restores | 1 |"] {
        assert!(text.contains(row), "{row}: {text}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_the_program_runs() {
    for option in ["--timeline", "--summary"] {
        let ran = common::command(&["run", option, "/nowhere/file", "--", "echo", "ran"]).output().unwrap();
        let error = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(125), "{error}");
        assert!(error.contains("cannot write /nowhere/file") && ran.stdout.is_empty(), "{error}");
    }
}
