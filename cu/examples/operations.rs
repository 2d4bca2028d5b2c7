// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which operation of which target is executed, by which engine, and how near its results are:
//! docs/operations.md, as text. `cargo xtask operations` writes it.
//!
//! Mechanism: for each encoding of the tables it makes words with registers that a wave has. The
//! fast engine says whether it has a handler for them; the table of fidelity has the rest.

use std::collections::{BTreeMap, BTreeSet};

use vkfd_cu::fast::Engine;
use vkfd_cu::{fidelity, Fidelity, Mode, Row, Wave};
use vkfd_isa::{decode, encodings, Encoding, Extension, Format, Inst, Op, Operand, Target};

/// What becomes of an operation on a target.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// Encodings that were looked at, and those that the fast engine executes; without and with
    /// SDWA or DPP.
    plain: [u32; 2],
    extended: [u32; 2],
    near: bool,
    missing: bool,
}

impl Cell {
    fn mark(&self) -> String {
        if self.missing {
            return "refused".into();
        }
        let engine = match self {
            Cell { plain: [all, fast], extended: [more, faster], .. } if fast + faster == all + more => "fast",
            Cell { plain: [_, 0], extended: [_, 0], .. } => "reference",
            Cell { plain: [all, fast], .. } if fast == all => "fast*",
            _ => "fast**",
        };
        format!("{engine}{}", if self.near { " ≈" } else { "" })
    }
}

fn wave(target: Target) -> Wave {
    let mut wave = Wave {
        target,
        lanes: if target.is_rdna() { 32 } else { 64 },
        pc: 0,
        scalar: [0; 128],
        scc: false,
        mode: Mode::DEFAULT,
        rows: vec![Row::ZERO; 256],
        acc: if target.is_cdna() { 128 } else { 256 },
        sgprs: 102,
        flat_scratch: 0,
        trapsts: 0,
        done: 0,
        index: 0,
    };
    wave.set_pair(Operand::EXEC, u64::MAX);
    wave
}

/// Instructions of this encoding whose operands are registers, without modifiers; of packed ones
/// with those that take both halves.
fn instructions<'a>(target: Target, encoding: &'a Encoding, packed: bool) -> impl Iterator<Item = Inst> + 'a {
    // Vector registers before scalar ones, and zeros last.
    (2..64u32).step_by(2).chain((1..64).step_by(2)).chain([0]).filter_map(move |attempt| {
        let mut words = encoding.value;
        for (n, field) in encoding.fields.iter().enumerate() {
            let even = (4 * (u32::try_from(n).unwrap_or(0) + attempt)) & 0x1c;
            let value = match (attempt, field.width()) {
                (0, _) => 0,
                // All of them vector registers, or a mixture.
                (_, 9 | 10) if attempt % 2 == 0 || attempt >> (n % 6) & 1 == 0 => 256 + even,
                (_, 7..=10) => even,
                (_, 4) if packed => 8,
                // DPP8 has a code in the first source's place.
                (32.., _) if field.width() == 9 => 233,
                _ => 0,
            };
            field.set(&mut words, value);
        }
        match decode(target, &words) {
            Ok(inst) if inst.op == encoding.op && inst.entry == encoding.entry => Some(inst),
            _ => None,
        }
    })
}

/// The class under which an operation is listed.
fn class(format: Format) -> &'static str {
    match format {
        Format::Sop1 | Format::Sop2 | Format::Sopk | Format::Sopc => "Scalar",
        Format::Sopp => "Program flow",
        Format::Smem => "Scalar memory",
        Format::Vop1 | Format::Vop2 | Format::Vop3 | Format::Vopd => "Vector",
        Format::Vopc => "Vector comparisons",
        Format::Vop3p => "Packed, dot products, matrices",
        Format::Ds => "LDS",
        Format::Flat | Format::Global | Format::Scratch => "FLAT, GLOBAL and SCRATCH",
        Format::Mubuf | Format::Mtbuf => "Buffers",
        Format::Mimg => "Images",
        Format::Vintrp | Format::Ldsdir | Format::Exp => "Graphics",
    }
}

const CLASSES: [&str; 11] = [
    "Scalar",
    "Program flow",
    "Scalar memory",
    "Vector",
    "Vector comparisons",
    "Packed, dot products, matrices",
    "LDS",
    "FLAT, GLOBAL and SCRATCH",
    "Buffers",
    "Images",
    "Graphics",
];

fn main() {
    let mut classes: BTreeMap<Op, &str> = BTreeMap::new();
    let mut cells: BTreeMap<(Op, Target), Cell> = BTreeMap::new();
    let mut reasons: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for target in Target::ALL {
        let mut engine = Engine::new(target);
        let wave = wave(target);
        for encoding in encodings(target) {
            let op = encoding.op;
            let forms = || [false, true].into_iter().flat_map(|packed| instructions(target, &encoding, packed));
            let first = forms().next();
            // The decoder knows better what is a packed operation.
            let here = class(first.as_ref().map_or(encoding.format, |inst| inst.format));
            let known = classes.entry(op).or_insert(here);
            // Comparisons have a long form among the other vector operations.
            if CLASSES.iter().position(|c| *c == here) > CLASSES.iter().position(|c| c == known) {
                *known = here;
            }
            let cell = cells.entry((op, target)).or_default();
            match fidelity(op, target) {
                Fidelity::Exact => {}
                Fidelity::Approximate(reason) => {
                    cell.near = true;
                    reasons.entry(reason).or_default().insert(op.name());
                }
                Fidelity::Missing => cell.missing = true,
            }
            let Some(inst) = first else { continue };
            // Some operands are no handler's: a lane that a vector register chooses, say.
            let fast = u32::from(forms().any(|inst| engine.handles(&wave, &inst)));
            let count = if inst.extension == Extension::None { &mut cell.plain } else { &mut cell.extended };
            count[0] += 1;
            count[1] += fast;
        }
    }
    print(&classes, &cells, &reasons);
}

fn print(classes: &BTreeMap<Op, &str>, cells: &BTreeMap<(Op, Target), Cell>, reasons: &BTreeMap<&str, BTreeSet<&str>>) {
    println!("<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->");
    println!("# Operations");
    println!();
    println!(
        "The operations that the software GPU executes, by target.\nMade by `cargo xtask operations`; do not edit."
    );
    println!();
    println!("| word | meaning |\n| --- | --- |");
    println!("| fast | both engines execute it, in every encoding |");
    println!("| fast\\* | both do; with SDWA or DPP the reference engine alone |");
    println!("| fast\\*\\* | both do; some of its other encodings the reference engine alone |");
    println!("| reference | the reference engine alone, about a hundred times slower |");
    println!("| ≈ | hardware's result may be another one: the reasons are at the end |");
    println!("| refused | the queue stops with the operation's name |");
    println!("| (nothing) | the target does not have it |");
    println!();
    println!("The fast engine gives hard operands (NaNs, an unusual MODE) to the reference engine. The tables\nare for a processor with AVX2. They leave out operations that are fast on each target that has them.");
    println!();
    println!("## In numbers\n");
    let heads: Vec<&str> = Target::ALL.iter().map(|target| target.name()).collect();
    println!("Operations in both engines + in the reference engine alone + refused; in brackets those with ≈.\n");
    println!("| | {} |\n| --- |{}", heads.join(" | "), " --- |".repeat(heads.len()));
    for class in CLASSES {
        let counts = Target::ALL.map(|target| {
            let mut count = [0; 4];
            for ((op, at), cell) in cells {
                if *at == target && classes.get(op) == Some(&class) {
                    let mark = cell.mark();
                    let place = usize::from(mark.starts_with("reference")) + 2 * usize::from(cell.missing);
                    count[place] += 1;
                    count[3] += usize::from(cell.near);
                }
            }
            let [fast, slow, refused, near] = count;
            let near = if near == 0 { String::new() } else { format!(" ({near})") };
            if fast + slow + refused == 0 {
                String::new()
            } else {
                format!("{fast} + {slow} + {refused}{near}")
            }
        });
        println!("| {class} | {} |", counts.join(" | "));
    }
    for class in CLASSES {
        let marks = |op: Op| Target::ALL.map(|target| cells.get(&(op, target)).map_or(String::new(), Cell::mark));
        let all_are = |op: Op, word: &str| marks(op).iter().all(|mark| mark.is_empty() || mark == word);
        let here = || classes.iter().filter(|(_, here)| **here == class).map(|(op, _)| *op);
        let shown: Vec<Op> = here().filter(|op| !all_are(*op, "fast")).collect();
        if shown.is_empty() {
            continue;
        }
        println!("\n## {class}\n");
        if shown.iter().all(|op| all_are(*op, "refused")) {
            println!("All are refused.");
            continue;
        }
        println!("| | {} |\n| --- |{}", heads.join(" | "), " --- |".repeat(heads.len()));
        for op in shown {
            println!("| {} | {} |", op.name(), marks(op).join(" | ").replace('*', "\\*"));
        }
    }
    println!("\n## Why results are approximate\n");
    for (reason, operations) in reasons {
        let names: Vec<&str> = operations.iter().copied().collect();
        println!("- {reason}:\n  {}", wrap(&names));
    }
}

/// Names in lines of at most 100 columns.
fn wrap(names: &[&str]) -> String {
    let mut text = String::new();
    let mut column = 2;
    for (n, name) in names.iter().enumerate() {
        let comma = if n + 1 == names.len() { "" } else { "," };
        if column + name.len() + 2 > 100 {
            text.push_str("\n  ");
            column = 2;
        } else if n != 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(name);
        text.push_str(comma);
        column += name.len() + 1;
    }
    text
}
