// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The built program, run as a user runs it: exit codes, JSON fields, messages.

use crate::common;

use common::{json, step};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

fn vkfd(arguments: &[&str]) -> Output {
    common::command(arguments).output().unwrap()
}

/// A short list with neighbours, gaps and several sizes.
const SHORT: &str =
    "# short\n9000 1000\n1000 2000\n3000 1000\n100000 8000\n5000 1000\n7000 1000\n200000 3000\n300000 1000\n";

#[test]
fn the_demo_holds_on_the_smallest_list() {
    let run = vkfd(&["demo", "--list", "fresh-64M", "--rounds", "1", "--json"]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    assert_eq!(document["ok"], true);
    let list = &document["lists"][0];
    assert_eq!((&list["ranges"], &list["bytes"]), (&73.into(), &(64 << 20).into()));
    let registered = step(&document, "register");
    assert_eq!((&registered["outcome"], &registered["numbers"]["objects"]), (&"ok".into(), &1.into()));
    for name in ["page-table", "sum64", "crc32", "copy", "saxpy", "release", "cost"] {
        let step = step(&document, name);
        assert_eq!(step["outcome"], "ok", "{step:#}");
        assert!(name == "cost" || !step["checks"].as_array().unwrap().is_empty(), "{name} checks nothing");
    }
    assert_eq!(step(&document, "page-table")["numbers"]["pages"], 16384);
    let ways: Vec<_> = list["costs"]["ways"].as_array().unwrap().iter().map(|way| way["way"].clone()).collect();
    assert_eq!(ways, ["batch", "per-range", "contiguous"]);
}

/// What the driver is notified of is seen in its counters; what it is not notified of is skipped
/// with a reason.
#[test]
fn changes_are_counted_or_skipped() {
    let run = vkfd(&["demo", "--list", "fresh-64M", "--rounds", "0", "--json", "--seed", "9"]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    let told = &document["kfd"]["notifications"];
    for (name, by) in [
        ("unmap", "unmap"),
        ("replace", "unmap"),
        ("move", "remap"),
        ("discard", "discard"),
        ("discard-past-libc", "raw_system_calls"),
        ("protect", "protect"),
    ] {
        let step = step(&document, name);
        if told[by] == true {
            assert_eq!(step["outcome"], "ok", "{step:#}");
            let [before, after] =
                ["before", "after"].map(|when| step["numbers"]["invalidations"][when].as_u64().unwrap());
            assert!(after > before, "{step:#}");
        } else {
            assert_eq!(step["outcome"], "skipped", "{step:#}");
            assert!(!step["reason"].as_str().unwrap().is_empty());
        }
    }
    if told["unmap"] == true {
        let fault = step(&document, "fault")["numbers"]["fault_va"].as_str().unwrap().to_owned();
        assert!(fault.starts_with("0x"), "{fault}");
    }
}

#[test]
fn xnack_several_gpus_and_a_notifier_for_each_range() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("short.ranges");
    fs::write(&list, SHORT).unwrap();
    let list = list.to_str().unwrap();
    let common = ["demo", "--list", list, "--rounds", "0", "--json"];
    let run = vkfd(&[&common[..], &["--xnack", "--gpus", "2"]].concat());
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    assert_eq!((&document["kfd"]["xnack"], document["kfd"]["gpus"].as_array().unwrap().len()), (&true.into(), 2));
    assert_eq!(step(&document, "crc32")["numbers"]["checksums"].as_array().unwrap().len(), 2);
    for (windows, expected) in [("clustered", 1), ("per-range", 8)] {
        let run = vkfd(&[&common[..], &["--windows", windows]].concat());
        let document = json(&run);
        assert_eq!(run.status.code(), Some(0), "{document:#}");
        assert_eq!(step(&document, "driver-view")["numbers"]["windows"], expected);
    }
}

#[test]
fn a_single_page_is_a_list() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("page.ranges");
    fs::write(&list, "1000 1000\n").unwrap();
    let run = vkfd(&["demo", "--list", list.to_str().unwrap(), "--rounds", "1", "--json"]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    assert_eq!(step(&document, "saxpy")["outcome"], "skipped");
}

/// What moved and what did not is in the counters of every step; where nothing can move, that is
/// said.
#[test]
fn the_life_of_a_buffer_in_a_gpus_memory() {
    const PAGES: u64 = (16 << 20) / 4096;
    for (more, memory) in
        [(&[][..], "coherent"), (&["--gpus", "3", "--xnack"], "coherent"), (&["--private"], "private")]
    {
        let run = vkfd(&[&["demo", "coherent", "--size", "16", "--json"], more].concat());
        let document = json(&run);
        assert_eq!(run.status.code(), Some(0), "{document:#}");
        assert_eq!(document["ok"], true);
        if document["memory"] == "none" {
            let life = step(&document, "life");
            assert_eq!(life["outcome"], "skipped");
            assert!(life["reason"].as_str().unwrap().contains("userfaultfd"), "{life:#}");
            continue;
        }
        assert_eq!(document["memory"], memory);
        let on_gpu = |name: &str| {
            let pages = &step(&document, name)["numbers"]["pages_on_gpu"];
            ["before", "after"].map(|when| pages[when].as_u64().unwrap())
        };
        assert_eq!([on_gpu("begin"), on_gpu("prefetch"), on_gpu("compute")], [[0, 0], [0, PAGES], [PAGES, PAGES]]);
        let read = if memory == "coherent" { PAGES } else { 0 };
        assert_eq!([on_gpu("cpu-reads"), on_gpu("cpu-writes")], [[PAGES, read]; 2]);
        assert!(on_gpu("pressure")[1] <= PAGES / 2);
        assert!(step(&document, "pressure")["numbers"]["evicted_bytes"].as_u64().unwrap() >= 8 << 20);
        assert_eq!([on_gpu("again")[1], on_gpu("end")[1]], [PAGES, 0]);
        for step in document["steps"].as_array().unwrap() {
            assert!(!step["checks"].as_array().unwrap().is_empty(), "{step:#}");
        }
    }
}

#[test]
fn a_host_that_cannot_move_memory_says_so() {
    let run = common::command(&["demo", "coherent", "--size", "4"]).env("VKFD_NOTIFY", "interpose").output().unwrap();
    let text = String::from_utf8(run.stdout).unwrap();
    assert_eq!(run.status.code(), Some(0), "{text}");
    assert!(text.contains("Nothing could be shown") && text.contains("userfaultfd"), "{text}");
}

/// Before anything has been tried, and with a size that works.
#[test]
fn buffers_that_cannot_be_are_refused_in_words() {
    for (size, words) in [("3M", "a multiple of 2M"), ("0", "a multiple of 2M"), ("4096", "--size 1014M does")] {
        let run = vkfd(&["demo", "coherent", "--size", size]);
        let said = String::from_utf8(run.stderr).unwrap();
        if String::from_utf8(run.stdout).unwrap().contains("Nothing could be shown") {
            continue;
        }
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn moving_is_measured_and_every_target_has_a_figure() {
    let run = vkfd(&["bench", "migrate", "--quick", "--rounds", "1", "--memory", "1G", "--json"]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    if document["left_out"].as_array().unwrap().iter().any(|left_out| left_out["what"] == "everything") {
        return;
    }
    let measurements = document["measurements"].as_array().unwrap();
    for section in ["transfer", "fault", "touch", "pressure"] {
        for memory in ["coherent", "private"] {
            let of = |m: &&serde_json::Value| m["section"] == section && m["memory"] == memory;
            assert!(measurements.iter().any(|m| of(&m)), "{section}, {memory}: {document:#}");
        }
    }
    let targets = document["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 7, "{targets:#?}");
    assert!(targets.iter().all(|target| target["measured"]["median"].as_f64().unwrap() > 0.0), "{targets:#?}");
    assert!(document["oversubscription"].as_array().unwrap().iter().all(|set| set["evictions"].as_u64().unwrap() > 0));
}

#[test]
fn a_guests_memory_is_measured_in_every_way_or_left_out_by_name() {
    let run = vkfd(&["bench", "native", "--quick", "--rounds", "1", "--memory", "600M", "--json"]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    let (jobs, left_out) = (document["jobs"].as_array().unwrap(), document["left_out"].as_array().unwrap());
    for (pages, pieces) in [(1, "1 piece"), (256, "256 pieces"), (4096, "4,096 pieces"), (16_384, "16,384 pieces")] {
        for (way, name) in [("batch", None), ("per_range", Some("one call per range")), ("mremap", Some("mremap"))] {
            let left_out = name.is_some_and(|name| {
                let what = format!("{pieces}, {name}");
                left_out.iter().any(|left_out| left_out["what"] == what.as_str())
            });
            let found = ["kernel", "copy"].into_iter().all(|pass| {
                let of = |job: &&serde_json::Value| job["pages"] == pages && job["way"] == way && job["pass"] == pass;
                jobs.iter().find(of).is_some_and(|job| job["percent"]["median"].as_f64().unwrap() > 0.0)
            });
            assert!(found || left_out, "{pieces}, {way}: {document:#}");
        }
    }
    let targets = document["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 2, "{targets:#?}");
    assert!(targets.iter().all(|target| target["measured"]["median"].as_f64().unwrap() > 0.0), "{targets:#?}");
    assert_eq!(document["published"].as_array().unwrap().len(), 2);
}

#[test]
fn nine_kernels_are_right_without_pocl() {
    let run = vkfd(&["bench", "opencl", "--quick", "--rounds", "1", "--no-pocl", "--json"]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    let measurements = document["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 9, "{document:#}");
    assert!(measurements.iter().all(|m| m["seconds"]["median"].as_f64().unwrap() > 0.0), "{document:#}");
    assert!(document["left_out"].as_array().unwrap().iter().any(|left_out| left_out["what"] == "PoCL"));
    assert!(measurements.iter().all(|m| m["relative_to_interpreter"]["median"].as_f64().unwrap() > 0.0));
    assert!(document["geometric_mean"].is_null());
    let [least] = &document["targets"].as_array().unwrap()[..] else { panic!("{document:#}") };
    assert!(least["what"].as_str().unwrap().contains("interpreter"), "{least:#}");
}

#[test]
fn a_guests_memory_is_measured_in_this_process_alone() {
    let run = vkfd(&["bench", "native", "--device", "/dev/null"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8(run.stderr).unwrap().contains("in this process"));
}

#[test]
fn text_is_for_people() {
    let run = vkfd(&["demo", "--list", "fresh-64M", "--rounds", "1", "--verbose"]);
    let text = String::from_utf8(run.stdout).unwrap();
    assert_eq!(run.status.code(), Some(0), "{text}");
    for part in [
        "1. Registration",
        "2. Work",
        "3. The CPU changes",
        "4. What it costs",
        "checked: ",
        "All checks held",
        "Objects (BOs)",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(!text.contains('\x1b'), "no colour where there is no terminal");
    assert!(run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn wrong_use_is_2_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.ranges");
    fs::write(&bad, "1000 1000\n# fine so far\n2001 1000\n").unwrap();
    let bad = bad.to_str().unwrap();
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    for (arguments, words) in [
        (vec!["demo", "--list", bad], vec!["line 3", "0x2001", "page size"]),
        (vec!["demo", "--list", "no-such-list"], vec!["no-such-list", "aged-4k-256M"]),
        (vec!["demo", "--no-such-option"], vec!["--no-such-option"]),
        (vec!["demo", "--gpus", "0"], vec!["--gpus"]),
        (vec!["demo", "--mmap"], vec!["--input"]),
        (vec!["demo", "--device", "/dev/no-such-kfd"], vec!["/dev/no-such-kfd", "without --device"]),
        (vec!["inspect", "--device", "/dev/no-such-kfd"], vec!["/dev/no-such-kfd"]),
        (vec!["demo", "--input", "/no/such/directory"], vec!["/no/such/directory"]),
        (vec!["demo", "--input", empty.to_str().unwrap()], vec!["no regular file"]),
        (vec!["demo", "--input", "/", "--all-lists"], vec!["--all-lists"]),
    ] {
        let run = vkfd(&arguments);
        let message = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(words.iter().all(|word| message.contains(word)), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{message}");
    }
}

#[test]
fn files_are_checked_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    // The well-known value first; then sizes around the page size, and none at all.
    let mut expected = vec![("a-check".to_owned(), b"123456789".to_vec())];
    for size in [0, 1, 4095, 4096, 4097, 100_003] {
        expected.push((format!("sub/{size}"), (0..size).map(|i: u32| u8::try_from(i * 31 % 251).unwrap()).collect()));
    }
    for (name, content) in &expected {
        fs::write(dir.path().join(name), content).unwrap();
    }
    for mode in [&[][..], &["--mmap"]] {
        let run = vkfd(&[&["demo", "--json", "--input", dir.path().to_str().unwrap()], mode].concat());
        let document = json(&run);
        assert_eq!(run.status.code(), Some(0), "{document:#}");
        let files = document["files"].as_array().unwrap();
        assert_eq!(files.len(), expected.len());
        for (name, content) in &expected {
            let path = dir.path().join(name);
            let file = files.iter().find(|file| file["path"] == path.to_str().unwrap()).unwrap();
            assert_eq!(file["bytes"], content.len());
            assert_eq!(file["crc32_gpu"], format!("{:08x}", crc32fast::hash(content)), "{name}");
        }
        assert_eq!(files.iter().find(|file| file["bytes"] == 9).unwrap()["crc32_gpu"], "cbf43926");
        // The padding counts for the GPU range, the empty file does not.
        assert_eq!(step(&document, "register")["numbers"]["gpu_bytes"], (1 + 1 + 1 + 1 + 2 + 25) * 4096);
        assert_eq!(step(&document, "register")["numbers"]["ranges"], 6);
    }
    let run = vkfd(&["demo", "--json", "--max-files", "2", "--input", dir.path().to_str().unwrap()]);
    let document = json(&run);
    assert_eq!((document["files"].as_array().unwrap().len(), &document["max_files_reached"]), (2, &true.into()));
}

#[test]
fn nothing_but_empty_files_is_fine() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("empty"), "").unwrap();
    let run = vkfd(&["demo", "--json", "--input", dir.path().to_str().unwrap()]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    assert_eq!(document["files"][0]["crc32_gpu"], "00000000");
    assert_eq!(step(&document, "register")["outcome"], "skipped");
}

#[test]
fn a_file_that_cannot_be_read_is_1_unless_skipped() {
    // Its size is said to be a page, and reading ends long before: also for root, which may open
    // everything.
    let short = "/sys/kernel/uevent_seqnum";
    let run = vkfd(&["demo", "--json", "--input", short]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(1), "{document:#}");
    assert_eq!((&document["ok"], &document["errors"][0]["path"]), (&false.into(), &short.into()));
    let run = vkfd(&["demo", "--json", "--skip-errors", "--input", short]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    assert_eq!(document["errors"].as_array().unwrap().len(), 1);
}

#[test]
fn a_directory_that_cannot_be_listed_does_not_hide_the_others() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("fine"), "fine").unwrap();
    let locked = dir.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    // Root may list it.
    let listed = fs::read_dir(&locked).is_ok();
    let run = vkfd(&["demo", "--json", "--input", dir.path().to_str().unwrap()]);
    let document = json(&run);
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(run.status.code(), Some(i32::from(!listed)), "{document:#}");
    assert_eq!(document["errors"].as_array().unwrap().len(), usize::from(!listed));
    assert_eq!(document["files"][0]["ok"], true);
}

#[test]
fn inspect_shows_the_drivers_state() {
    let run = vkfd(&["inspect", "--json", "--ptes", "--all"]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    assert_eq!((&document["process"]["userptr_ranges"], &document["caps"]["batch"]), (&73.into(), &true.into()));
    let bos = document["bos"].as_array().unwrap();
    let userptr = bos.iter().find(|bo| bo["kind"] == "userptr").unwrap();
    assert_eq!((userptr["ranges"].as_array().unwrap().len(), &userptr["bytes"]), (73, &(64 << 20).into()));
    assert_eq!(userptr["ptes"][0]["pages"], 16384);
    assert!(bos.iter().any(|bo| bo["kind"] == "VRAM") && bos.iter().any(|bo| bo["kind"] == "GTT"));
    let text = String::from_utf8(vkfd(&["inspect", "--ptes"]).stdout).unwrap();
    for part in ["KFD", "Nodes", "Process", "Objects (BOs)", "Ranges of object", "Page-table entries", "and 63 more"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let mut child = common::command(&["demo", "--list", "fresh-64M", "--rounds", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let run = child.wait_with_output().unwrap();
    assert_eq!(run.status.code(), Some(141));
    assert!(run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn version_and_completions() {
    assert_eq!(
        String::from_utf8(vkfd(&["--version"]).stdout).unwrap().trim(),
        concat!("vkfd ", env!("CARGO_PKG_VERSION"))
    );
    assert!(String::from_utf8(vkfd(&["completions", "bash"]).stdout).unwrap().contains("_vkfd"));
}
