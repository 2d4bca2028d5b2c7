// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What monitors read of processes: the entries of `/sys/class/kfd/kfd/proc`, and the lines of
//! `/proc/PID/fdinfo`. Each number has a control: a broken driver, with which it is another one.

use crate::drm::{Memory, BASE};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vkfd_driver::base::addr::{CpuVa, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::drm::RenderFile;
use vkfd_driver::machine::kfd::{Kfd, Options};
use vkfd_driver::machine::listing::ProcessFiles;
use vkfd_driver::sabotage::{Switch, Switches};
use vkfd_driver::seams::gpu::{FaultReason, Share};
use vkfd_sim::svm::{self, AT};
use vkfd_sim::{Rig, GPU_ID, WRITABLE_USERPTR};
use vkfd_uapi::command::{CREATE_QUEUE, DESTROY_QUEUE};
use vkfd_uapi::drm::{ListHead, INFO_FDINFO, INFO_PROCESSES};
use vkfd_uapi::memory::{ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::queue::{
    CreateQueueArgs, DestroyQueueArgs, QUEUE_TYPE_COMPUTE, QUEUE_TYPE_COMPUTE_AQL, QUEUE_TYPE_SDMA,
    QUEUE_TYPE_SDMA_XGMI,
};
use vkfd_uapi::svm::{SVM_ATTR_ACCESS, SVM_ATTR_PREFETCH_LOC};

const INFO: u32 = 0x4020_6445;
const ANSWER: usize = 64;
const VA: u64 = 0x70_0000_0000;

/// A question of INFO with room for `room` bytes: the answer.
fn ask(
    rig: &Rig,
    file: &RenderFile,
    query: u32,
    arguments: [u32; 4],
    room: usize,
) -> std::result::Result<Vec<u8>, Errno> {
    let memory = Memory::of(ANSWER + room);
    let words = [query].into_iter().chain(arguments).flat_map(u32::to_ne_bytes);
    let size = u32::try_from(room).unwrap();
    let argument: Vec<u8> =
        (BASE + ANSWER as u64).to_ne_bytes().into_iter().chain(size.to_ne_bytes()).chain(words).collect();
    memory.put(0, &argument);
    file.ioctl(&memory, Some(&rig.process), INFO, CpuVa(BASE)).map_err(|error| error.errno)?;
    Ok(memory.into_bytes().split_off(ANSWER))
}

/// All entries, asked for with room for `room` bytes.
fn entries_by(rig: &Rig, room: usize) -> BTreeMap<String, String> {
    let file = RenderFile::new(rig.process.kfd(), 0).unwrap();
    let (mut all, mut next) = (BTreeMap::new(), ListHead { process: 1, ..ListHead::zeroed() });
    while next.process != 0 {
        let halves = [next.process & 0xffff_ffff, next.process >> 32].map(|half| u32::try_from(half).unwrap());
        let answer = ask(rig, &file, INFO_PROCESSES, [halves[0], halves[1], next.entry, 0], room).unwrap();
        let (head, rest) = answer.split_at(size_of::<ListHead>());
        next.as_bytes_mut().copy_from_slice(head);
        let text = std::str::from_utf8(&rest[..next.bytes as usize]).unwrap();
        let mut parts = text.split_terminator('\0');
        while let (Some(path), Some(text)) = (parts.next(), parts.next()) {
            assert_eq!(all.insert(path.to_owned(), text.to_owned()), None, "{path} is there twice");
        }
    }
    all
}

/// Those of this test's process, without its number.
fn entries(rig: &Rig) -> BTreeMap<String, String> {
    let own = format!("{}/", std::process::id());
    let shorter = |(path, text): (String, String)| (path.strip_prefix(&own).unwrap_or(&path).to_owned(), text);
    entries_by(rig, 12 << 10).into_iter().map(shorter).collect()
}

fn number(rig: &Rig, path: &str) -> u64 {
    let all = entries(rig);
    all.get(path).unwrap_or_else(|| panic!("{path} is not in {all:?}")).trim_end().parse().unwrap()
}

fn broken(switch: Option<Switch>) -> Options {
    Options { sabotage: switch.map_or(Switches::NONE, Switches::from), ..Options::default() }
}

fn listed(options: Options, gpus: u32) -> Rig {
    let rig = Rig::with_gpus(options, gpus, 4096);
    rig.process.list().unwrap();
    rig
}

#[test]
fn a_process_is_listed_until_it_ends() {
    let rig = Rig::new(Options::default());
    assert_eq!(entries(&rig), BTreeMap::new(), "one that did not open KFD's device");
    rig.process.list().unwrap();
    rig.process.list().unwrap();
    let paths: Vec<_> = entries(&rig).into_keys().collect();
    let wanted = [
        "counters_5/faults",
        "counters_5/page_in",
        "counters_5/page_out",
        "pasid",
        "queues/",
        "sdma_5",
        "stats_5/cu_occupancy",
        "stats_5/evicted_ms",
        "vram_5",
    ];
    assert_eq!(paths, wanted);
    assert_eq!(entries(&rig)["pasid"], "0\n");
    // A second one of the same PID.
    let other = rig.process.kfd().open(std::sync::Arc::new(vkfd_sim::SimMm::default())).unwrap();
    other.list().unwrap();
    assert_eq!(entries(&rig).len(), 18);
    assert_eq!(entries(&rig)["context_0/vram_5"], "0\n");
    other.release();
    assert_eq!(entries(&rig).len(), 9);
    assert!(rig.close().is_ok(), "the list keeps nothing");
    assert_eq!(entries(&rig), BTreeMap::new());
    // One that has ended does not come back.
    rig.process.list().unwrap();
    assert_eq!(entries(&rig), BTreeMap::new());
}

#[test]
fn entries_come_in_any_pieces() {
    let rig = listed(Options::default(), 3);
    let whole = entries_by(&rig, 12 << 10);
    assert_eq!(whole.len(), 2 + 3 * 7);
    for room in [112, 113, 150, 200, 333] {
        assert_eq!(entries_by(&rig, room), whole, "{room} bytes at a time");
    }
    let file = RenderFile::new(rig.process.kfd(), 0).unwrap();
    assert_eq!(ask(&rig, &file, INFO_PROCESSES, [0; 4], 111), Err(Errno::EINVAL));
    // From an entry on that no process has.
    let answer = ask(&rig, &file, INFO_PROCESSES, [1, 0, u32::MAX, 0], 4096).unwrap();
    assert_eq!(answer[..size_of::<ListHead>()], [0; 16]);
}

/// Of a queue in four pages at `VA`.
fn queue_args() -> CreateQueueArgs {
    CreateQueueArgs {
        ring_base_address: VA,
        ring_size: 8192,
        read_pointer_address: VA + 3 * PAGE,
        write_pointer_address: VA + 3 * PAGE + 8,
        gpu_id: GPU_ID,
        queue_percentage: 100,
        queue_type: QUEUE_TYPE_SDMA,
        ..CreateQueueArgs::zeroed()
    }
}

#[test]
fn queues_have_their_gpu_size_and_type() {
    let rig = listed(Options::default(), 1);
    let memory = rig.alloc(VA, 4 * PAGE, ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE).unwrap();
    rig.map(memory).unwrap();
    let mut args = queue_args();
    for kind in [QUEUE_TYPE_COMPUTE, QUEUE_TYPE_SDMA, QUEUE_TYPE_COMPUTE_AQL, QUEUE_TYPE_SDMA_XGMI] {
        args.queue_type = kind;
        rig.call(CREATE_QUEUE.0, &mut args).unwrap();
    }
    let mut destroy = DestroyQueueArgs { queue_id: 1, pad: 0 };
    rig.call(DESTROY_QUEUE.0, &mut destroy).unwrap();
    let all = entries(&rig);
    let types = [0, 1, 2, 3].map(|queue| all.get(&format!("queues/{queue}/type")).map(String::as_str));
    assert_eq!(types, [Some("0"), None, Some("0"), Some("3")]);
    assert_eq!((all["queues/3/gpuid"].as_str(), all["queues/3/size"].as_str()), ("5", "8192"));
    assert_eq!(entries_by(&rig, 120), entries_by(&rig, 4096));
}

/// A host's files about processes: what it finds when it is notified.
struct Notified {
    kfd: Arc<Kfd>,
    found: Mutex<Vec<String>>,
}

impl ProcessFiles for Notified {
    fn processes(&self, pid: u32) {
        let listing = self.kfd.listing();
        let numbers: Vec<_> = (0..).map_while(|before| listing.of_pid(pid, before)).map(|p| p.number()).collect();
        self.found.lock().unwrap().push(format!("{numbers:?}"));
    }

    fn queue(&self, process: u64, queue: u32) {
        let (listed, _) = self.kfd.listing().from(process).unwrap();
        let is_there = listed.queue_from(queue).is_some_and(|found| found.number == queue);
        self.found.lock().unwrap().push(format!("{process}: {queue} {is_there}"));
    }
}

#[test]
fn a_host_with_files_is_notified_of_processes_and_queues() {
    let rig = Rig::new(Options::default());
    let kfd = rig.process.kfd();
    let files = Arc::new(Notified { kfd: kfd.clone(), found: Mutex::default() });
    let found = || std::mem::take(&mut *files.found.lock().unwrap());
    kfd.listing().show_in(Some(files.clone()));
    let own = rig.process.number();
    rig.process.list().unwrap();
    rig.process.list().unwrap();
    assert_eq!(found(), [format!("[{own}]")], "once");
    let memory = rig.alloc(VA, 4 * PAGE, ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE).unwrap();
    rig.map(memory).unwrap();
    let mut args = queue_args();
    rig.call(CREATE_QUEUE.0, &mut args).unwrap();
    args.ring_base_address = 1;
    assert!(rig.call(CREATE_QUEUE.0, &mut args).is_err());
    rig.call(DESTROY_QUEUE.0, &mut DestroyQueueArgs { queue_id: 0, pad: 0 }).unwrap();
    assert_eq!(found(), [format!("{own}: 0 true"), format!("{own}: 0 false")]);
    let other = kfd.open(Arc::new(vkfd_sim::SimMm::default())).unwrap();
    other.list().unwrap();
    let second = other.number();
    rig.process.release();
    rig.process.release();
    assert_eq!(found(), [format!("[{own}, {second}]"), format!("[{second}]")]);
    kfd.listing().show_in(None);
    other.release();
    assert_eq!(found(), [""; 0], "no more");
}

fn vram_of_two(switch: Option<Switch>) -> [u64; 2] {
    let rig = listed(broken(switch), 2);
    let flags = ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE;
    let first = rig.alloc(VA, 64 * PAGE, flags).unwrap();
    rig.alloc(VA + (1 << 20), 16 * PAGE, ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE).unwrap();
    rig.map_on(1, first).unwrap();
    assert_eq!(number(&rig, "vram_5"), number(&rig, "vram_5"));
    [number(&rig, "vram_5"), number(&rig, "vram_6")]
}

#[test]
fn a_processs_vram_is_what_it_allocated() {
    assert_eq!(vram_of_two(None), [64 * PAGE, 0]);
    // The control: page tables are nobody's allocation, but they are in use.
    let [first, second] = vram_of_two(Some(Switch::EveryonesMemory));
    assert!(first > 64 * PAGE && second > 0, "{first} {second}");
}

#[test]
fn svm_memory_in_vram_counts() {
    let rig = svm::rig();
    rig.process.list().unwrap();
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    assert_eq!(number(&rig, "vram_5"), 512 * PAGE);
}

fn stopped(switch: Option<Switch>) -> [u64; 2] {
    let rig = listed(broken(switch), 2);
    rig.mm.map(AT, 16, true);
    let handle = rig.register(VA, &[(AT, 16)], WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    assert_eq!(number(&rig, "stats_5/evicted_ms"), 0);
    // The restore begins after a millisecond at the soonest.
    while rig.info().evictions < 3 {
        rig.mm.renew(AT, 1);
        rig.settle();
    }
    [5, 6].map(|gpu| number(&rig, &format!("stats_{gpu}/evicted_ms")))
}

#[test]
fn the_time_of_evictions_is_counted() {
    let [first, second] = stopped(None);
    assert!(first >= 3, "{first} ms");
    assert_eq!(first, second, "queues stop on all GPUs at a time");
    // The control.
    assert_eq!(stopped(Some(Switch::UntimedEvictions)), [0, 0]);
}

fn faults_and_pages(switch: Option<Switch>) -> Vec<u64> {
    let rig = Rig::with_gpus(broken(switch), 2, 2048);
    rig.mm.map(AT, 2048, true);
    rig.process.set_xnack(true).unwrap();
    rig.process.list().unwrap();
    let second = GPU_ID + 1;
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_ACCESS, second)]).unwrap();
    // The second GPU faults; the first has pages moved to it and back.
    assert!(rig.fault(1, AT + 3, false, FaultReason::NotPresent));
    for gpu in [GPU_ID, 0] {
        rig.set(AT, 512, &[(SVM_ATTR_PREFETCH_LOC, gpu)]).unwrap();
    }
    let of = |gpu: u32| ["faults", "page_in", "page_out"].map(|name| number(&rig, &format!("counters_{gpu}/{name}")));
    [of(GPU_ID), of(second)].concat()
}

#[test]
fn faults_and_migrations_count_by_gpu() {
    let counts = faults_and_pages(None);
    assert_eq!((counts[0], counts[3]), (0, 1), "{counts:?}");
    assert_eq!(counts[1], 512, "{counts:?}");
    assert_eq!(counts[2] + counts[5], counts[1] + counts[4], "{counts:?}: all are back");
    // The control.
    let counts = faults_and_pages(Some(Switch::FirstGpusCounts));
    assert_ne!((counts[0], counts[3]), (0, 1), "{counts:?}");
}

/// The lines of a file by their keys.
fn lines(rig: &Rig, file: &RenderFile, pid: u32) -> std::result::Result<BTreeMap<String, String>, Errno> {
    let answer = ask(rig, file, INFO_FDINFO, [pid, 0, 0, 0], 2048)?;
    let length = u32::from_ne_bytes(answer[..4].try_into().unwrap()) as usize;
    let text = std::str::from_utf8(&answer[4..4 + length]).unwrap();
    let parts = |line: &str| line.split_once(':').map(|(key, value)| (key.to_owned(), value.trim().to_owned()));
    Ok(text.lines().map(|line| parts(line).unwrap_or_else(|| panic!("{line}"))).collect())
}

#[test]
fn an_open_render_node_has_the_memory_and_the_time_of_its_process() {
    let rig = listed(Options::default(), 1);
    let file = RenderFile::new(rig.process.kfd(), 0).unwrap();
    let tables = lines(&rig, &file, 0).unwrap()["drm-memory-vram"].clone();
    rig.alloc(VA, 64 * PAGE, ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_WRITABLE).unwrap();
    rig.alloc(VA + (1 << 20), 256 * PAGE, ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE).unwrap();
    rig.mm.map(AT, 4, true);
    let registered = rig.register(VA + (4 << 20), &[(AT, 4)], WRITABLE_USERPTR).unwrap();
    let now = lines(&rig, &file, 0).unwrap();
    let get = |key: &str| now.get(key).unwrap_or_else(|| panic!("{key}: {now:?}")).as_str();
    let kib = |text: &str| text.strip_suffix(" KiB").unwrap().parse::<u64>().unwrap();
    assert_eq!((get("drm-driver"), get("drm-pdev")), ("amdgpu", "0000:03:00.0"));
    assert!(kib(get("drm-memory-vram")) >= kib(&tables) + 256, "{now:?}");
    assert_eq!((get("drm-memory-gtt"), get("drm-memory-cpu")), ("1024 KiB", "16 KiB"));
    assert_eq!((get("drm-total-gtt"), get("drm-resident-gtt")), ("1 MiB", "1 MiB"));
    assert_eq!((get("amd-requested-gtt"), get("amd-evicted-vram")), ("1024 KiB", "0 KiB"));
    assert!(!now.contains_key("drm-engine-compute"), "an engine that was not used has no line");
    // Registered memory is the GPU's once it is mapped.
    rig.map(registered).unwrap();
    *rig.gpu.share.lock().unwrap() = Share { kernels: 1_500_000, copies: 7_000 };
    let now = lines(&rig, &file, 0).unwrap();
    assert_eq!((now["drm-memory-gtt"].as_str(), now["drm-memory-cpu"].as_str()), ("1040 KiB", "0 KiB"));
    assert_eq!((now["drm-engine-compute"].as_str(), now["drm-engine-dma"].as_str()), ("1500000 ns", "7000 ns"));
    assert_eq!(number(&rig, "sdma_5"), 7, "in microseconds");
    // By its PID the process is the same, and the file the first that it has open.
    assert_eq!(lines(&rig, &file, std::process::id()), Ok(now.clone()));
    let other = RenderFile::new(rig.process.kfd(), 0).unwrap();
    assert_ne!(lines(&rig, &other, 0).unwrap()["drm-client-id"], now["drm-client-id"]);
    assert_eq!(lines(&rig, &other, 1), Err(Errno::ENOENT));
    assert_eq!(ask(&rig, &file, INFO_FDINFO, [0; 4], 3), Err(Errno::EINVAL));
    // Less room: the length is that of all.
    let cut = ask(&rig, &file, INFO_FDINFO, [0; 4], 14).unwrap();
    assert!(u32::from_ne_bytes(cut[..4].try_into().unwrap()) > 200);
    assert_eq!(&cut[4..], b"drm-driver");
}

#[test]
fn waves_count_in_units_that_they_would_fill() {
    let rig = listed(Options::default(), 1);
    // gfx900 has 40 waves on a unit.
    for (waves, units) in [(0, 0), (1, 1), (40, 1), (41, 2), (2560, 64)] {
        rig.gpu.waves.store(waves, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(number(&rig, "stats_5/cu_occupancy"), units, "{waves} waves");
    }
    let rig = Rig::with_vms(Options::default(), 1, 2048, 0);
    rig.gpu.waves.store(1, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(rig.process.occupied(0), Some(0), "without a VM");
    assert_eq!(rig.process.occupied(1), None, "there is no such GPU");
}

#[test]
fn time_is_counted_from_the_open_on() {
    let rig = Rig::with_vms(Options::default(), 1, 2048, 0);
    *rig.gpu.share.lock().unwrap() = Share { kernels: 5_000, copies: 3_000 };
    rig.process.acquire_vm(GPU_ID).unwrap();
    rig.process.list().unwrap();
    assert_eq!(rig.process.on_gpu(0).work, Some(Share::default()), "others had the VMID before");
    *rig.gpu.share.lock().unwrap() = Share { kernels: 6_000, copies: 9_000 };
    assert_eq!(rig.process.on_gpu(0).work, Some(Share { kernels: 1_000, copies: 6_000 }));
    assert_eq!(rig.process.on_gpu(0).stopped, Duration::ZERO);
}
