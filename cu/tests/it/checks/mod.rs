// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Planted bugs of kernels, which hardware hides: each is found on all targets, with its facts, and
//! its correct twin is silent. `planted.cl` has the kernels, and `planted.sh` compiles them.

mod late;
mod oclgrind;
mod published;
mod rig;

use crate::support::alone;
use rig::{Given, Rig};
use std::process::Command;
use vkfd_cu::check::Checks;
use vkfd_cu::launch::Schedule;
use vkfd_findings::{Access, Check, Counted, Position};
use vkfd_isa::Target;
use vkfd_sabotage::{process, Switch, Switches};

/// A kernel, what it is given, and the rule that finds it; none: it is right.
type Case = (&'static str, Given, Option<&'static str>);

const WRITTEN: Given = Given { first: 0, unwritten: false, groups: 1, schedule: Schedule::Usual, wanted: false };
const UNWRITTEN: Given = Given { unwritten: true, ..WRITTEN };
const GROUPS: Given = Given { groups: 3, ..WRITTEN };

const fn first(first: u32) -> Given {
    Given { first, ..WRITTEN }
}

const MEMORY: &[Case] = &[
    ("store_all", WRITTEN, Some("memory/bounds")),
    ("store_100", WRITTEN, None),
    ("load_all", WRITTEN, Some("memory/bounds")),
    ("add_all", WRITTEN, Some("memory/bounds")),
    ("misaligned", WRITTEN, Some("memory/alignment")),
    ("lds", first(1), Some("memory/lds")),
    ("lds", WRITTEN, None),
    ("lds_wide", first(1), Some("memory/lds")),
    ("lds_wide", WRITTEN, None),
    ("scratch", first(4096), Some("memory/scratch")),
    ("scratch", WRITTEN, None),
];

const RACE: &[Case] = &[
    ("race", WRITTEN, Some("race/lds")),
    ("race_twin", WRITTEN, None),
    ("rounds", WRITTEN, Some("race/lds")),
    ("rounds_twin", WRITTEN, None),
    ("same", WRITTEN, None),
    ("count", WRITTEN, Some("race/lds")),
    ("flag_once", WRITTEN, Some("race/lds")),
    ("barriers", WRITTEN, Some("race/barrier")),
    ("barrier_lanes", WRITTEN, Some("race/barrier")),
    ("barrier_branch", WRITTEN, None),
    ("barrier_ended", WRITTEN, None),
];

/// Words of LDS that a wave spins on.
const FLAGS: &[Case] = &[("flag", WRITTEN, None), ("flag_volatile", WRITTEN, None)];

const MEMORY_RACE: &[Case] = &[
    ("overlap", GROUPS, Some("race/memory")),
    ("overlap_twin", GROUPS, None),
    ("same_words", GROUPS, None),
    ("neighbours", GROUPS, Some("race/memory")),
    ("waves", WRITTEN, Some("race/memory")),
    ("waves_twin", WRITTEN, None),
    ("bytes", GROUPS, None),
    ("counter", GROUPS, None),
    ("counter_init", GROUPS, Some("race/memory")),
    ("handover", GROUPS, None),
    ("handover_relaxed", GROUPS, Some("race/memory")),
    ("handover_stale", GROUPS, Some("race/memory")),
    ("handover_early", GROUPS, Some("race/memory")),
    ("answer", GROUPS, None),
    ("ticket", GROUPS, None),
    ("ticket_relaxed", GROUPS, Some("race/memory")),
    ("lock", GROUPS, None),
    ("lock_twice", GROUPS, Some("race/memory")),
    ("all_groups", GROUPS, None),
    ("all_groups_early", GROUPS, Some("race/memory")),
    ("guess_believed", GROUPS, Some("race/memory")),
    ("guess_elsewhere", GROUPS, Some("race/memory")),
];

/// Loads that guess for a compare-and-swap.
const GUESSES: &[Case] = &[("guess", GROUPS, None)];

const WAITS: &[Case] = &[
    ("early_load", WRITTEN, Some("waits/vmcnt")),
    ("early_load_twin", WRITTEN, None),
    ("early_count", WRITTEN, Some("waits/vmcnt")),
    ("early_count_twin", WRITTEN, None),
    ("early_overwrite", WRITTEN, Some("waits/vmcnt")),
    ("early_lds", WRITTEN, Some("waits/lgkmcnt")),
    ("early_lds_twin", WRITTEN, None),
    ("early_scalar", WRITTEN, Some("waits/lgkmcnt")),
    ("early_scalar_twin", WRITTEN, None),
];

const INIT: &[Case] = &[
    ("decide", UNWRITTEN, Some("init/lanes")),
    ("decide", WRITTEN, None),
    ("decide_one", UNWRITTEN, Some("init/branch")),
    ("decide_one", WRITTEN, None),
    ("compute", UNWRITTEN, Some("init/store")),
    ("compute", WRITTEN, None),
    ("address", UNWRITTEN, Some("init/address")),
    ("address", WRITTEN, None),
    ("part", WRITTEN, None),
    ("move", UNWRITTEN, None),
    ("lds_unwritten", WRITTEN, Some("init/store")),
    ("lds_written", WRITTEN, None),
    ("scratch_unwritten", first(7), Some("init/store")),
    ("scratch_unwritten", first(16), None),
    ("registers", WRITTEN, Some("init/store")),
    ("scalars", WRITTEN, Some("init/branch")),
];

const HAZARDS: &[Case] = &[("neighbour", WRITTEN, Some("hazards/vgpr-dpp")), ("neighbour_twin", WRITTEN, None)];

/// All of them, by check.
const ALL: [(Check, &[&[Case]]); 5] = [
    (Check::Memory, &[MEMORY]),
    (Check::Init, &[INIT]),
    (Check::Race, &[RACE, FLAGS, MEMORY_RACE, GUESSES]),
    (Check::Waits, &[WAITS]),
    (Check::Hazards, &[HAZARDS]),
];

/// The rule that finds a case on a target. Newer GPUs keep more instructions apart by themselves.
fn expected(target: Target, (.., rule): &Case) -> Option<&'static str> {
    rule.filter(|rule| !rule.starts_with("hazards/") || target.is_gfx9())
}

fn rules(found: &[Counted]) -> Vec<&str> {
    let mut rules: Vec<&str> = found.iter().map(|counted| &*counted.finding.rule).collect();
    rules.dedup();
    rules
}

/// Runs all cases on all targets, with a check alone and with all of them: those that end
/// differently.
fn differences(cases: &[Case], checks: Checks) -> Vec<String> {
    let mut differences = Vec::new();
    for target in Target::ALL {
        let rig = Rig::new(target);
        for case @ &(kernel, given, _) in cases {
            let rule = expected(target, case);
            for checks in [checks, Checks::ALL] {
                let found = rig.run(kernel, given, checks);
                let rules = rules(&found);
                if rules != rule.into_iter().collect::<Vec<_>>() {
                    differences.push(format!("{target} {kernel} {given:?} --check {checks}: {rules:?}, not {rule:?}"));
                }
            }
        }
    }
    differences
}

fn only(check: Check) -> Checks {
    check.to_string().parse().expect("a check")
}

#[test]
fn accesses_out_of_bounds_are_found() {
    assert_eq!(differences(MEMORY, only(Check::Memory)), [""; 0]);
}

#[test]
fn races_in_lds_are_found() {
    assert_eq!(differences(RACE, only(Check::Race)), [""; 0]);
}

#[test]
fn flags_in_lds_are_no_race() {
    assert_eq!(differences(FLAGS, only(Check::Race)), [""; 0]);
}

#[test]
fn races_in_memory_are_found() {
    assert_eq!(differences(MEMORY_RACE, only(Check::Race)), [""; 0]);
    assert_eq!(differences(GUESSES, only(Check::Race)), [""; 0]);
}

#[test]
fn missing_waits_are_found() {
    assert_eq!(differences(WAITS, only(Check::Waits)), [""; 0]);
}

#[test]
fn hazards_are_found_in_kernels_that_are_launched() {
    assert_eq!(differences(HAZARDS, only(Check::Hazards)), [""; 0]);
}

#[test]
fn the_table_of_the_page_is_what_the_checks_find() {
    let mut table = String::from("| check |");
    Target::ALL.iter().for_each(|target| table += &format!(" {target} |"));
    table += "\n| --- | --- | --- | --- | --- | --- |\n";
    let rigs = Target::ALL.map(Rig::new);
    for (check, lists) in ALL {
        table += &format!("| {check} |");
        for (target, rig) in Target::ALL.into_iter().zip(&rigs) {
            let (mut found, mut missed, mut wrong) = (0, 0, 0);
            for case in lists.iter().copied().flatten() {
                let (kernel, given, _) = *case;
                let list = rig.run(kernel, given, only(check));
                let (rule, rules) = (expected(target, case), rules(&list));
                found += usize::from(rule.is_some_and(|rule| rules.contains(&rule)));
                missed += usize::from(rule.is_some_and(|rule| !rules.contains(&rule)));
                wrong += usize::from(rules.iter().any(|found| Some(*found) != rule));
            }
            table += &format!(" {found} / {missed} / {wrong} |");
        }
        table += "\n";
    }
    page_has("precision", &table);
}

/// docs/checking.md has a table between its marks.
fn page_has(name: &str, table: &str) {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/checking.md");
    let text = std::fs::read_to_string(&page).expect("the page");
    let begin = format!("<!-- {name}: written by VKFD_WRITE_PRECISION=1 -->\n\n");
    let end = format!("\n<!-- end of {name} -->");
    let (before, rest) = text.split_once(&begin).expect("the table's place");
    let (old, behind) = rest.split_once(&end).expect("the table's end");
    if std::env::var_os("VKFD_WRITE_PRECISION").is_some() {
        std::fs::write(&page, format!("{before}{begin}{table}{end}{behind}")).expect("the page");
    } else {
        assert_eq!(old, table, "VKFD_WRITE_PRECISION=1 writes it");
    }
}

#[test]
fn unwritten_bits_are_found_where_they_decide() {
    assert_eq!(differences(INIT, only(Check::Init)), [""; 0]);
}

#[test]
fn blind_checks_find_nothing() {
    let blind = [
        (Switch::BlindMemory, MEMORY, Check::Memory),
        (Switch::BlindRace, RACE, Check::Race),
        (Switch::BlindInit, INIT, Check::Init),
        (Switch::BlindMemoryRace, MEMORY_RACE, Check::Race),
        (Switch::BlindWaits, WAITS, Check::Waits),
        (Switch::BlindHazards, HAZARDS, Check::Hazards),
    ];
    alone("checks::blind_checks_find_nothing", || {
        for (switch, cases, check) in blind {
            process().set(Switches::NONE.with(switch));
            let wrong = |target| cases.iter().filter(|case| expected(target, case).is_some()).count();
            let noticed = differences(cases, only(check)).len();
            assert_eq!(noticed, 2 * Target::ALL.into_iter().map(wrong).sum::<usize>(), "{}", switch.name());
        }
        for (switch, cases) in [(Switch::UnknownSpins, FLAGS), (Switch::UnknownGuesses, GUESSES)] {
            process().set(Switches::NONE.with(switch));
            assert_eq!(differences(cases, only(Check::Race)).len(), 2 * cases.len() * Target::ALL.len());
        }
    });
}

#[test]
fn launches_at_the_same_time_have_no_order() {
    let kernels = ["store_100", "compute"];
    for target in Target::ALL {
        let rig = Rig::new(target);
        let race = only(Check::Race);
        assert_eq!(rig.run_both(kernels, false, race), [], "{target}: one after the other");
        let found = rig.run_both(kernels, true, race);
        assert_eq!(rules(&found), ["race/memory"], "{target}");
        let finding = &found[0].finding;
        assert!(finding.message.ends_with("by another launch at the same time have no order"), "{}", finding.message);
        let mut names = vec![finding.place.kernel.as_deref()];
        names.extend(finding.notes.iter().filter_map(|note| Some(note.place.as_ref()?.kernel.as_deref())));
        names.sort_unstable();
        assert_eq!(names, [Some("compute"), Some("store_100")], "{target}");
    }
}

/// The correct kernels on all targets, while others want the gate: those with findings.
fn alarms_of_a_wanted_gate() -> Vec<String> {
    let mut alarms = Vec::new();
    let correct = ALL.iter().flat_map(|(_, cases)| cases.iter().copied().flatten());
    let correct: Vec<&Case> = correct.filter(|(.., rule)| rule.is_none()).collect();
    for target in Target::ALL {
        let rig = Rig::new(target);
        for (kernel, given, _) in &correct {
            for check in [Checks::ALL, only(Check::Memory), only(Check::Waits)] {
                let found = rig.run(kernel, Given { wanted: true, ..*given }, check);
                if !found.is_empty() {
                    alarms.push(format!("{target} {kernel} --check {check}: {:?}", rules(&found)));
                }
            }
        }
    }
    alarms
}

#[test]
fn a_wanted_gate_is_no_finding() {
    alone("checks::a_wanted_gate_is_no_finding", || {
        assert_eq!(alarms_of_a_wanted_gate(), [""; 0]);
        process().set(Switches::NONE.with(Switch::HastyChecks));
        assert!(!alarms_of_a_wanted_gate().is_empty());
    });
}

#[test]
fn one_queue_and_one_cache_hide_races() {
    alone("checks::one_queue_and_one_cache_hide_races", || {
        let kernels = ["unwritten", "write_back_late", "scalar_stale"];
        for target in Target::ALL {
            process().set(Switches::NONE.with(Switch::OneQueue));
            let found = Rig::new(target).run_both(["store_100", "compute"], true, only(Check::Race));
            assert_eq!(found, [], "{target}: launches at the same time");
            process().set(Switches::NONE.with(Switch::OneCache));
            for kernel in kernels {
                let found = Rig::of("published", target).run(kernel, GROUPS, only(Check::Race));
                assert_eq!(found, [], "{target} {kernel}");
            }
        }
    });
}

#[test]
fn findings_have_their_facts() {
    for target in Target::ALL {
        let rig = Rig::new(target);
        let found = rig.run("store_all", WRITTEN, only(Check::Memory));
        let [Counted { finding, count }] = &found[..] else { panic!("{target}: {found:?}") };
        assert_eq!(*count, 28, "{target}: items 100 to 127");
        let place = &finding.place;
        assert_eq!(place.kernel.as_deref(), Some("store_all"));
        let instruction = place.instruction.as_deref().expect("an instruction");
        assert!(instruction.contains("store"), "{target}: {instruction}");
        assert!(place.offset.is_some_and(|offset| offset > 0 && offset < 256));
        let thread = finding.thread.expect("a thread");
        // Item 100, the first one outside.
        let lanes = if target.is_rdna() { 32 } else { 64 };
        assert_eq!((thread.group, thread.wave, thread.lane), ([0; 3], 100 / lanes, u8::try_from(100 % lanes).ok()));
        let address = finding.address.as_ref().expect("an address");
        assert_eq!((address.bytes, address.access), (4, Access::Write));
        let nearest = address.nearest.as_ref().expect("an allocation");
        assert_eq!((nearest.bytes, nearest.position), (400, Position::Behind(0)));
        assert_eq!(finding.notes[0].message, "allocated by a test");

        let found = rig.run("race", WRITTEN, only(Check::Race));
        let finding = &found[0].finding;
        let other = &finding.notes[0];
        assert!(other.place.as_ref().is_some_and(|place| place.offset.is_some()), "{target}: {other:?}");
        assert_ne!(finding.thread.map(|thread| thread.wave), other.thread.map(|thread| thread.wave), "{target}");

        let found = rig.run("barriers", WRITTEN, only(Check::Race));
        let finding = &found[0].finding;
        assert_eq!(finding.message, "waves of a work-group wait at different barriers");
        assert_ne!(finding.place.offset, finding.notes[0].place.as_ref().and_then(|place| place.offset), "{target}");
        let found = rig.run("barrier_lanes", WRITTEN, only(Check::Race));
        // The even items go around the barrier.
        assert_eq!(found[0].finding.thread.and_then(|thread| thread.lane), Some(0), "{target}");
    }
}

#[test]
fn freed_memory_is_told_from_what_never_was() {
    for target in Target::ALL {
        let rig = Rig::new(target);
        let found = rig.run_freed("store_100");
        assert_eq!(rules(&found), ["memory/freed"], "{target}");
        let notes: Vec<&str> = found[0].finding.notes.iter().map(|note| &*note.message).collect();
        assert_eq!(notes, ["allocated by a test", "freed by another test"]);
    }
}

/// Where LLVM 19 is installed; without it nothing is compared.
#[test]
fn the_code_is_the_sources() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/checks");
    if Command::new("clang-19").arg("--version").output().is_err() {
        println!("there is no clang-19: not compared");
        return;
    }
    let out = std::env::temp_dir().join(format!("vkfd-planted-{}", std::process::id()));
    std::fs::create_dir_all(&out).expect("a directory");
    let status = Command::new(here.join("planted.sh")).arg(&out).status().expect("a shell");
    assert!(status.success());
    for target in Target::ALL {
        for source in ["planted", "published"] {
            let name = format!("{source}-{target}.co");
            let read = |at: &std::path::Path| std::fs::read(at.join(&name)).expect("a code object");
            assert!(read(&out) == read(&here), "{name} is not made of {source}.cl");
        }
    }
    let _ = std::fs::remove_dir_all(out);
}
