// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs' queues: run lists, VMIDs, parking, and queues that the driver loads by registers.

use crate::rig::*;
use vkfd_asic::interrupts::{client, source};
use vkfd_asic::queues::hqd::{Hqd, IN_MQD};
use vkfd_asic::registers::{gc, sdma, system::osssys};

const MQD: u64 = SCRATCH;
const LIST: u64 = SCRATCH + 0x1000;
const RING: u64 = SCRATCH + 0x2000;
const RPTR: u64 = SCRATCH + 0x4000;
const WPTR: u64 = SCRATCH + 0x4008;
const DATA: u64 = SCRATCH + 0x8000;
/// Ring bytes.
const BYTES: u64 = 4096;
const DOORBELL: u32 = 0x1000;

/// A process with a queue of a copy engine.
struct Program<'a> {
    rig: &'a Rig,
    pasid: u32,
    root: u64,
    submitted: u64,
}

impl<'a> Program<'a> {
    fn new(rig: &'a Rig, pasid: u32, root: u64) -> Self {
        Program { rig, pasid, root, submitted: 0 }
    }

    /// An MQD as the driver initializes it.
    fn init_mqd(&self) {
        let mut words = [0; 64];
        words[0] = 10 << 1 | 1 << 12;
        let ring = halves((USER + RING) >> 8);
        (words[1], words[2]) = (ring[0], ring[1]);
        let report = halves(USER + RPTR);
        (words[8], words[9]) = (report[1], report[0]);
        self.rig.write_words(MQD, &words);
        self.rig.write_words(RPTR, &[0; 4]);
    }

    fn map_process(&self) -> Vec<u32> {
        let [low, high] = halves(self.root | 1);
        let mut words = vec![pm4(0xa1, 19), self.pasid, low, high, 0, 1 << 12];
        words.resize(13, 0);
        words.push(1 << 22);
        words.resize(20, 0);
        words
    }

    fn map_queue(&self) -> Vec<u32> {
        let (mqd, wptr) = (halves(GART + MQD), halves(USER + WPTR));
        vec![pm4(0xa2, 6), 1 << 29 | 1 << 4 | 2 << 26, DOORBELL << 2, mqd[0], mqd[1], wptr[0], wptr[1]]
    }

    fn run(&self, done: &mut u64, list: &[u32]) {
        self.rig.write_words(LIST, list);
        let [low, high] = halves(GART + LIST);
        self.rig.kiq(done, &[pm4(0xa5, 3), low, high, u32::try_from(list.len()).unwrap() | 1 << 23]);
    }

    fn map(&self, done: &mut u64) {
        self.run(done, &[self.map_process(), self.map_queue()].concat());
    }

    /// Puts words into the ring and moves the write pointer in memory; the doorbell is the
    /// caller's.
    fn write(&mut self, words: &[u32]) {
        self.rig.write_words(RING + self.submitted % BYTES, words);
        self.submitted += 4 * words.len() as u64;
        let [low, high] = halves(self.submitted);
        self.rig.write_words(WPTR, &[low, high]);
    }

    fn ring(&self) {
        self.rig.doorbell(DOORBELL, self.submitted);
    }

    fn wait(&self) {
        self.rig.until("the queue is done", || self.rig.wide(RPTR) == self.submitted);
    }
}

/// FENCE of `value` at an offset in the program's data, and a TRAP.
fn fence(at: u64, value: u32) -> Vec<u32> {
    let [low, high] = halves(USER + DATA + at);
    vec![5, low, high, value, 6, 0x42]
}

fn unmap_all(rig: &Rig, done: &mut u64) {
    rig.kiq(done, &[pm4(0xa3, 5), 2 << 4 | 1 << 29, 0, 0, 0, 0]);
}

#[test]
fn a_run_list_gives_a_process_its_tables_and_its_queue_runs() {
    let (rig, mut done) = (Rig::up(), 0);
    let mut program = Program::new(&rig, 0x8003, rig.process_tables(0));
    program.init_mqd();
    program.map(&mut done);
    // Scattered memory into a block of VRAM and back.
    rig.write(DATA + 0x100, b"through 2 MiB blocks");
    let [from, vram, back] = [USER + DATA + 0x100, USER + MEMORY, USER + DATA + 0x200].map(halves);
    program.write(&[1, 19, 0, from[0], from[1], vram[0], vram[1]]);
    program.write(&[1, 19, 0, vram[0], vram[1], back[0], back[1]]);
    program.write(&fence(0, 9));
    program.ring();
    program.wait();
    assert_eq!((rig.read(DATA + 0x200, 20), rig.word(DATA)), (b"through 2 MiB blocks".to_vec(), 9));
    let mut there = [0; 20];
    rig.asic.gpu().vram().copy_out((32 << 20) + 0x3000, &mut there).unwrap();
    assert_eq!(&there, b"through 2 MiB blocks");
    // The trap names the engine, the VMID with its hub, the process and the event.
    rig.until("the interrupt comes", || rig.word(IH_WPTR) == 32);
    let entry = rig.entry(0);
    assert_eq!(entry[0], u32::from(client::SDMA[0]) | u32::from(source::TRAP) << 8 | 2 << 16 | 3 << 24 | 1 << 31);
    assert_eq!((entry[3], entry[4]), (0x8003, 0x42));
    assert_eq!(rig.get(osssys::IH_VMID_LUT + 3), 0x8003);
    // QUERY_STATUS: the fence that the driver polls.
    let [low, high] = halves(GART + SCRATCH + 0x9000);
    rig.kiq(&mut done, &[pm4(0xa4, 6), 2 << 30, 0, low, high, 5, 6]);
    assert_eq!(rig.wide(SCRATCH + 0x9000), 6 << 32 | 5);
}

#[test]
fn a_run_list_of_more_than_fits_leads_back_to_its_beginning_and_is_done_once() {
    const CHAIN: u32 = 1 << 20;
    let (rig, mut done) = (Rig::up(), 0);
    let mut program = Program::new(&rig, 0x8003, rig.process_tables(0));
    program.init_mqd();
    let list = |to: u64, chain: u32| {
        let [low, high] = halves(GART + to);
        let words = [program.map_process(), program.map_queue()].concat();
        let length = u32::try_from(words.len()).unwrap() + 4;
        [words, vec![pm4(0xa5, 3), low, high, length | chain | 1 << 23]].concat()
    };
    let (round, loops) = (list(LIST, CHAIN), list(LIST, 0));
    program.run(&mut done, &round);
    program.write(&fence(0, 5));
    program.ring();
    program.wait();
    assert_eq!((rig.word(DATA), rig.asic.summary().halted), (5, Vec::new()));
    // The scheduler goes on: the next list is looked at.
    unmap_all(&rig, &mut done);
    program.write(&fence(8, 6));
    program.run(&mut done, &round);
    program.wait();
    assert_eq!(rig.word(DATA + 8), 6);
    // A list that leads to itself otherwise has no end.
    program.run(&mut done, &loops);
    assert_eq!(rig.asic.summary().halted, ["compute ring 2.1.0"]);
}

#[test]
fn an_unmapped_queue_stands_still_and_goes_on_where_it_was() {
    let (rig, mut done) = (Rig::up(), 0);
    let mut program = Program::new(&rig, 0x8003, rig.process_tables(0));
    program.init_mqd();
    program.map(&mut done);
    program.write(&fence(0, 1));
    program.ring();
    program.wait();
    let first = program.submitted;
    unmap_all(&rig, &mut done);
    assert_eq!(u64::from(rig.word(MQD + 12)), first, "the read pointer is saved");
    // Submitted meanwhile: the doorbell is lost, the pointer in memory is not.
    program.write(&fence(8, 2));
    program.ring();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!((rig.word(DATA + 8), rig.wide(RPTR)), (0, first));
    program.map(&mut done);
    program.wait();
    assert_eq!(rig.word(DATA + 8), 2);
    // A queue that waits in the middle of a packet is not done twice: parked, it still waits.
    let [low, high] = halves(USER + DATA + 16);
    program.write(&[8 | 3 << 28 | 1 << 31, low, high, 7, 0xff, 0x0fff_0004]);
    program.write(&fence(24, 3));
    program.ring();
    unmap_all(&rig, &mut done);
    rig.write_words(DATA + 16, &[7]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(rig.word(DATA + 24), 0);
    program.map(&mut done);
    program.wait();
    assert_eq!(rig.word(DATA + 24), 3);
}

#[test]
fn a_new_queue_at_an_old_address_begins_anew() {
    let (rig, mut done) = (Rig::up(), 0);
    let mut program = Program::new(&rig, 0x8003, rig.process_tables(0));
    program.init_mqd();
    program.map(&mut done);
    program.write(&fence(0, 1));
    program.ring();
    program.wait();
    unmap_all(&rig, &mut done);
    let mut next = Program::new(&rig, 0x8003, program.root);
    next.init_mqd();
    next.write(&fence(8, 4));
    next.map(&mut done);
    next.wait();
    assert_eq!(rig.word(DATA + 8), 4);
}

#[test]
fn a_process_that_ended_leaves_its_vmid_and_more_than_there_are_are_refused() {
    let (rig, mut done) = (Rig::up(), 0);
    // 13 processes that run, each with a queue at an address of its own.
    let mut list = Vec::new();
    for number in 0..13u32 {
        let program = Program::new(&rig, 0x8001 + number, rig.process_tables(number.into()));
        program.init_mqd();
        list.extend(program.map_process());
        let mut map = program.map_queue();
        let mqd = SCRATCH + 0x1_0000 + u64::from(number) * 0x1000;
        rig.write(mqd, &rig.read(MQD, 256));
        (map[2], map[3], map[4]) = ((DOORBELL + 2 * number) << 2, halves(GART + mqd)[0], halves(GART + mqd)[1]);
        list.extend(map);
    }
    let first = Program::new(&rig, 0x8001, rig.process_tables(0));
    first.run(&mut done, &list);
    assert_eq!(rig.get(osssys::IH_VMID_LUT + 15), 0x800d);
    let more = Program::new(&rig, 0x9000, rig.process_tables(13));
    more.run(&mut done, &more.map_process());
    assert_eq!(rig.asic.summary().halted, ["compute ring 2.1.0"], "all 13 run: nothing can give way");

    // The same with all of them parked: the oldest gives way.
    let (rig, mut done) = (Rig::up(), 0);
    let first = Program::new(&rig, 0x8001, rig.process_tables(0));
    rig.process_tables(1);
    first.init_mqd();
    first.map(&mut done);
    unmap_all(&rig, &mut done);
    let other = Program::new(&rig, 0x8001, rig.process_tables(1));
    // The number of an ended process, with other tables: its parked queue is not found.
    other.init_mqd();
    other.map(&mut done);
    assert_eq!(rig.asic.summary().halted, [""; 0]);
}

#[test]
fn a_page_fault_of_a_program_is_an_interrupt_of_its_hub() {
    let (rig, mut done) = (Rig::up(), 0);
    let mut program = Program::new(&rig, 0x8003, rig.process_tables(0));
    program.init_mqd();
    program.map(&mut done);
    let [low, high] = halves(0x1234_5678_9000);
    program.write(&[5, low, high, 1]);
    program.ring();
    rig.until("the interrupt comes", || rig.word(IH_WPTR) == 32);
    let entry = rig.entry(0);
    assert_eq!((entry[0] & 0xff, entry[0] >> 24 & 0xf, entry[0] >> 31), (client::VMC.into(), 3, 1));
    // The page's number, and that it was a write.
    assert_eq!((entry[3], entry[4], entry[5]), (0x8003, 0x2345_6789, 0x21));
}

#[test]
fn a_packet_that_is_none_is_an_exception_of_its_queue() {
    let (rig, mut done) = (Rig::up(), 0);
    let program = Program::new(&rig, 0x8003, rig.process_tables(0));
    let mut hqd = Hqd::default();
    for (low, high, value) in [
        (gc::CP_HQD_PQ_BASE, gc::CP_HQD_PQ_BASE_HI, (USER + RING) >> 8),
        (gc::CP_HQD_PQ_RPTR_REPORT_ADDR, gc::CP_HQD_PQ_RPTR_REPORT_ADDR_HI, USER + RPTR),
    ] {
        hqd.set(low, halves(value)[0]);
        hqd.set(high, halves(value)[1]);
    }
    // 1,024 words.
    hqd.set(gc::CP_HQD_PQ_CONTROL, 9);
    rig.write_words(MQD, &[0; 256]);
    rig.write_words(MQD + 4 * IN_MQD, &hqd.0);
    rig.write_words(RPTR, &[0; 4]);
    rig.write_words(RING, &[pm4(0xfe, 1), 0]);
    let mut queue = program.map_queue();
    // Of the command processor's engine, with the eighth doorbell of its process.
    (queue[1], queue[2]) = (1 << 29 | 1 << 4, (DOORBELL + 2 * 7) << 2);
    program.run(&mut done, &[program.map_process(), queue].concat());
    rig.doorbell(DOORBELL + 2 * 7, 2);
    rig.until("the interrupt comes", || rig.word(IH_WPTR) == 32);
    let entry = rig.entry(0);
    assert_eq!(entry[0], u32::from(client::GRBM_CP) | u32::from(source::BAD_OPCODE) << 8 | 0x24 << 16 | 3 << 24);
    // EC_QUEUE_PACKET_UNSUPPORTED, and the doorbell.
    assert_eq!((entry[3], entry[4]), (0x8003, 20 << 10 | 7));
}

#[test]
fn the_driver_loads_a_queue_by_registers_and_takes_it_back() {
    let rig = Rig::up();
    let root = rig.process_tables(0);
    rig.set_wide(vkfd_asic::registers::hub::mmhub::VM_CONTEXT_BASE_LO + 2 * 5, root | 1);
    rig.set(osssys::IH_VMID_LUT_MM + 5, 0x8005);
    let mut program = Program::new(&rig, 0x8005, root);
    rig.write_words(RPTR, &[0; 4]);
    program.write(&fence(0, 6));
    let base = sdma::ENGINES[2] + 3 * sdma::QUEUE_STRIDE;
    rig.set(base + sdma::RLC_DOORBELL_OFFSET, DOORBELL << 2);
    rig.set(base + sdma::RLC_DOORBELL, 1 << 28);
    rig.set_wide(base + sdma::RLC_RB_RPTR, 0);
    rig.set_wide(base + sdma::RLC_RB_WPTR, program.submitted);
    rig.set_wide(base + sdma::RLC_RB_BASE, (USER + RING) >> 8);
    rig.set(base + sdma::RLC_RB_RPTR_ADDR_LO, halves(USER + RPTR)[0]);
    rig.set(base + sdma::RLC_RB_RPTR_ADDR_HI, halves(USER + RPTR)[1]);
    rig.set(base + sdma::RLC_RB_CNTL, 5 << 24 | 10 << 1 | 1 << 12 | 1);
    program.wait();
    program.write(&fence(8, 7));
    program.ring();
    program.wait();
    assert_eq!((rig.word(DATA), rig.word(DATA + 8)), (6, 7));
    // As the driver does it: disable, wait for idle, read the pointer.
    rig.set(base + sdma::RLC_RB_CNTL, 5 << 24 | 10 << 1 | 1 << 12);
    rig.until("the queue is idle", || rig.get(base + sdma::RLC_CONTEXT_STATUS) & 4 != 0);
    assert_eq!(u64::from(rig.get(base + sdma::RLC_RB_RPTR)), program.submitted);
    rig.set(base + sdma::RLC_DOORBELL, 0);
    rig.set(base + sdma::RLC_RB_CNTL, 5 << 24 | 10 << 1 | 1 << 12 | 1);
    program.write(&fence(16, 8));
    program.ring();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(rig.word(DATA + 16), 0, "nothing runs there any more");
}
