// SPDX-License-Identifier: GPL-2.0 OR MIT
//! QEMU's own ivshmem device between driver and device, without a guest: the test moves the
//! machine's bus through the qtest protocol. It needs `qemu-system-x86_64`, and says so where there
//! is none.

use crate::guest::{limits, until, Report, Sink};
use crate::machine::Program;
use crate::queue::{noise, Space, RW};
use crate::ram::{Dma, Ram, BELOW, BYTES};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vkfd_driver::base::addr::{PhysAddr, PAGE};
use vkfd_driver::base::errno::Result;
use vkfd_driver::base::pte::Target;
use vkfd_driver::seams::gpu::{DmaMemory, Gpu, QueueKind, Vmid};
use vkfd_wire::{layout, Bar, Remote};

const QEMU: &str = "qemu-system-x86_64";
/// Where the test puts the BARs; there is no firmware to do it.
const BAR0: u64 = 0xfe00_0000;
const BAR1: u64 = 0xfe00_1000;
const BAR2: u64 = 0xe000_0000;
const BAR2_BYTES: u64 = 64 << 20;

/// The machine's bus.
struct Bus(Mutex<BufReader<UnixStream>>);

impl Bus {
    fn command(&self, command: &str) -> u64 {
        let mut stream = self.0.lock().unwrap();
        stream.get_mut().write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let answer = line.trim_end().strip_prefix("OK").unwrap_or_else(|| panic!("{command}: {line}")).trim();
        match answer.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => 0,
        }
    }

    fn config_read(&self, device: u32, at: u32) -> u32 {
        self.command(&format!("outl 0xcf8 {:#x}", 0x8000_0000 | device << 11 | at));
        self.command("inl 0xcfc").try_into().unwrap()
    }

    fn config_write(&self, device: u32, at: u32, value: u32) {
        self.command(&format!("outl 0xcf8 {:#x}", 0x8000_0000 | device << 11 | at));
        self.command(&format!("outl 0xcfc {value:#x}"));
    }

    /// Finds the GPU and does what firmware and a kernel do: BARs, bus mastering, one MSI-X vector
    /// that writes `data` at `message`.
    fn bring_up(&self, message: PhysAddr, data: u32) {
        let device = (0..32).find(|device| self.config_read(*device, 0) == 0x1110_1af4).expect("no ivshmem device");
        let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap();
        self.config_write(device, 0x18, 0xffff_ffff);
        let size = !(self.config_read(device, 0x18) & !15) + 1;
        assert_eq!(u64::from(size), BAR2_BYTES, "size of BAR 2");
        for (at, value) in [(0x10, BAR0), (0x14, BAR1), (0x18, BAR2), (0x1c, 0), (4, 6)] {
            self.config_write(device, at, low(value));
        }
        let mut capability = self.config_read(device, 0x34) & 0xff;
        while self.config_read(device, capability) & 0xff != 0x11 {
            capability = self.config_read(device, capability) >> 8 & 0xff;
            assert_ne!(capability, 0, "no MSI-X");
        }
        assert_eq!(self.config_read(device, capability + 4) & 7, 1, "the MSI-X table is in BAR 1");
        for (at, value) in [(0, low(message.0)), (4, low(message.0 >> 32)), (8, data), (12, 0)] {
            self.command(&format!("writel {:#x} {value:#x}", BAR1 + at));
        }
        let control = self.config_read(device, capability);
        self.config_write(device, capability, control | 1 << 31);
    }
}

/// The BAR as the machine's processor would reach it.
struct QemuBar {
    bus: Arc<Bus>,
    ram: Arc<Ram>,
}

impl Bar for QemuBar {
    fn bytes(&self) -> u64 {
        BAR2_BYTES
    }
    fn read(&self, at: u64) -> u64 {
        self.bus.command(&format!("readq {:#x}", BAR2 + at))
    }
    fn write(&self, at: u64, value: u64) {
        self.bus.command(&format!("writeq {:#x} {value:#x}", BAR2 + at));
    }
    fn zero(&self, at: u64, bytes: u64) {
        self.bus.command(&format!("memset {:#x} {bytes:#x} 0", BAR2 + at));
    }
    fn fence(&self) {
        // Each access was a message to another process and back.
    }
    fn doorbell(&self, value: u32) {
        self.bus.command(&format!("writel {:#x} {value:#x}", BAR0 + 12));
    }
    fn relax(&self, _: u32) {
        std::thread::sleep(Duration::from_micros(50));
    }
    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        Ok(Arc::new(Dma::new(&self.ram, bytes)?))
    }
}

struct Qemu {
    child: Child,
    bus: Arc<Bus>,
}

impl Qemu {
    fn start(directory: &Path, ram: &Path) -> Self {
        let listener = UnixListener::bind(directory.join("qtest")).unwrap();
        let ram = format!("memory-backend-file,id=ram,size={BYTES},share=on,mem-path={}", ram.display());
        let mut command = Command::new(QEMU);
        // Stopped, since there is nothing for its processor to do.
        command.args(["-nodefaults", "-display", "none", "-accel", "tcg", "-S", "-object", &ram]);
        command.args(["-m", &format!("{}M", BYTES >> 20)]);
        command.args(["-machine", &format!("pc,memory-backend=ram,max-ram-below-4g={BELOW}")]);
        command.arg("-chardev").arg(format!("socket,id=gpu,path={}", directory.join("gpu").display()));
        command.args(["-device", "ivshmem-doorbell,chardev=gpu,vectors=1"]);
        command.args(["-qtest-log", "none"]).arg("-qtest").arg(format!("unix:{}", directory.join("qtest").display()));
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut stream = None;
        until("QEMU runs", || {
            assert_eq!(child.try_wait().unwrap(), None, "QEMU does not start");
            stream = listener.accept().ok();
            stream.is_some()
        });
        let (stream, _) = stream.unwrap();
        stream.set_nonblocking(false).unwrap();
        Self { child, bus: Arc::new(Bus(Mutex::new(BufReader::new(stream)))) }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn qemus_ivshmem_carries_all_of_it() {
    if Command::new(QEMU).arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: no {QEMU} (package qemu-system-x86)");
        return;
    }
    let ram = Ram::new();
    let mut program = Program::start(ram.path(), &["--once"]);
    until("the server listens", || program.socket("gpu.device").exists());
    let qemu = Qemu::start(program.directory.path(), ram.path());
    // Below 4 GiB, the first of them or the second.
    let message = [ram.pages(1), ram.pages(1)].into_iter().min().unwrap();
    qemu.bus.bring_up(message, 0xcafe_0001);

    // Both sides of the hole are at QEMU's addresses.
    for _ in 0..2 {
        let at = ram.pages(1);
        ram.store(at, at.0 ^ 0x1111_2222_3333_4444);
        assert_eq!(qemu.bus.command(&format!("readq {:#x}", at.0)), at.0 ^ 0x1111_2222_3333_4444);
    }

    let bar = QemuBar { bus: qemu.bus.clone(), ram: ram.clone() };
    let remote = Arc::new(Remote::new(bar, limits()).unwrap());
    assert_eq!((remote.properties().gpu_id, remote.properties().vram_bytes), (0x4b01, 62 << 20));
    let space = Space::of(&remote, &ram, 2, true);
    let data = noise(11, 8 * PAGE);
    ram.write(space.map_ram(0x10_0000_0000, 8), &data);
    let vram = space.map_vram(0x20_0000_0000, 8);
    let back = space.map_ram(0x30_0000_0000, 8);
    let mut queue = space.queue(QueueKind::Sdma, 0);
    queue.copy(0x20_0000_0000, 0x10_0000_0000, 8 * PAGE);
    queue.copy(0x30_0000_0000, 0x20_0000_0000, 8 * PAGE);
    queue.wait();
    assert_eq!(ram.read(back, 8 * PAGE), data);
    let word = remote.bar().read(remote.bar_offset(vram));
    assert_eq!(word.to_le_bytes(), data[..8]);

    // Interrupts come as the PCI device's messages.
    let (sink, reports) = Sink::new();
    let interrupted = || {
        until("an interrupt", || ram.load(message) & 0xffff_ffff == 0xcafe_0001);
        ram.store(message, 0);
        remote.service(&*sink);
    };
    // What came while the device started.
    ram.store(message, 0);
    queue.submit(&[6, 33]);
    interrupted();
    assert_eq!(reports.try_recv(), Ok(Report::Event(Vmid(2), 33)));
    let leaves = space.reserve(0x40_0000_0000, 1);
    queue.fence(0x40_0000_0000, 5);
    interrupted();
    let Ok(Report::Fault(fault)) = reports.try_recv() else { panic!() };
    let page = ram.pages(1);
    leaves.write(&*remote, 0, 1, |_| (Target::System(page), RW));
    remote.fault_done(Vmid(2), fault.va, true);
    queue.wait();
    assert_eq!(ram.load(page), 5);

    // The device process dies; the next one is the same GPU.
    program.signal_device(libc::SIGKILL);
    interrupted();
    assert_eq!(reports.try_recv(), Ok(Report::Error(queue.hw, "the device was lost".into())));
    until("the next one", || {
        remote.service(&*sink);
        remote.clock() > 0
    });
    let (at, ring) = (queue.at, queue.ring);
    drop(queue);
    let mut queue = space.queue_on(QueueKind::Sdma, at, ring).unwrap();
    queue.fence(0x40_0000_0000, 6);
    queue.wait();
    assert_eq!(ram.load(page), 6);
    drop(queue);
    drop(space);

    // The driver goes; through QEMU's doorbell it gets the server to end the device process.
    let epoch = remote.bar().read(layout::EPOCH);
    remote.stop();
    assert_eq!(remote.bar().read(layout::DEAD), epoch);
    drop(remote);
    drop(qemu);
    assert!(program.wait_exit().success());
}
