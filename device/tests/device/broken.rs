// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Either side gone mad: a device that writes nonsense into its registers, and a guest that sends
//! nonsense.

use crate::guest::{limits, until, Guest, Report, Sink, Stop, TestBar};
use crate::machine::{model, Local, Machine};
use crate::queue::Space;
use crate::ram::Ram;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::{FabricAddr, GpuVa, VramOffset, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::gpu::{Gpu, HwQueue, QueueKind, QueueSpec, Vmid};
use vkfd_wire::command::{Command, Words};
use vkfd_wire::{layout, Bar, Condition, Limits, Remote};

/// Numbers, the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number of the kinds that go wrong.
    fn odd(&mut self) -> u64 {
        match self.below(5) {
            0 => 0,
            1 => u64::MAX,
            2 => self.below(300),
            3 => 1 << self.below(64),
            _ => self.next(),
        }
    }
}

/// Little patience, so that many lives fit into a test.
fn impatient() -> Limits {
    let short = Duration::from_millis(30);
    Limits { silence: short, command: 2 * short, reset: short, start: Duration::from_secs(10) }
}

fn every_call(remote: &Remote<TestBar>, ram: &Arc<Ram>, n: u64) {
    let vmid = Vmid(1 + u32::try_from(n % 15).unwrap());
    let doorbells: Arc<dyn vkfd_driver::seams::gpu::DmaMemory> = Arc::new(crate::ram::Dma::new(ram, PAGE).unwrap());
    let (ring, rptr, wptr) = (GpuVa(0x10_0000), GpuVa(0x20_0000), GpuVa(0x20_0008));
    let spec = QueueSpec { vmid, kind: QueueKind::Sdma, ring, ring_bytes: 4096, rptr, wptr, doorbells, doorbell: 8 };
    match n % 10 {
        0 => remote.set_root(vmid, Some(FabricAddr(4096)), true),
        1 => remote.suspend(vmid),
        2 => remote.resume(vmid),
        3 => remote.flush_tlb(vmid),
        4 => remote.fault_done(vmid, GpuVa(4096), true),
        5 => remote.clear(VramOffset(1 << 20), 1 << 20),
        6 => drop(remote.update_queue(HwQueue(3), ring, 4096, true)),
        7 => remote.check(),
        8 => drop(remote.clock()),
        _ => {
            if let Ok(queue) = remote.add_queue(&spec) {
                remote.remove_queue(queue);
            }
        }
    }
}

#[test]
fn a_device_that_writes_nonsense_is_survived_and_replaced() {
    let ram = Ram::new();
    let local = Local::new(model(), &ram);
    local.start();
    let setup = local.setup(layout::GUEST_PEER);
    let (sink, _reports) = Sink::new();
    let remote = Arc::new(Remote::new(TestBar::map(&setup, ram.clone()), impatient()).unwrap());
    let guest = Guest::new(remote.clone(), setup.interrupt.try_clone().unwrap(), sink);
    let stop = AtomicBool::new(false);
    let mut lives = 0;
    std::thread::scope(|scope| {
        let end = Stop(&stop);
        scope.spawn(|| {
            // The device's words, its answers, and the ring; now and then the server's. Not the
            // driver's own.
            let mut numbers = Numbers(0x1234_5678_9abc_def1);
            while !stop.load(SeqCst) {
                let at = match numbers.below(64) {
                    0 => layout::DEAD,
                    1..16 => layout::READY + 8 * numbers.below(24),
                    16..40 => {
                        layout::mailbox(u32::try_from(numbers.below(32)).unwrap()) + layout::DONE + 8 * numbers.below(4)
                    }
                    _ => layout::RING_BASE + 8 * numbers.below(layout::RING_ENTRIES * layout::ENTRY_BYTES / 8),
                };
                local.registers.write(at, numbers.odd());
                rustix::io::write(&setup.interrupt, &1u64.to_ne_bytes()).unwrap();
                std::thread::sleep(Duration::from_micros(100));
                if remote.condition() == Condition::Lost && numbers.below(20) == 0 {
                    // A server in its right mind has another process for it. What that says holds
                    // until the next nonsense.
                    local.end();
                    local.registers.write(layout::DEAD, local.registers.read(layout::EPOCH));
                    local.start();
                }
            }
        });
        let until = Instant::now() + Duration::from_secs(4);
        let mut was = Condition::Live;
        for n in 0.. {
            let start = Instant::now();
            every_call(&remote, &ram, n);
            assert!(start.elapsed() < Duration::from_secs(10), "call {n} took {:?}", start.elapsed());
            let now = remote.condition();
            lives += u32::from(now == Condition::Live && was == Condition::Lost);
            was = now;
            if start > until {
                break;
            }
        }
        drop(end);
    });
    eprintln!("{lives} lives");
    assert!(lives > 3, "{lives} lives: the nonsense does not reach the driver, or for good");
    // And then one in its right mind.
    drop(guest);
    local.end();
    local.registers.write(layout::DEAD, local.registers.read(layout::EPOCH));
    local.start();
    let remote = Arc::new(Remote::new(TestBar::map(&setup, ram.clone()), limits()).unwrap());
    let space = Space::of(&remote, &ram, 1, false);
    let to = space.map_ram(0x10_0000_0000, 1);
    let mut queue = space.queue(QueueKind::Sdma, 0);
    queue.fence(0x10_0000_0000, 7);
    queue.wait();
    assert_eq!(ram.load(to), 7);
}

/// Waits for the loss that something caused, and for the device that follows.
fn is_replaced(machine: &Machine, epoch: u64) {
    let bar = machine.remote().bar();
    until("another device", || bar.read(layout::READY) > epoch && machine.remote().condition() == Condition::Live);
    assert!(machine.remote().clock() > 0);
}

#[test]
fn interrupts_that_make_no_sense_cost_the_device_its_life() {
    let machine = Machine::local(model());
    let registers = &machine.in_this_process().registers;
    let nudge = machine.in_this_process().setup(layout::GUEST_PEER).interrupt;
    let spoil: [fn(&vkfd_device::registers::Registers); 4] = [
        // More than the ring holds.
        |registers| registers.write(layout::INTERRUPTS, 5000),
        // Before what was taken.
        |registers| registers.write(layout::INTERRUPTS, u64::MAX),
        // An entry of no kind.
        |registers| {
            registers.write(layout::entry(0), 77);
            registers.write(layout::INTERRUPTS, 1);
        },
        // A VMID that the GPU does not have.
        |registers| {
            registers.write(layout::entry(0), 2);
            registers.write(layout::entry(0) + 8, 16 << 32);
            registers.write(layout::INTERRUPTS, 1);
        },
    ];
    for spoil in spoil {
        let space = Space::new(&machine, 2, false);
        let queue = space.queue(QueueKind::Sdma, 0);
        let epoch = registers.read(layout::EPOCH);
        spoil(registers);
        rustix::io::write(&nudge, &1u64.to_ne_bytes()).unwrap();
        is_replaced(&machine, epoch);
        assert_eq!(machine.report(), Report::Error(queue.hw, "the device was lost".into()));
    }
}

#[test]
fn a_device_that_calls_itself_something_impossible_is_refused() {
    for (register, value) in [
        (layout::MAGIC, 1),
        (layout::VERSION, 9),
        (layout::GPU_ID, 0),
        (layout::GPU_ID, 1 << 32),
        (layout::VRAM_AT, 4096),
        (layout::VRAM_AT, 0),
        (layout::VRAM_BYTES, 0),
        (layout::VRAM_BYTES, 1 << 46),
        (layout::VRAM_BYTES, u64::MAX << 21),
        (layout::VRAM_PHYS, 1 << 20),
        (layout::VRAM_PHYS, 1 << 48),
        (layout::VRAM_PHYS, u64::MAX << 21),
        (layout::VRAM_BASE, 1 << 48),
        (layout::VRAM_BASE, u64::MAX << 21),
        (layout::VMIDS, 1),
        (layout::VMIDS, 257),
        (layout::GFX_TARGET, 0),
        (layout::CLOCK_HZ, 0),
        (layout::UNITS, 0),
        (layout::UNITS, 65),
    ] {
        let ram = Ram::new();
        let local = Local::new(model(), &ram);
        local.start();
        local.registers.write(register, value);
        let bar = TestBar::map(&local.setup(layout::GUEST_PEER), ram);
        let error = Remote::new(bar, impatient()).err().map(|error| error.errno);
        assert_eq!(error, Some(Errno::ENODEV), "{register:#x} = {value:#x}");
        local.end();
    }
}

#[test]
fn a_refusal_of_what_cannot_be_refused_costs_the_device_its_life() {
    let machine = Machine::local(model());
    let space = Space::new(&machine, 2, false);
    let registers = &machine.in_this_process().registers;
    let epoch = registers.read(layout::EPOCH);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = Stop(&stop);
        scope.spawn(|| {
            // Quicker than the device, sometimes: an answer that says no.
            while !stop.load(SeqCst) {
                for index in 0..layout::MAILBOXES {
                    let at = layout::mailbox(index);
                    let number = registers.read(at + layout::NUMBER);
                    let mine = registers.read(at + layout::FOR_EPOCH) == epoch;
                    if mine && number != 0 && registers.read(at + layout::DONE) != number {
                        registers.write(at + layout::STATUS, 22);
                        registers.write(at + layout::DONE, number);
                    }
                }
            }
        });
        until("a refusal", || {
            space.remote.flush_tlb(space.vmid);
            registers.read(layout::EPOCH) > epoch
        });
        drop(end);
    });
    is_replaced(&machine, epoch);
}

/// A command as a hostile guest makes it: of a known kind, with arguments that may be anything.
fn hostile(numbers: &mut Numbers) -> Words {
    let mut words = [0; vkfd_wire::command::WORDS];
    words[0] = numbers.below(11);
    for word in &mut words[1..] {
        *word = numbers.odd();
    }
    words
}

#[test]
fn a_guest_that_sends_nonsense_gets_errors_and_the_device_lives() {
    let ram = Ram::new();
    let local = Local::new(model(), &ram);
    local.start();
    let setup = local.setup(layout::GUEST_PEER);
    let bar = TestBar::map(&setup, ram.clone());
    let mut numbers = Numbers(0xdead_beef_1234_5671);
    let probe = crate::ram::Dma::new(&ram, PAGE).unwrap();
    let attach = {
        use vkfd_driver::seams::gpu::DmaMemory;
        probe.write_u64(0, 99);
        Command::Attach { probe: probe.page(0), nonce: 99 }.encode()
    };
    let send = |number: u64, words: &Words, epoch: u64| {
        let at = layout::mailbox(u32::try_from(number % 32).unwrap());
        for (i, word) in (0..).zip(words) {
            bar.write(at + layout::COMMAND + 8 * i, *word);
        }
        bar.write(at + layout::FOR_EPOCH, epoch);
        bar.write(at + layout::NUMBER, number);
        bar.doorbell(layout::KICK);
        until("an answer", || bar.read(at + layout::DONE) == number);
        bar.read(at + layout::STATUS)
    };
    let clock = Command::Clock.encode();
    let queue = vkfd_wire::command::NewQueue {
        queue: HwQueue(1),
        vmid: Vmid(1),
        kind: QueueKind::Sdma,
        ring: GpuVa(0),
        ring_bytes: 4096,
        rptr: GpuVa(0),
        wptr: GpuVa(0),
        doorbell: vkfd_driver::base::addr::PhysAddr(1 << 20),
    };
    assert_eq!(send(1, &Command::AddQueue(queue).encode(), 1), 22, "before anybody has attached");
    assert_eq!(send(2, &attach, 2), 19, "of another epoch");
    assert_eq!(send(3, &attach, 1), 0);
    // Rings and doorbells in real memory, so that queues do run on rubbish.
    for page in 0..64 {
        let at = vkfd_driver::base::addr::PhysAddr((1 << 20) + page * PAGE);
        let rubbish: Vec<u8> = (0..4096).map(|_| numbers.next().to_le_bytes()[0]).collect();
        ram.write(at, &rubbish);
    }
    let (mut taken, mut refused) = (0, 0);
    for number in 4..4004 {
        let mut words = hostile(&mut numbers);
        match words[0] {
            2 => words[1] %= 16,
            5 => {
                // Often enough a queue that can be made.
                words[2] %= 16;
                words[3] %= 3;
                words[4] &= !63;
                words[5] = 1 << (8 + numbers.below(8));
                words[6] &= !7;
                words[7] &= !7;
                words[8] = (1 << 20) + numbers.below(64 * 512) * 8;
            }
            _ => {}
        }
        // The interrupt ring is its own to spoil, too.
        if number % 16 == 0 {
            bar.write(layout::INTERRUPTS_SEEN, numbers.odd());
        }
        if send(number, &words, 1) == 0 {
            taken += 1;
        } else {
            refused += 1;
        }
    }
    assert!(taken > 500 && refused > 500, "{taken} taken, {refused} refused");
    assert_eq!(send(5000, &clock, 1), 0);
    assert!(bar.read(layout::mailbox(5000 % 32) + layout::VALUE) > 0);
    let start = Instant::now();
    local.end();
    assert!(start.elapsed() < Duration::from_secs(10), "it does not end: {:?}", start.elapsed());
}
