// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd doctor`: it tells systems on which `vkfd run` works from others.

use crate::common;

use common::json;
use serde_json::Value;

fn check<'a>(document: &'a Value, name: &str) -> &'a Value {
    let checks = document["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check {name} in {document:#}"))
}

#[test]
fn where_run_works_it_says_so() {
    let ran = common::command(&["doctor", "--json"]).output().unwrap();
    let document = json(&ran);
    assert_eq!((ran.status.code(), &document["run"]), (Some(0), &true.into()), "{document:#}");
    assert_eq!(check(&document, "run")["state"], "good");
    for name in
        ["library", "machine", "userfaultfd", "migration", "page tables", "memory", "mappings", "processor", "ROCR"]
    {
        assert!(check(&document, name)["found"].as_str().is_some_and(|found| !found.is_empty()), "{name}");
    }
    // The report of userfaultfd and the machine's source of notifications agree.
    let machine = check(&document, "machine")["found"].as_str().unwrap();
    let permitted = check(&document, "userfaultfd")["found"].as_str().unwrap().starts_with("permitted");
    assert_eq!(machine.contains("kernel's userfaultfd"), permitted, "{document:#}");
    let text = common::command(&["doctor"]).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("ok   run          a program under `vkfd run`"));
}

#[test]
fn where_run_does_not_work_it_says_why() {
    let broken = common::command(&["doctor", "--json"]).env("VKFD_PRELOAD", "/nowhere/library.so").output().unwrap();
    let document = json(&broken);
    assert_eq!((broken.status.code(), &document["run"]), (Some(1), &false.into()), "{document:#}");
    let check = check(&document, "run");
    assert_eq!(check["state"], "bad");
    assert!(check["found"].as_str().unwrap().contains("/nowhere/library.so"), "{check:#}");
    // A library that is one and does nothing: the program runs, and finds no device.
    let library = "/lib/x86_64-linux-gnu/libdl.so.2";
    if std::path::Path::new(library).exists() && !std::path::Path::new("/dev/kfd").exists() {
        let idle = common::command(&["doctor", "--json"]).env("VKFD_PRELOAD", library).output().unwrap();
        assert_eq!((idle.status.code(), &json(&idle)["run"]), (Some(1), &false.into()));
    }
}
