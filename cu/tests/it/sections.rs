// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Waves behind a barrier: where their order may be seen they go side by side, as hardware has
//! them; elsewhere each runs to its next barrier at once.

use crate::support::APERTURES;
use vkfd_cu::fast::Engine;
use vkfd_cu::launch::{self, Launch, Program, Section, Sizes, Span, Turn};
use vkfd_cu::{Exit, Flat, Group, Place, Wave, World};
use vkfd_isa::Target;
use vkfd_sabotage::{Switch, Switches};

const CODE: u64 = 0x10_0000;
const DATA_LOW: u32 = 0x10_1000;
const DATA: u64 = DATA_LOW as u64;
const ITEMS: u32 = 256;

const BARRIER: u32 = 0xbf8a_0000;
const END: u32 = 0xbf81_0000;
/// `s_waitcnt lgkmcnt(0)`
const WAIT: u32 = 0xbf8c_c07f;
/// `s_waitcnt 0`
const WAIT_ALL: u32 = 0xbf8c_0000;
/// `s_cbranch_scc0` and `s_cbranch_scc1` without their distance and with 1, `s_cbranch_vccz` to the
/// next instruction, `s_branch` over one, `s_mov_b32 s2, 1`, `s_cmp_lg_u32 s0, 0`.
const SCC0: u32 = 0xbf84_0000;
const SCC1: u32 = 0xbf85_0001;
const VCCZ: u32 = 0xbf86_0000;
const JUMP: u32 = 0xbf82_0001;
const MOVE: u32 = 0xbe82_0081;
const COMPARE: u32 = 0xbf07_8000;
/// `s_mov_b32 s2, 4`, `s_sub_u32 s2, s2, 1`, `s_cmp_lg_u32 s2, 0`, `s_cbranch_scc1` seven words
/// back.
const FOUR: u32 = 0xbe82_0084;
const COUNT: u32 = 0x8082_8102;
const COUNTED: u32 = 0xbf07_8002;
const BACK: u32 = 0xbf85_fff9;
/// `v_lshlrev_b32 v1, 2, v0`, `v_xor_b32 v2, 0x100, v1`: this item's place in LDS, and that of one
/// in the next wave. `v_mov_b32 v4, -1`.
const PLACES: [u32; 4] = [0x2402_0082, 0x2a04_02ff, 0x100, 0x7e08_02c1];
/// `s_add_u32 s2, s0, 1`, `s_mul_i32 s2, s0, 1`, `s_mov_b64 exec, 1`
const SUM: u32 = 0x8002_8100;
const PRODUCT: u32 = 0x9202_8100;
const HALF: u32 = 0xbefe_0181;
/// `s_mov_b64 vcc, 1`
const VCC: u32 = 0xbeea_0181;
/// `v_cmp_eq_u32 vcc, 0, v0`, `v_cmp_gt_u32 vcc, 64, v0`, and the first word of both with a
/// literal.
const FIRST: u32 = 0x7d94_0080;
const BELOW_64: u32 = 0x7d98_00c0;
const EQUAL: u32 = 0x7d94_00ff;
const BELOW: u32 = 0x7d98_00ff;
/// `s_and_saveexec_b64 s[4:5], vcc`, and `s_cbranch_execz` and `s_cbranch_execnz` without distance.
const SAVE: u32 = 0xbe84_206a;
const EXECZ: u32 = 0xbf88_0000;
const EXECNZ: u32 = 0xbf89_0000;
/// `ds_write_b32 v1, v0`
const WRITE: [u32; 2] = [0xd81a_0000, 0x0000_0001];
/// `ds_write_b32 v1, v4`
const SPOIL: [u32; 2] = [0xd81a_0000, 0x0000_0401];
/// `ds_read_b32 v3, v2`
const READ: [u32; 2] = [0xd86c_0000, 0x0300_0002];
/// `global_load_dword v5, v1, s[0:1] offset:2048`
const LOAD: [u32; 2] = [0xdc50_8800, 0x0500_0001];
/// `global_store_dword v1, v3, s[0:1]`
const STORE: [u32; 2] = [0xdc70_8000, 0x0000_0301];

/// `v_xor_b32 v1, bits, v1`
fn flip(bits: u32) -> [u32; 2] {
    [0x2a02_02ff, bits]
}

/// The fast engine, and how often it was entered.
struct Counting {
    engine: Engine,
    entered: u32,
}

impl launch::Engine for Counting {
    fn run<W: World>(&mut self, wave: &mut Wave, group: &mut Group, world: &mut W, budget: u32) -> Exit {
        self.entered += 1;
        self.engine.run(wave, group, world, budget)
    }

    fn section<W: World>(&mut self, wave: &Wave, world: &mut W) -> Section {
        launch::Engine::section(&mut self.engine, wave, world)
    }
}

/// Runs code with a group of four waves. How often they entered the engine, and the first words of
/// memory.
fn run(code: &[&[u32]], switches: Switches) -> (u32, Vec<u32>) {
    let (mut world, launch) = launch(code);
    let mut engine = Counting { engine: Engine::new(Target::Gfx900), entered: 0 };
    engine.engine.sabotage(switches);
    let mut group = launch.workgroup(0, vec![0; 4], Place::default());
    assert_eq!(group.run(&mut engine, &mut world, 1 << 20), Turn::Done);
    (engine.entered, world.read_words(DATA, ITEMS as usize))
}

fn launch(code: &[&[u32]]) -> (Flat, Launch) {
    let mut world = Flat::new(CODE, 4);
    world.write(CODE, &code.concat().iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
    // 16 vector registers; two scalar ones that the packet processor fills.
    let program = Program::new(Target::Gfx900, CODE, [3, 2 << 1, 0], false).expect("a program");
    let launch = Launch {
        program,
        sizes: Sizes::new(1, [ITEMS, 1, 1], [ITEMS, 1, 1]).expect("sizes"),
        start: [0; 3],
        user: vec![DATA_LOW, 0],
        lds: 4096,
        scratch: None,
        apertures: APERTURES,
        watch: None,
    };
    (world, launch)
}

#[test]
fn waves_go_side_by_side_where_a_barrier_is_missing() {
    // All read what the next wave has written, and replace their own without another barrier.
    let code: &[&[u32]] = &[&PLACES, &WRITE, &[WAIT, BARRIER], &READ, &[WAIT], &SPOIL, &[WAIT], &STORE, &[END]];
    let (_, words) = run(code, Switches::NONE);
    assert!(words.iter().zip(0..).all(|(word, item)| *word == item ^ 64), "{words:x?}");
    let (_, words) = run(code, Switches::NONE.with(Switch::AheadOfBarrier));
    assert!(words.iter().zip(0..).any(|(word, item)| *word != item ^ 64), "the order made no difference");
}

#[test]
fn waves_that_only_read_run_to_their_next_barrier_at_once() {
    let reads: Vec<u32> = [READ.as_slice(), &[WAIT]].concat().repeat(8);
    let begin: &[&[u32]] = &[&PLACES, &WRITE, &[WAIT, BARRIER], &reads, &[WAIT]];
    let (entered, words) = run(&[begin, &[&[BARRIER], &STORE, &[END]]].concat(), Switches::NONE);
    assert_eq!(entered, 3 * 4, "each of four waves once before, between and behind the barriers");
    assert!(words.iter().zip(0..).all(|(word, item)| *word == item ^ 64), "{words:x?}");
    let (entered, _) = run(&[begin, &[&SPOIL, &[BARRIER], &STORE, &[END]]].concat(), Switches::NONE);
    assert!(entered > 30, "a store in the section: {entered}");
    // A loop that reads, and a write behind it: SCC says where all go from the barrier at its end.
    let round: Vec<u32> = [READ.as_slice(), &[WAIT, COUNT, COUNTED, BARRIER, BACK]].concat();
    let (entered, _) = run(&[&PLACES, &WRITE, &[FOUR, WAIT, BARRIER], &round, &SPOIL, &[END]], Switches::NONE);
    assert_eq!(entered, 6 * 4, "once before four rounds, in each, and behind them");
}

#[test]
fn waves_that_read_one_half_of_lds_and_write_the_other_run_to_their_next_barrier_at_once() {
    let reads: Vec<u32> = [READ.as_slice(), &[WAIT]].concat().repeat(8);
    let begin: &[&[u32]] = &[&PLACES, &WRITE, &[WAIT, BARRIER], &reads];
    let entered = |bits| {
        let (flip, back) = (flip(bits), flip(bits));
        let end: &[&[u32]] = &[&flip, &SPOIL, &back, &[WAIT, BARRIER], &STORE, &[END]];
        let (entered, words) = run(&[begin, end].concat(), Switches::NONE);
        assert!(words.iter().zip(0..).all(|(word, item)| *word == item ^ 64), "{words:x?}");
        entered
    };
    assert_eq!(entered(0x800), 3 * 4, "the other half");
    assert!(entered(0x200) > 30, "the same bytes, of other lanes");
    // A loop whose counter is compared behind the barrier, and a write behind it.
    let round: Vec<u32> = [READ.as_slice(), &[WAIT, BARRIER, COUNT, COUNTED, BACK]].concat();
    let (entered, _) = run(&[&PLACES, &WRITE, &[FOUR, WAIT, BARRIER], &round, &SPOIL, &[END]], Switches::NONE);
    assert_eq!(entered, 6 * 4, "once before four rounds, in each, and behind them");
}

#[test]
fn the_only_wave_that_goes_on_behind_a_barrier_does_so_at_once() {
    let entered = |items: u32| {
        let last: &[&[u32]] = &[&[BELOW, items, SAVE, EXECZ | 5], &LOAD, &[WAIT_ALL], &STORE, &[END]];
        let (entered, _) = run(&[&[&PLACES, WRITE.as_slice(), &[WAIT, BARRIER]], last].concat(), Switches::NONE);
        entered
    };
    assert_eq!(entered(64), 2 * 4, "once before and behind the barrier");
    assert!(entered(65) > 2 * 4, "two waves load and store");
    assert_eq!(entered(0), 2 * 4, "none does");
}

#[test]
fn a_change_of_addresses_counts() {
    // Before the barrier the places that are written are in the other half.
    let flip = flip(0x800);
    let code: &[&[u32]] =
        &[&PLACES, &WRITE, &flip, &[WAIT, BARRIER], &READ, &[WAIT], &flip, &SPOIL, &[WAIT], &STORE, &[END]];
    let (_, words) = run(code, Switches::NONE);
    assert!(words.iter().zip(0..).all(|(word, item)| *word == item ^ 64), "{words:x?}");
    let (_, words) = run(code, Switches::NONE.with(Switch::LostChange));
    assert!(words.iter().zip(0..).any(|(word, item)| *word != item ^ 64), "the order made no difference");
}

#[test]
fn a_walk_over_code_ends_when_the_gate_is_wanted_and_is_done_again() {
    // s_branch to the next instruction, nine times
    let (mut world, launch) = launch(&[&READ, &[0xbf82_0000; 9], &[END]]);
    let group = launch.workgroup(0, vec![0; 4], Place::default());
    let mut engine = Engine::new(Target::Gfx900);
    let mut section = |world: &mut Flat| launch::Engine::section(&mut engine, &group.waves()[0], world);
    world.is_wanted = true;
    assert_eq!(section(&mut world), Section::UNKNOWN);
    world.is_wanted = false;
    assert_eq!(section(&mut world), Section::READS_LDS);
}

#[test]
fn a_section_has_the_accesses_up_to_the_next_barriers() {
    const NONE: Section = Section::NONE;
    // All addresses are 0.
    let lds = Section::reads(Span::new(0, 4)).and(Section::writes(Span::new(0, 4)));
    let any_lds = Section::READS_LDS.and(Section::WRITES_LDS);
    let pair = Section::reads(Span::new(0, 8)).and(Section::writes(Span::new(0, 4)));
    let apart = Section::reads(Span::new(0, 4)).and(Section::writes(Span::new(0x300, 0x304)));
    let half = Section::reads(Span::new(0, 4)).and(Section::WRITES_LDS);
    let memory = Section::READS_MEMORY.and(Section::WRITES_MEMORY);
    let cases: &[(&str, &[&[u32]], Section)] = &[
        ("a read", &[&READ, &[WAIT, BARRIER], &SPOIL, &[END]], Section::READS_LDS),
        ("a read and a write", &[&READ, &SPOIL, &[END]], lds),
        // SCC is 0 here.
        ("s_cbranch_scc1 to a write", &[&READ, &[SCC1, END], &SPOIL, &[END]], Section::READS_LDS),
        ("s_cbranch_scc0 over a write", &[&READ, &[SCC0 | 2], &SPOIL, &[END]], Section::READS_LDS),
        ("the same behind s_mov_b32", &[&[MOVE], &READ, &[SCC0 | 2], &SPOIL, &[END]], Section::READS_LDS),
        ("the same behind s_cmp_lg_u32", &[&[COMPARE], &READ, &[SCC0 | 2], &SPOIL, &[END]], lds),
        ("the same behind a jump", &[&[JUMP, END], &READ, &[SCC0 | 2], &SPOIL, &[END]], Section::READS_LDS),
        ("the same behind s_cbranch_vccz", &[&[VCCZ], &READ, &[SCC0 | 2], &SPOIL, &[END]], Section::READS_LDS),
        ("s_cbranch_scc1 back", &[&READ, &[0xbf85_fffd, END]], Section::READS_LDS),
        ("s_branch over a write", &[&[0xbf82_0002], &SPOIL, &READ, &[END]], Section::READS_LDS),
        ("the same behind s_cmp_eq_u32", &[&[0xbf06_8000], &READ, &[SCC0 | 2], &SPOIL, &[END]], Section::READS_LDS),
        ("the same behind a sum", &[&[SUM, 0xbf06_8002], &READ, &[SCC0 | 2], &SPOIL, &[END]], Section::READS_LDS),
        ("the same behind a product", &[&[PRODUCT, 0xbf06_8002], &READ, &[SCC0 | 2], &SPOIL, &[END]], lds),
        ("ds_read2_b32 and a write", &[&[0xd86e_0100, 0x0600_0002], &SPOIL, &[END]], pair),
        ("a write behind v_xor_b32", &[&READ, &flip(0x300), &SPOIL, &[END]], apart),
        ("the same of half of the lanes", &[&READ, &[HALF], &flip(0x300), &SPOIL, &[END]], half),
        ("the same, and then other lanes", &[&READ, &flip(0x300), &[HALF], &SPOIL, &[END]], half),
        ("a write behind v_mul_lo_u32", &[&READ, &[0xd285_0001, 0x0002_0301], &SPOIL, &[END]], half),
        ("forty branches", &[&[VCCZ; 40], &READ, &STORE, &[END]], Section::READS_LDS.and(Section::WRITES_MEMORY)),
        ("forty branches, and a write", &[&[VCCZ; 40], &READ, &SPOIL, &[END]], any_lds),
        ("300 branches", &[&[VCCZ; 300], &READ, &[END]], Section::UNKNOWN),
        // VCC is 0 here.
        ("a write of no lane", &[&READ, &[SAVE, EXECZ | 2], &SPOIL, &[END]], Section::READS_LDS),
        ("one of item 0", &[&READ, &[FIRST, SAVE, EXECZ | 2], &SPOIL, &[END]], lds),
        ("one of items below 64", &[&READ, &[BELOW_64, SAVE, EXECZ | 2], &SPOIL, &[END]], lds),
        ("one of item 1,000", &[&READ, &[EQUAL, 1000, SAVE, EXECZ | 2], &SPOIL, &[END]], Section::READS_LDS),
        ("s_cbranch_execnz to it", &[&READ, &[EQUAL, 1000, SAVE, EXECNZ | 1, END], &SPOIL, &[END]], Section::READS_LDS),
        ("the same of item 0", &[&READ, &[FIRST, SAVE, EXECNZ | 1, END], &SPOIL, &[END]], lds),
        ("other lanes, and item 1,000", &[&READ, &[HALF, EQUAL, 1000, SAVE, EXECZ | 2], &SPOIL, &[END]], lds),
        ("item 1,000, and VCC anew", &[&READ, &[EQUAL, 1000, VCC, SAVE, EXECZ | 2], &SPOIL, &[END]], lds),
        ("ds_add_u32", &[&[0xd800_0000, 1, END]], any_lds),
        ("ds_read2_b32", &[&[0xd86e_0100, 0x0600_0002, END]], Section::READS_LDS),
        ("ds_bpermute_b32", &[&[0xd87e_0000, 0x0300_0002, END]], NONE),
        ("a load and a store", &[&LOAD, &STORE, &[END]], memory),
        ("a load, and a write to LDS", &[&LOAD, &SPOIL, &[END]], Section::READS_MEMORY.and(Section::WRITES_LDS)),
        ("flat_load_dword", &[&[0xdc50_0000, 0x0500_0001, END]], Section::READS_MEMORY.and(Section::READS_LDS)),
        ("global_atomic_add", &[&[0xdd08_8000, 0x0000_0301, END]], Section::UNKNOWN),
        ("s_load_dword", &[&[0xc002_0100, 0, END]], NONE),
        ("s_dcache_inv", &[&[0xc080_0000, 0, END]], Section::READS_MEMORY),
        ("s_load_dword and a store", &[&[0xc002_0100, 0], &STORE, &[END]], Section::WRITES_MEMORY),
        ("s_dcache_inv and a store", &[&[0xc080_0000, 0], &STORE, &[END]], memory),
        ("buffer_wbinvl1", &[&[0xe0fc_0000, 0, END]], NONE),
        ("s_setreg_imm32_b32", &[&[0xba00_0801, 0, END]], NONE),
        ("s_setpc_b64", &[&[0xbe80_1d00]], Section::UNKNOWN),
        ("s_sleep", &[&[0xbf8e_0001, END]], Section::UNKNOWN),
        ("code that is not there", &[&[0xbf82_7fff]], Section::UNKNOWN),
    ];
    for (what, code, section) in cases {
        let (mut world, launch) = launch(code);
        let group = launch.workgroup(0, vec![0; 4], Place::default());
        let mut engine = Engine::new(Target::Gfx900);
        assert_eq!(launch::Engine::section(&mut engine, &group.waves()[0], &mut world), *section, "{what}");
    }
}
