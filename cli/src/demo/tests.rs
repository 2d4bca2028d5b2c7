// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The demo on a KFD that is not vkfd, as far as it can tell: no batch, no kernels, no snapshots. And that its comparison sees a wrong byte.

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
        // A kernel hears of everything; this process's source does not, so there is nothing to compare.
        return;
    }
    let (document, report) = run_list(&args, &session, &output, &list, &layout).unwrap();
    assert!(report.ok(), "{document:#}");
    let step = |name: &str| document["steps"].as_array().unwrap().iter().find(|step| step["name"] == name).unwrap();
    assert_eq!(step("register")["numbers"]["objects"], 5);
    for skipped in ["driver-view", "sum64", "saxpy", "fault"] {
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
