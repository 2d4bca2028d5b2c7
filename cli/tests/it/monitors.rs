// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What monitors read of processes: the list below `/sys/class/kfd/kfd/proc`, and what `/proc` says
//! of descriptors. On a shared machine they are other programs', in a program's process its own.

use crate::common;
use crate::shared::{child_of, monitor, text, Stand, Talk, SOON};
use std::collections::BTreeMap;
use std::time::Instant;
use vkfd_sabotage::Switch;

const LIST: &str = "/sys/class/kfd/kfd/proc";
/// The first GPU.
const GPU: &str = "19201";

/// Lines `KEY: VALUE`, by their keys.
fn by_key<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let pairs = lines.filter_map(|line| line.split_once(": ").or_else(|| line.split_once(":\t")));
    pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect()
}

/// What a file says to a monitor that joins.
fn number(stand: &Stand, file: &str) -> u64 {
    let said = monitor(stand, "", file);
    said.parse().unwrap_or_else(|_| panic!("{file}: {said:?}"))
}

/// The names in a directory, as a monitor sees them.
fn names(stand: &Stand, sabotage: &str, directory: &str) -> Vec<String> {
    let mut list = stand.command(&["run", "--shared", "lab", "--", "ls", directory]);
    let listed = list.env("VKFD_SABOTAGE", sabotage).output().unwrap();
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    text(&listed.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn monitors_see_the_processes_of_others() {
    let (Some(stand), Some(other)) = (Stand::new(), Stand::of("busy.c")) else { return };
    let _server = stand.serve();
    assert_eq!(names(&stand, "", LIST), [""; 0], "a monitor does not use the machine");
    let (mut holder, _) = stand.hold();
    let mut command = stand.command(&["run", "--shared", "lab", "--"]);
    command.arg(&other.program);
    let mut busy = Talk::start(command);
    assert_eq!(busy.line(), "submitted");
    let pids = [&holder, &busy].map(|talk| child_of(talk.child.id()).to_string());
    let mut sorted = pids.to_vec();
    sorted.sort();
    let mut listed = names(&stand, "", LIST);
    listed.sort();
    assert_eq!(listed, sorted);
    let of = |pid: &str, file: &str| format!("{LIST}/{pid}/{file}");
    let vram = format!("vram_{GPU}");
    assert_eq!([0, 1].map(|who| number(&stand, &of(&pids[who], &vram))), [32 << 20, 0], "each has its own");
    assert_eq!(monitor(&stand, "", &of(&pids[1], "pasid")), "0");
    assert_eq!(names(&stand, "", &of(&pids[1], "queues")), ["0", "1"], "of copies, and of kernels");
    let queue = ["gpuid", "size", "type"].map(|file| number(&stand, &of(&pids[1], &format!("queues/0/{file}"))));
    assert_eq!(queue, [19201, 65536, 1]);
    assert_eq!(number(&stand, &of(&pids[1], "queues/1/type")), 0);
    assert_eq!(number(&stand, &of(&pids[0], &format!("stats_{GPU}/evicted_ms"))), 0);
    let units = |who: usize| number(&stand, &of(&pids[who], &format!("stats_{GPU}/cu_occupancy")));
    let begun = Instant::now();
    while units(1) == 0 {
        assert!(begun.elapsed() < SOON, "a kernel that runs fills no part of a unit");
    }
    assert_eq!([0, 1].map(units), [0, 1], "each has its own waves");
    // The machine has no SVM.
    assert!(!names(&stand, "", &of(&pids[0], "")).iter().any(|name| name.starts_with("counters_")));
    // The control.
    assert_eq!(names(&stand, Switch::ListsAtStart.name(), LIST), [""; 0]);
    assert_eq!(holder.ask("end"), "ended");
    assert_eq!(holder.code(), Some(0));
    let begun = Instant::now();
    while names(&stand, "", LIST) != pids[1..] {
        assert!(begun.elapsed() < SOON, "one that has ended is still listed");
    }
}

/// Starts a monitor of the descriptors of `pid`.
fn watch(stand: &Stand, program: &Stand, pid: i32, sabotage: &str) -> Talk {
    let mut command = stand.command(&["run", "--shared", "lab", "--"]);
    command.arg(&program.program).args(["of", &pid.to_string()]).env("VKFD_SABOTAGE", sabotage);
    Talk::start(command)
}

/// What it says when it is asked.
fn said(watch: &mut Talk) -> Vec<String> {
    let mut all = vec![watch.ask("look")];
    while all.last().is_some_and(|line| line != "end" && !line.is_empty()) {
        all.push(watch.line());
    }
    all
}

#[test]
fn monitors_see_the_descriptors_of_others() {
    let (Some(stand), Some(lists)) = (Stand::of("busy.c"), Stand::of("lists.c")) else { return };
    let _server = stand.serve();
    let mut busy = Talk::start(stand.joined(&[]));
    assert_eq!(busy.line(), "submitted");
    let pid = child_of(busy.child.id());
    let mut monitor = watch(&stand, &lists, pid, "");
    let first = said(&mut monitor);
    let has = |line: &str| first.iter().any(|other| other == line);
    assert!(has("device /dev/kfd 510:0") && has("device /dev/dri/renderD128 226:128"), "{first:?}");
    let node = "/dev/dri/renderD128: ";
    let lines = |said: &[String]| by_key(said.iter().filter_map(|line| line.strip_prefix(node)));
    let facts = lines(&first);
    let get = |key: &str| facts.get(key).unwrap_or_else(|| panic!("{key}: {first:?}")).as_str();
    assert_eq!((get("pos"), get("drm-driver"), get("drm-pdev")), ("0", "amdgpu", "0000:03:00.0"));
    let kib = |text: &str| text.strip_suffix(" KiB").unwrap().parse::<u64>().unwrap();
    // A ring with its pointers, and three pages with a ring.
    assert_eq!(kib(get("drm-memory-gtt")), 68 + 76);
    assert!(kib(get("drm-memory-vram")) > 0, "page tables");
    let time = |said: &[String]| {
        let time = lines(said).get("drm-engine-compute").cloned().unwrap_or_else(|| panic!("{said:?}"));
        time.strip_suffix(" ns").unwrap().parse::<u64>().unwrap()
    };
    // It counts while the kernel runs.
    let (begun, before) = (Instant::now(), time(&first));
    while time(&said(&mut monitor)) <= before + 10_000_000 {
        assert!(begun.elapsed() < SOON);
    }
    assert_eq!(monitor.code(), Some(0));
    // The control.
    let mut blind = watch(&stand, &lists, pid, Switch::ListsAtStart.name());
    assert_eq!(said(&mut blind), ["end"]);
    assert_eq!(blind.code(), Some(0));
    assert_eq!(busy.code(), Some(0));
}

#[test]
fn an_answer_leaves_the_room_behind_it_alone() {
    let Some(lists) = Stand::of("lists.c") else { return };
    let _server = lists.serve();
    assert_eq!(lists.said(&["room"]), "written 24 of 24");
}

/// What a program sees of itself, on a machine of its own.
fn own(lists: &Stand, sabotage: &str) -> (u32, String) {
    let mut command = common::command(&["run", "--gpus", "2", "--"]);
    let ran = command.arg(&lists.program).arg("own").env("VKFD_SABOTAGE", sabotage).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let said = text(&ran.stdout);
    let pid = said.split('/').next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
    (pid, said)
}

#[test]
fn a_program_sees_itself() {
    let Some(lists) = Stand::of("lists.c") else { return };
    let (pid, said) = own(&lists, "");
    let facts = by_key(said.lines());
    let number = |path: &str| {
        let path = format!("{pid}/{path}");
        facts.get(&path).and_then(|value| value.parse::<u64>().ok()).unwrap_or_else(|| panic!("{path}: {said}"))
    };
    assert_eq!((number("vram_19201"), number("vram_19202")), (2 << 20, 0));
    assert_eq!((number("queues/0/gpuid"), number("queues/0/size"), number("queues/0/type")), (19201, 65536, 1));
    assert!(number("sdma_19201") > 0 && number("sdma_19202") == 0, "{said}");
    assert!(number("stats_19201/evicted_ms") > 0, "{said}");
    assert_eq!(["faults", "page_in", "page_out"].map(|name| number(&format!("counters_19201/{name}"))), [0; 3]);
    assert!(said.lines().filter(|line| line.contains("/pasid: ")).count() == 1, "nobody else: {said}");
    let node = by_key(said.lines().filter_map(|line| line.strip_prefix("/dev/dri/renderD128: ")));
    assert_eq!((node["drm-client-id"].as_str(), node["drm-memory-gtt"].as_str()), ("1", "8260 KiB"), "{said}");
    assert!(node.contains_key("drm-engine-dma") && !node.contains_key("drm-engine-compute"), "{said}");
    // Controls: the lists, and a number in each.
    assert_eq!(own(&lists, Switch::ListsAtStart.name()).1, "end\n");
    let (pid, said) = own(&lists, Switch::UntimedEvictions.name());
    assert_eq!(by_key(said.lines())[&format!("{pid}/stats_19201/evicted_ms")], "0");
    let (pid, said) = own(&lists, Switch::EveryonesMemory.name());
    assert_ne!(by_key(said.lines())[&format!("{pid}/vram_19201")], (2 << 20).to_string());
}
