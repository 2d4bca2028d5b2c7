// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The reference engine against AMD's published pseudo-code, evaluated by an evaluator of its own.
//!
//! The text is in a public package (tinygrad's wheel, which has it from AMD's documents);
//! `cargo xtask pseudocode` installs it in the cache and runs the sweep. Nothing of it is in this
//! repository. Every operation is encoded, decoded and executed as machine code, on edge cases and
//! random operands, and each lane's result compared.

#![allow(
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod builtins;
mod encode;
mod eval;
mod form;
mod overrides;
mod parse;
mod text;
mod value;

use eval::{Library, Machine};
use form::{Extension, Form};
use overrides::{rule, Rule};
use parse::{parse, Stmt};
use std::collections::BTreeMap;
use std::rc::Rc;
use text::Entry;
use value::{half_to, Class, Value};
use vkfd_cu::{reference, Apertures, Flat, Group, Lds, Mode, Place, Row, Watched, Wave};
use vkfd_isa::{decode, Operand, Target};

const CLASSES: [&str; 10] =
    ["SOP1Op", "SOP2Op", "SOPCOp", "SOPKOp", "VOP1Op", "VOP2Op", "VOP3Op", "VOP3POp", "VOP3SDOp", "VOPCOp"];

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn word(&mut self) -> u32 {
        self.next() as u32
    }
}

/// Words in which integers, halves and numbers of both precisions have their edges.
const EDGES: [u32; 48] = [
    0,
    1,
    2,
    3,
    4,
    15,
    16,
    31,
    32,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7f_ffff,
    0x80_0000,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_ffff,
    0xffff_fffe,
    0x3f80_0000,
    0xbf80_0000,
    0x3f00_0000,
    0x4b00_0001,
    0x4f00_0000,
    0x5f00_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x7f80_0001,
    0xffc1_2345,
    0x7f7f_ffff,
    0x3c00_bc00,
    0x7c00_fc00,
    0x7e00_7c01,
    0x0400_03ff,
    0x3ff0_0000,
    0xbff0_0000,
    0x7ff0_0000,
    0x7ff8_0001,
    0x0010_0000,
    0x4330_0000,
    0x41df_ffff,
];

/// A word: an edge, random bits, a number near one, or a small integer.
fn word(random: &mut Random, tame: bool) -> u32 {
    let bits = random.word();
    if tame {
        // Two halves between 1/16 and 16; as a word a number of single precision of that size
        // squared.
        let half = |bits: u32| (bits & 0x8000) | (11 + bits % 8) << 10 | (bits >> 4 & 0x3ff);
        return half(bits) | half(bits >> 16) << 16;
    }
    match random.next() % 8 {
        0..=2 => EDGES[random.next() as usize % EDGES.len()],
        3 | 4 => bits,
        // Single precision, then the high half of double precision.
        5 => bits & 0x807f_ffff | (0x70 + (random.word() & 31)) << 23,
        6 => bits & 0x800f_ffff | (0x3f0 + (random.word() & 31)) << 20,
        _ => bits % 64,
    }
}

/// What became of a sweep.
#[derive(Default)]
struct Report {
    compared: u64,
    operations: u64,
    skipped: BTreeMap<String, Vec<String>>,
    wrong: BTreeMap<String, String>,
}

impl Report {
    fn skip(&mut self, reason: impl Into<String>, name: &str) {
        self.skipped.entry(reason.into()).or_default().push(name.into());
    }
}

fn plain(name: &str) -> &str {
    name.trim_end_matches("_E32").trim_end_matches("_E64")
}

fn same_operation(name: &str, op: vkfd_isa::Op) -> bool {
    let letters = |s: &str| s.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    letters(plain(name)) == letters(&format!("{op:?}"))
}

fn wave(target: Target) -> Wave {
    Wave {
        target,
        lanes: 64,
        pc: 0,
        scalar: [0; 128],
        scc: false,
        mode: Mode::DEFAULT,
        rows: vec![Row::ZERO; 32],
        acc: 32,
        sgprs: 102,
        flat_scratch: 0,
        trapsts: 0,
        done: 0,
        index: 0,
    }
}

fn group() -> Group {
    Group {
        lds: Lds::new(0),
        apertures: Apertures { shared: 1 << 16, private: 2 << 16 },
        watch: Watched::default(),
        place: Place::default(),
    }
}

/// What the text does that this cannot be asked about.
fn beyond(text: &str) -> Option<&'static str> {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    for (part, reason) in [
        ("MEM[", "memory"),
        ("VGPR[", "lanes"),
        ("SGPR[", "relative registers"),
        ("PC ", "program counter"),
        ("PC.", "program counter"),
        ("HW_REG", "hardware registers"),
        ("nop()", "nothing to do"),
        ("s_nop", "nothing to do"),
        ("sparse", "matrices"),
        ("D = A", "matrices"),
        ("vmcnt", "nothing to do"),
        ("SDWA_", "SDWA"),
    ] {
        if code.contains(part) {
            return Some(reason);
        }
    }
    None
}

/// Formats of the floating-point elements that the text writes.
fn float_width(text: &str) -> Option<u32> {
    let written = |width: u32| {
        let suffix = format!(".f{width} ");
        text.lines().any(|line| {
            line.split(" = ")
                .next()
                .is_some_and(|target| line.contains(" = ") && format!("{target} ").contains(&suffix))
                || line.contains(&format!("tmp.f{width}")) && line.contains("D0")
        })
    };
    [16, 32, 64].into_iter().find(|&width| written(width))
}

/// Whether two results are the same under a rule.
fn agree(expected: u128, got: u128, words: u32, float: Option<u32>, ulps: u64) -> bool {
    let Some(width) = float else { return expected == got };
    (0..words * 32 / width).all(|n| {
        let part = |bits: u128| Value::new(bits >> (n * width), width, Class::Float);
        let (a, b) = (part(expected), part(got));
        if a.is_nan() || b.is_nan() {
            return a.is_nan() == b.is_nan();
        }
        a.bits == b.bits || a.bits.abs_diff(b.bits) <= u128::from(ulps)
    })
}

/// Denormal numbers of single precision are zeros.
fn flushed(bits: u128) -> u128 {
    if bits & 0x7f80_0000 == 0 {
        bits & !0x7f_ffff
    } else {
        bits
    }
}

/// Sweeps one operation on one target.
fn sweep(target: Target, entry: &Entry, form: Form, library: &Library, rounds: u64, report: &mut Report) {
    let name = plain(&entry.name).to_string();
    let label = if form == Form::Plain {
        format!("{target} {}", entry.name)
    } else {
        format!("{target} {} {form:?}", entry.name)
    };
    if let Some(reason) = beyond(&entry.text) {
        return report.skip(reason, &label);
    }
    let rule = match rule(&name) {
        Rule::As(other) => overrides::rule(other),
        rule => rule,
    };
    let source = match rule {
        Rule::Skip(reason) => return report.skip(reason, &label),
        Rule::Instead(_, text) | Rule::TameInstead(_, text) => text,
        _ => &entry.text,
    };
    let replaced;
    let source = match rule {
        Rule::Replace(_, from, to) => {
            if !source.contains(from) {
                return report.skip("the text has changed", &label);
            }
            replaced = source.replace(from, to);
            &replaced
        }
        _ => source,
    };
    let statements = match parse(source) {
        Ok(statements) => statements,
        Err(error) => return report.skip(format!("not parsed: {error}"), &label),
    };
    let Some(words) = encode::encode(target, &entry.class, entry.number, &entry.name, 0, 0) else {
        return report.skip("no such encoding", &label);
    };
    let inst = match decode(target, &words) {
        Ok(inst) => inst,
        Err(_) => return report.skip(format!("not on {target}"), &label),
    };
    let extended = Extension::random(form, &name, &mut Random(1)).encode(&words);
    if form != Form::Plain
        && (decode(target, &extended).is_err() || matches!(rule, Rule::Within(_) | Rule::WithinFlushed(_)))
    {
        return;
    }
    if target.is_gfx9() && !same_operation(&entry.name, inst.op) {
        return report.skip(format!("another operation on {target}"), &label);
    }
    let mut random = Random(u64::from(entry.number) << 32 | u64::from(target as u8));
    let mut compared = 0;
    for round in 0..rounds {
        let result = if entry.class.starts_with('S') {
            scalar_case(target, entry, &statements, library, &mut random)
        } else {
            vector_case(target, entry, form, source, &statements, library, &mut random, rule, round)
        };
        match result {
            Ok(count) => compared += count,
            Err(Failure::Wrong(text)) => {
                report.wrong.insert(label, text);
                return;
            }
            Err(Failure::Unknown(reason)) => return report.skip(format!("not evaluated: {reason}"), &label),
        }
    }
    report.compared += compared;
    report.operations += 1;
}

enum Failure {
    Wrong(String),
    Unknown(String),
}

fn wide(low: u32, high: u32) -> u128 {
    u128::from(low) | u128::from(high) << 32
}

fn unsigned(bits: u128, width: u32) -> Value {
    Value::new(bits, width, Class::Unsigned)
}

fn execute(target: Target, words: &[u32], wave: &mut Wave) -> Result<(), Failure> {
    let inst = decode(target, words).map_err(|error| Failure::Unknown(error.to_string()))?;
    let mut world = Flat::new(0x1000, 1);
    reference::execute(&inst, wave, &mut group(), &mut world).map_err(|exit| Failure::Unknown(format!("{exit:?}")))
}

fn scalar_case(
    target: Target,
    entry: &Entry,
    statements: &[Stmt],
    library: &Library,
    random: &mut Random,
) -> Result<u64, Failure> {
    let imm = word(random, false) as u16;
    let literal = word(random, false);
    let words = encode::encode(target, &entry.class, entry.number, &entry.name, imm, literal)
        .ok_or_else(|| Failure::Unknown("encoding".into()))?;
    let mut wave = wave(target);
    for n in [encode::SCALARS[0], encode::SCALARS[1], encode::SCALAR_DESTINATION, 106, 126] {
        wave.scalar[n as usize] = word(random, false);
        wave.scalar[n as usize + 1] = word(random, false);
    }
    wave.scc = random.next() & 1 == 1;
    let pair = |wave: &Wave, n: u32| wide(wave.scalar[n as usize], wave.scalar[n as usize + 1]);
    let mut machine = Machine::new(library);
    let sources = encode::SCALARS.map(|n| pair(&wave, n));
    let destination = pair(&wave, encode::SCALAR_DESTINATION);
    machine.set("S0", unsigned(sources[0], 64));
    machine.set("S1", unsigned(sources[1], 64));
    if entry.class == "SOPKOp" {
        let compares = entry.name.starts_with("S_CMPK");
        machine.set(if compares { "S1" } else { "S0" }, unsigned(imm.into(), 64));
        machine.set("SIMM16", unsigned(imm.into(), 16));
        if compares {
            machine.set("S0", unsigned(destination, 64));
        }
    }
    machine.set("D0", unsigned(destination, 64));
    machine.set("SCC", Value::flag(wave.scc));
    machine.set("EXEC", unsigned(pair(&wave, 126), 64));
    machine.set("EXEC_LO", unsigned(pair(&wave, 126), 32));
    machine.set("SIMM32", unsigned(literal.into(), 32));
    let before = wave.clone();
    execute(target, &words, &mut wave)?;
    machine.run(statements).map_err(Failure::Unknown)?;
    let destination = machine.get("D0").map_or(0, |value| value.bits) & u128::from(u64::MAX);
    let exec = machine.get("EXEC").map_or(0, |value| value.bits);
    let exec = if entry.text.contains("EXEC_LO") {
        exec & !0xffff_ffff | machine.get("EXEC_LO").map_or(0, |value| value.bits) & 0xffff_ffff
    } else {
        exec
    };
    let scc = machine.get("SCC").is_some_and(|value| value.truth());
    if pair(&wave, encode::SCALAR_DESTINATION) != destination || pair(&wave, 126) != exec || wave.scc != scc {
        return Err(Failure::Wrong(format!(
            "S0 {:#x} S1 {:#x} imm {imm:#x} SCC {}: D0 {:#x} SCC {} EXEC {:#x}, the text gives {destination:#x} {scc} {exec:#x}",
            sources[0],
            sources[1],
            before.scc,
            pair(&wave, encode::SCALAR_DESTINATION),
            wave.scc,
            pair(&wave, 126),
        )));
    }
    Ok(1)
}

#[allow(clippy::too_many_arguments, reason = "all of a case")]
fn vector_case(
    target: Target,
    entry: &Entry,
    form: Form,
    source: &str,
    statements: &[Stmt],
    library: &Library,
    random: &mut Random,
    rule: Rule,
    round: u64,
) -> Result<u64, Failure> {
    let tame = matches!(rule, Rule::Tame | Rule::TameInstead(..));
    let literal = word(random, tame);
    let words = encode::encode(target, &entry.class, entry.number, &entry.name, 0, literal)
        .ok_or_else(|| Failure::Unknown("encoding".into()))?;
    let extension = Extension::random(form, plain(&entry.name), random);
    let words = extension.encode(&words);
    let mut wave = wave(target);
    for row in &mut wave.rows {
        for value in &mut row.0 {
            *value = word(random, tame);
        }
    }
    // Sometimes two sources are equal, which comparisons ask about.
    if round % 4 == 1 {
        wave.rows[encode::SOURCES[1] as usize] = wave.rows[encode::SOURCES[0] as usize];
    }
    let exec = if round % 2 == 0 { u64::MAX } else { random.next() };
    wave.set_pair(Operand::EXEC, exec);
    wave.set_pair(Operand::VCC, random.next());
    let before = wave.clone();
    execute(target, &words, &mut wave)?;
    let flushes = matches!(rule, Rule::WithinFlushed(_));
    let ulps = match rule {
        Rule::Within(ulps) | Rule::WithinFlushed(ulps) => ulps,
        _ => 0,
    };
    let float = float_width(source);
    let compares = entry.name.starts_with("V_CMP");
    let half = writes_half(source);
    let read = |wave: &Wave, first: u32, lane: usize, count: u32| {
        (0..count).fold(0, |bits, n| bits | u128::from(wave.rows[(first + n) as usize].0[lane]) << (32 * n))
    };
    let (mut vcc, mut mask, mut new_exec) = (before.vcc(), 0u64, 0u64);
    for lane in 0..64 {
        let destination = encode::DESTINATION;
        let old = read(&before, destination, lane, 4);
        let got = read(&wave, destination, lane, 4);
        let active = exec >> lane & 1 == 1;
        if !active {
            vcc &= !(1 << lane);
            if got != old {
                return Err(Failure::Wrong(format!("lane {lane} is not active and was written")));
            }
            continue;
        }
        let mut machine = Machine::new(library);
        let mut sources: Vec<u128> = encode::SOURCES.iter().map(|&n| read(&before, n, lane, 4)).collect();
        if form != Form::Plain {
            let Some([a, b]) = extension.sources(&before, exec, lane, [sources[0], sources[1]]) else {
                vcc &= !(1 << lane);
                if got != old {
                    return Err(Failure::Wrong(format!("lane {lane} is left out by {extension:x?} and was written")));
                }
                continue;
            };
            (sources[0], sources[1]) = (a, b);
        }
        for (n, &bits) in sources.iter().enumerate() {
            let bits = if flushes { flushed(bits & 0xffff_ffff) } else { bits };
            machine.set(&format!("S{n}"), unsigned(bits, 128));
        }
        machine.arrays.insert("S".into(), sources.iter().map(|&bits| unsigned(bits, 32)).collect());
        machine.set("D0", unsigned(if compares { 0 } else { old }, 128));
        machine.set("VCC", unsigned(before.vcc().into(), 64));
        machine.set("EXEC", unsigned(exec.into(), 64));
        machine.set("laneId", Value::int(lane as i128, 32, false));
        machine.set("IEEE", Value::flag(true));
        machine.set("ROUND_MODE", unsigned(0, 4));
        machine.set("ROUND_NEAREST_EVEN", unsigned(0, 4));
        // Conversions towards zero are written with a change of the mode, which the evaluator does
        // not have.
        machine.set("ROUND_TOWARD_ZERO", unsigned(3, 4));
        machine.set("OPSEL", unsigned(0, 4));
        machine.set("OPSEL_HI", unsigned(7, 3));
        for name in ["SIMM32", "SIMM16"] {
            machine.set(name, unsigned(literal.into(), 32));
        }
        machine.run(statements).map_err(Failure::Unknown)?;
        let bit = |name: &str| machine.get(name).is_some_and(|value| value.bits >> lane & 1 == 1);
        mask |= u64::from(bit("D0")) << lane;
        new_exec |= u64::from(bit("EXEC")) << lane;
        vcc = vcc & !(1 << lane) | u64::from(bit("VCC")) << lane;
        if compares {
            continue;
        }
        let expected = machine.get("D0").map_or(0, |value| value.bits);
        let expected = if flushes { flushed(expected & 0xffff_ffff) | expected & !0xffff_ffff } else { expected };
        if form == Form::Sdwa {
            let value = if half { expected & 0xffff } else { expected & 0xffff_ffff };
            let nan = float.is_some_and(|width| {
                (0..32 / width.min(32)).any(|n| Value::new(value >> (n * width), width, Class::Float).is_nan())
            });
            let expected = extension.result(old, value);
            if !nan && expected != got & 0xffff_ffff {
                return Err(Failure::Wrong(format!(
                    "{extension:x?} S0 {:#x} S1 {:#x} D0 {old:#x}: {got:#x}, the text gives {expected:#x}",
                    sources[0], sources[1]
                )));
            }
            continue;
        }
        // Of a half the rest of the register is the encoding's business.
        let (expected, got) = if half { (expected & 0xffff, got & 0xffff) } else { (expected, got) };
        let words = if half { 1 } else { 4 };
        let float = if half { float.map(|_| 16) } else { float };
        // Only the words that are written hold numbers.
        let written = match float {
            Some(64) => 2,
            Some(_) if !half => {
                if source.contains("[63 : 32]") {
                    2
                } else {
                    1
                }
            }
            _ => words,
        };
        let below = |bits: u128| if written < 4 { bits & ((1 << (32 * written)) - 1) } else { bits };
        let rest = |bits: u128| if written < 4 { bits >> (32 * written) } else { 0 };
        let same = agree(below(expected), below(got), written, float, ulps) && rest(expected) == rest(got);
        if !same {
            return Err(Failure::Wrong(format!(
                "S0 {:#x} S1 {:#x} S2 {:#x} D0 {old:#x} literal {literal:#x}: {got:#x}, the text gives {expected:#x}",
                sources[0], sources[1], sources[2]
            )));
        }
    }
    if compares {
        let short = entry.class == "VOPCOp";
        let exec_only = entry.name.starts_with("V_CMPX") && !target.is_gfx9();
        let got = if short { wave.vcc() } else { wave.pair(encode::MASK as u8) };
        if !exec_only && got != mask {
            return Err(Failure::Wrong(format!("mask {got:#x}, the text gives {mask:#x}")));
        }
        if entry.name.starts_with("V_CMPX") && wave.exec() != new_exec {
            return Err(Failure::Wrong(format!("EXEC {:#x}, the text gives {new_exec:#x}", wave.exec())));
        }
    } else if source.contains("VCC.u64[laneId] =") && wave.vcc() != vcc {
        return Err(Failure::Wrong(format!("VCC {:#x}, the text gives {vcc:#x}", wave.vcc())));
    }
    Ok(exec.count_ones().into())
}

/// Whether the text's result has 16 bits.
fn writes_half(source: &str) -> bool {
    source.lines().any(|line| {
        let line = line.trim();
        [
            "D0.f16 =",
            "D0.u16 =",
            "D0.i16 =",
            "D0.b16 =",
            "D0[15 : 0].f16 = f32_to_f16(in",
            "D0.f16 +=",
            "D0.bf16 =",
            "D0 = { 16'0",
        ]
        .iter()
        .any(|start| line.starts_with(start))
    })
}

/// The operation's text, or another operation's that stands for it.
fn text_of<'a>(entry: &'a Entry, entries: &'a [Entry]) -> Option<&'a Entry> {
    match rule(plain(&entry.name)) {
        Rule::As(other) => entries.iter().find(|entry| plain(&entry.name) == other),
        _ => Some(entry),
    }
}

fn load(generation: &str) -> Option<(Vec<Entry>, Library)> {
    let directory = text::directory()?;
    let entries = text::read(&directory, generation).expect("the package's files");
    let mut library = Library::new();
    for entry in &entries {
        if let Ok(statements) = parse(&entry.text) {
            library.insert(plain(&entry.name).to_lowercase(), Rc::new(statements));
        }
    }
    Some((entries, library))
}

fn rounds() -> u64 {
    std::env::var("VKFD_PSEUDOCODE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(8)
}

fn sweep_all(generation: &str, targets: &[Target]) -> Report {
    let (entries, library) = load(generation).expect("no text: run `cargo xtask pseudocode`");
    let mut report = Report::default();
    for &target in targets {
        for entry in entries.iter().filter(|entry| CLASSES.contains(&entry.class.as_str())) {
            let rounds = if entry.class.starts_with('S') { rounds() * 64 } else { rounds() };
            match text_of(entry, &entries) {
                Some(other) => {
                    let entry = Entry { text: other.text.clone(), ..entry.clone() };
                    sweep(target, &entry, Form::Plain, &library, rounds, &mut report);
                    if target.is_gfx9() && entry.name.ends_with("_E32") && rule(plain(&entry.name)) != Rule::Tame {
                        sweep(target, &entry, Form::Sdwa, &library, rounds, &mut report);
                        sweep(target, &entry, Form::Dpp, &library, rounds, &mut report);
                    }
                }
                None => report.skip("no text to stand for it", &entry.name),
            }
        }
    }
    for (reason, names) in &report.skipped {
        println!(
            "skipped, {reason}: {} ({} ...)",
            names.len(),
            names.iter().take(4).cloned().collect::<Vec<_>>().join(", ")
        );
    }
    for (name, text) in &report.wrong {
        println!("WRONG {name}: {text}");
    }
    println!("{generation}: {} operations agree in {} results", report.operations, report.compared);
    report
}

#[test]
#[ignore = "needs the published text: cargo xtask pseudocode"]
fn gfx9_and_cdna() {
    let report = sweep_all("cdna", &[Target::Gfx900, Target::Gfx90a, Target::Gfx942]);
    assert!(report.wrong.is_empty(), "{} operations differ", report.wrong.len());
    assert!(report.operations > 1500, "only {} operations were compared", report.operations);
}

#[test]
#[ignore = "needs the published text: cargo xtask pseudocode"]
fn gfx11() {
    let report = sweep_all("rdna3", &[Target::Gfx1100]);
    assert!(report.wrong.is_empty(), "{} operations differ", report.wrong.len());
    assert!(report.operations > 700, "only {} operations were compared", report.operations);
}

/// The control: a text that says something else must be noticed.
#[test]
#[ignore = "needs the published text: cargo xtask pseudocode"]
fn wrong_texts_are_noticed() {
    let (entries, library) = load("cdna").expect("no text: run `cargo xtask pseudocode`");
    for (name, from, to) in [
        ("V_ADD_F32_E32", "+", "-"),
        ("V_MAX_I32_E32", ">=", "<"),
        ("V_CMP_LT_F64_E32", "<", "<="),
        ("V_ADDC_CO_U32_E32", "+ VCC.u64[laneId].u64", ""),
        ("S_ADD_I32", "tmp.i32", "tmp.i32 + 1"),
        ("S_LSHL_B64", "<<", ">>"),
        ("V_CVT_F16_F32_E32", "f32_to_f16(S0.f32)", "f32_to_f16(trunc(S0.f32))"),
        ("V_PERM_B32_E64", "13U", "12U"),
    ] {
        let mut entry = entries.iter().find(|entry| entry.name == name).expect(name).clone();
        assert!(entry.text.contains(from), "{name}");
        entry.text = entry.text.replace(from, to);
        let mut report = Report::default();
        sweep(Target::Gfx90a, &entry, Form::Plain, &library, 64, &mut report);
        assert_eq!(report.wrong.len(), 1, "{name} with another text was not noticed: {:?}", report.skipped);
    }
}

#[test]
fn edges_have_numbers() {
    assert!(EDGES.iter().any(|&bits| half_to(bits as u16) == -1.0));
}
