// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The demo on a KFD that is not vkfd, as far as it can tell: no batch, no kernels, no snapshots.
//! And that its comparison sees a wrong byte.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use clap::Parser;
use vkfd_client::uapi::batch::ALLOC_MEMORY_OF_GPU_BATCH;
use vkfd_client::uapi::vkfd::{LAST_ERROR, QUERY_CAPS, SNAPSHOT};
use vkfd_client::{
    Client, ClientError, Embedded, Errno, GpuId, Machine, MachineOptions, MmapFile, Node, RegisterOptions, Transport,
};

use super::*;
use crate::engine::{Comparison, Engine, Segment};

/// A KFD without vkfd's own commands.
struct Plain(Embedded);

impl Transport for Plain {
    unsafe fn ioctl(&self, command: u32, arg: *mut c_void) -> Result<(), Errno> {
        if [QUERY_CAPS, LAST_ERROR, SNAPSHOT, ALLOC_MEMORY_OF_GPU_BATCH].iter().any(|known| known.0 == command) {
            return Err(Errno::NOTTY);
        }
        // SAFETY: promised by the caller.
        unsafe { self.0.ioctl(command, arg) }
    }

    unsafe fn mmap(
        &self,
        what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, Errno> {
        // SAFETY: promised by the caller.
        unsafe { self.0.mmap(what, addr, len, prot, flags, offset) }
    }

    fn topology(&self) -> Result<Vec<Node>, ClientError> {
        self.0.topology()
    }

    fn render_fd(&self, gpu: GpuId) -> Result<u32, ClientError> {
        self.0.render_fd(gpu)
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    demo: DemoArgs,
}

fn list() -> (Scatter, Layout) {
    let list = Scatter::parse("short", "9000 1000\n1000 2000\n3000 1000\n100000 8000\n5000 1000\n").unwrap();
    let layout = Layout::new(&list, u64::MAX).unwrap();
    (list, layout)
}

#[test]
fn a_driver_without_batch_kernels_and_snapshots_is_enough() {
    let machine = Machine::new(&MachineOptions::default()).unwrap();
    let transport = Plain(Embedded::open(&machine).unwrap());
    let client = Client::with_transport(Arc::new(transport)).unwrap();
    let hears = machine.capabilities();
    // As for a device: the machine is not this session's.
    let session = Session { client, machine: None, xnack: false };
    let output = Output::new(true);
    let (list, layout) = list();
    let args = Cli::parse_from(["demo", "--rounds", "1"]).demo;
    if !hears.raw_system_calls {
        // A kernel learns of everything; this process's source does not, so there is nothing to
        // compare.
        return;
    }
    let (document, report) = run_list(&args, &session, &output, &list, &layout).unwrap();
    assert!(report.ok(), "{document:#}");
    let step = |name: &str| document["steps"].as_array().unwrap().iter().find(|step| step["name"] == name).unwrap();
    assert_eq!(step("register")["numbers"]["objects"], 5);
    for skipped in ["driver-view", "sum64", "saxpy", "fault", "watch"] {
        assert_eq!(step(skipped)["outcome"], "skipped", "{skipped}");
    }
    for done in ["crc32", "copy", "unmap", "map-again", "replace", "move", "discard", "protect", "cost"] {
        assert_eq!(step(done)["outcome"], "ok", "{done}");
    }
    assert_eq!(document["costs"]["ways"].as_array().unwrap().len(), 2, "no batch to measure");
}

#[test]
fn kernel_and_copy_see_the_same_and_one_wrong_byte_is_found() {
    let machine = Machine::new(&MachineOptions::default()).unwrap();
    let plain: Arc<dyn Transport> = Arc::new(Plain(Embedded::open(&machine).unwrap()));
    for (client, kernels) in [(Client::on(&machine).unwrap(), true), (Client::with_transport(plain).unwrap(), false)] {
        let (list, layout) = list();
        let guest = Guest::new(&list, &layout, 3).unwrap();
        // SAFETY: the memory is only copied to and from, and not while the GPU works on it.
        let buffer = unsafe { client.register_ranges(&guest.userptr_ranges(), &RegisterOptions::default()) }.unwrap();
        let mut engine = Engine::new(&client, client.gpus()[0].id, list.pieces.len()).unwrap();
        assert_eq!(engine.has_kernels(), kernels);
        let segments: Vec<Segment> =
            guest.ranges.iter().map(|r| Segment { va: buffer.gpu_va().offset(r.at), bytes: r.bytes }).collect();
        let gpu = engine.checksums(&segments).unwrap();
        let cpu = |guest: &Guest| -> Vec<u32> {
            let checksum = |r: &crate::guest::Range| {
                let mut bytes = vec![0; usize::try_from(r.bytes).unwrap()];
                guest.ram.read(r.offset, &mut bytes);
                crc32fast::hash(&bytes)
            };
            guest.ranges.iter().map(checksum).collect()
        };
        assert!(Comparison::new(&cpu(&guest), &gpu).same());
        let at = guest.ranges[3].offset + 0x5123;
        let mut byte = [0];
        guest.ram.read(at, &mut byte);
        guest.ram.write(at, &[byte[0] ^ 1]);
        let found = Comparison::new(&cpu(&guest), &gpu);
        assert_eq!((found.different, found.first.map(|(place, ..)| place)), (1, Some(3)));
        // The GPU sees the CPU's new byte.
        assert!(Comparison::new(&cpu(&guest), &engine.checksums(&segments).unwrap()).same());
    }
}

/// The GPU's own findings, after what a stale or foreign page would look like was put in its place.
#[test]
fn a_stale_page_and_a_foreign_word_are_noticed() {
    use super::watch::{page, wrong, Watch};
    let machine = Machine::new(&MachineOptions::default()).unwrap();
    let client = Client::on(&machine).unwrap();
    let (list, layout) = list();
    let guest = Guest::new(&list, &layout, 3).unwrap();
    let put = |number: u64, contents: &[u8]| {
        let range = guest.ranges.iter().find(|r| (r.at..r.at + r.bytes).contains(&(number * 4096))).unwrap();
        guest.ram.write(range.offset + number * 4096 - range.at, contents);
    };
    let pages = guest.bytes / 4096;
    (0..pages).for_each(|number| put(number, &page(number, 5)));
    // SAFETY: the memory is only copied to and from, and not while the GPU works on it.
    let buffer = unsafe { client.register_ranges(&guest.userptr_ranges(), &RegisterOptions::default()) }.unwrap();
    let mut watch = Watch::new(&client, client.gpus()[0].id, pages).unwrap();
    let mut look = || watch.pass(buffer.gpu_va(), || Ok(())).unwrap();
    let versions = vec![5; usize::try_from(pages).unwrap()];
    let found = look();
    assert_eq!(wrong(&found, &versions, &versions), None);
    assert!(found.iter().all(|page| page.oldest == Some(5) && page.newest == 5 && page.empty == 0));
    // The version before: as if the GPU had read the page's old memory.
    put(7, &page(7, 4));
    assert!(wrong(&look(), &versions, &versions).is_some_and(|what| what.contains("page 7")));
    put(7, &page(7, 5));
    // One word of another page.
    let mut mixed = page(3, 5);
    mixed[800..808].copy_from_slice(&page(4, 5)[800..808]);
    put(3, &mixed);
    let found = look();
    assert_eq!(found[3].foreign, 1);
    assert!(wrong(&found, &versions, &versions).is_some());
    // One word that was never written, and one from the future.
    mixed = page(3, 5);
    mixed[8..16].fill(0);
    put(3, &mixed);
    assert!(wrong(&look(), &versions, &versions).is_some());
    put(3, &page(3, 6));
    assert!(wrong(&look(), &versions, &versions).is_some());
    let mut newer = versions.clone();
    newer[3] = 6;
    assert_eq!(wrong(&look(), &versions, &newer), None);
}

/// The demo's last change by itself: the kernel runs while ranges are moved in and discarded.
#[test]
fn the_buffer_is_watched_while_it_changes() {
    let machine = Machine::new(&MachineOptions::default()).unwrap();
    let hears = machine.capabilities();
    let session = Session { client: Client::on(&machine).unwrap(), machine: Some(machine), xnack: false };
    let (list, layout) = list();
    let guest = Guest::new(&list, &layout, 3).unwrap();
    let mut scene = Scene::new(&session, guest, 1).unwrap();
    // SAFETY: the memory is only copied to and from.
    let buffer = unsafe { session.client.register_ranges(&scene.guest.userptr_ranges(), &RegisterOptions::default()) };
    scene.buffer = Some(buffer.unwrap());
    let output = Output::new(true);
    let mut report = Report::new(&output);
    watch::run(&mut scene, &mut report).unwrap();
    let step = &report.steps[0];
    let told = hears.remap && hears.discard;
    assert!(report.ok());
    assert_eq!(report.count(if told { Outcome::Ok } else { Outcome::Skipped }), 1, "{:#}", serde_json::json!(step));
}
