// SPDX-License-Identifier: GPL-2.0 OR MIT
use super::*;

/// The files of a run: one process with two GPUs.
fn recorded() -> Recorded {
    let directory = tempfile::tempdir().unwrap();
    let lines = "kernel\t0\t0\t5000\t9000\t2\t8\t1000\tsaxpy\n\
                 copy\t1\t4\t6000\t6500\t4096\tcopy\n\
                 event\t0\t4000\t7 1 -77 @10(4b01) W\n\
                 event\t0\t4100\t7 1 -77 @11(4b01) R\n\
                 event\t0\t4200\t5 1 -77 @10(2) 0->4b01 4b01:0 1\n\
                 event\t0\t4300\t6 1 -77 @10(2) 0->4b01 1 0\n\
                 event\t0\t4400\t8 1 -77 @10(4b01) M\n\
                 event\t0\t4500\t8 1 -77 @11(4b01) U\n\
                 event\t0\t4600\t7 1 -77 @12(4b01) R\n\
                 event\t0\t4700\t8 1 -77 @12(4b01) U\n\
                 event\t0\t7000\t9 1 -77 4b01 1\n\
                 event\t0\t8000\ta 1 -77 4b01 0\n\
                 event\t0\t8100\tb 1 -77 @10(2) 4b01 2\n\
                 left out\t5\n\
                 kernel\t0\t3\t99";
    fs::write(directory.path().join("77"), lines).unwrap();
    let call = r#"{"time":3e-6,"thread":78,"device":"/dev/kfd","call":"CREATE_QUEUE","arguments":{},"result":"ok","changed":{},"microseconds":0.5}"#;
    let failed = call.replace("\"ok\"", "\"EINVAL\"");
    fs::write(directory.path().join(CALLS), format!("{call}\n{failed}\n{{\"time\":")).unwrap();
    Recorded::read(directory.path()).unwrap()
}

#[test]
fn what_was_recorded_is_counted() {
    let sums = Sums {
        kernels: 1,
        copies: 1,
        bytes_copied: 4096,
        calls: 2,
        failed_calls: 1,
        faults_served: 3,
        faults: 0,
        migrations: 1,
        pages_migrated: 2,
        evictions: 1,
        restores: 1,
        invalidations: 1,
        left_out: 5,
    };
    assert_eq!(recorded().sums(), sums);
}

#[test]
fn the_timeline_has_a_row_for_each_queue_and_thread() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("timeline.json");
    recorded().write(&path, "gfx900").unwrap();
    let document: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    let rows: Vec<_> = events.iter().filter(|event| event["ph"] == "M").map(|e| e["args"]["name"].clone()).collect();
    for row in [
        "calls on the devices",
        "thread 78",
        "GPU 0 (gfx900) of process 77",
        "compute queue 0",
        "GPU 1 (gfx900) of process 77",
        "SDMA queue 4",
        "page faults",
        "page faults (2)",
        "migrations",
        "evictions",
        "unmaps",
    ] {
        assert_eq!(rows.iter().filter(|name| *name == row).count(), 1, "{row}: {rows:?}");
    }
    // A row with the number of its process, or none, would be shown with another.
    assert!(events.iter().filter(|event| event["ph"] != "M").all(|event| event["tid"] != 0), "{events:?}");
    // The first call began at 3 us, which is the timeline's 0.
    let [kernel] = named("saxpy")[..] else { panic!("{events:?}") };
    assert_eq!((kernel["ts"].as_f64(), kernel["dur"].as_f64()), (Some(2.0), Some(4.0)));
    assert_eq!(kernel["args"]["instructions"], 1000);
    assert_eq!(named("CREATE_QUEUE").len(), 2);
    // Two faults overlap, so that each has a row. A third comes when the first row is free again.
    let [first, second, third] = named("page fault")[..] else { panic!("{events:?}") };
    assert_eq!((first["ts"].as_f64(), second["ts"].as_f64(), third["ts"].as_f64()), (Some(1.0), Some(1.1), Some(1.6)));
    assert_eq!(first["args"]["address"], "0x10000");
    assert_ne!(first["tid"], second["tid"]);
    assert_eq!(first["tid"], third["tid"]);
    let [stopped] = named("queues stopped")[..] else { panic!("{events:?}") };
    assert_eq!((stopped["ts"].as_f64(), stopped["dur"].as_f64()), (Some(4.0), Some(1.0)));
    assert_eq!(stopped["args"]["reason"], "userptr");
    assert_eq!(named("unmapped by the program").len(), 1);
}
