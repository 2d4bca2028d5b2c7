// SPDX-License-Identifier: GPL-2.0 OR MIT
//! whisper.cpp on ggml's HIP back end, as Debian sid packages both: small models listen to sounds
//! on the CPU and on the GPU.
//!
//! Mechanism: `xtask/programs/whisper.py` makes models with weights from a seed, and sounds. A
//! program is a type of weights; a quantized one is made by whisper-quantize. A case is a way to
//! listen, as `chirp, flash attention`. Both sides write the same tokens, with probabilities that
//! are as near as the type's rounding leaves them. The case `other sounds` compares the GPU's
//! tokens of one sound with those of the other: the same text for both would say nothing.
//!
//! Limits: nobody's weights are used, so that the text means nothing. The likeliest token is always
//! taken: whisper.cpp draws beams at random, where the CPU and the GPU differ by their rounding.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::machine::Machine;
use super::memory::Memory;
use super::ran::Ran;
use super::root::{Root, WORK};
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::{tree, venv};

pub struct Whisper;

/// A type of weights.
struct Weights {
    name: &'static str,
    /// How far two probabilities of a token may be apart, as a part of the larger. Attention and
    /// convolutions are of half precision, the CPU's activations too.
    allowed: f64,
    /// How many tokens are compared.
    tokens: usize,
}

const WEIGHTS: &[Weights] = &[
    Weights { name: "f32", allowed: 0.1, tokens: 20 },
    Weights { name: "f16", allowed: 0.1, tokens: 20 },
    Weights { name: "q8_0", allowed: 0.25, tokens: 8 },
    Weights { name: "q5_0", allowed: 0.25, tokens: 8 },
];

const PROGRAM: &str = "/usr/bin/whisper-cli";
const QUANTIZE: &str = "/usr/bin/whisper-quantize";
const SCRIPT: &str = "xtask/programs/whisper.py";
/// What whisper.cpp says of the GPU that it takes.
const ON_GPU: &str = "using ROCm0 backend";
/// One search without others at higher temperatures, of text without times.
const ASKED: &[&str] = &["-l", "en", "-nt", "-nf", "-tp", "0", "-nth", "1", "-t", "2", "-ojf"];
const GREEDY: &[&str] = &["-bs", "1", "-bo", "1"];

/// A way to listen: its name, the sound, and options.
const WAYS: &[(&str, &str, &[&[&str]])] = &[
    ("chirp", "chirp", &[GREEDY, &["-nfa"]]),
    ("noise", "noise", &[GREEDY, &["-nfa"]]),
    ("chirp, flash attention", "chirp", &[GREEDY, &["-fa"]]),
    ("noise, flash attention", "noise", &[GREEDY, &["-fa"]]),
];
/// The case that compares the first two of these.
const OTHER: &str = "other sounds";

/// What whisper-cli writes by `-ojf`, of which this is a part.
#[derive(Deserialize)]
struct Heard {
    transcription: Vec<Segment>,
}

#[derive(Deserialize)]
struct Segment {
    tokens: Vec<Token>,
}

#[derive(Deserialize, Clone, Copy, Debug, PartialEq)]
struct Token {
    id: u32,
    p: f64,
}

/// The tokens of a file.
fn tokens(text: &str) -> Result<Vec<Token>> {
    let heard: Heard = serde_json::from_str(text).context("read what whisper-cli has heard")?;
    Ok(heard.transcription.into_iter().flat_map(|segment| segment.tokens).collect())
}

/// Whether the GPU's tokens are the CPU's.
fn compare(by_cpu: &[Token], by_gpu: &[Token], weights: &Weights) -> Outcome {
    if by_cpu.len() < weights.tokens || by_gpu.len() < weights.tokens {
        return Outcome::Failed(format!("{} tokens and {} on the GPU", by_cpu.len(), by_gpu.len()));
    }
    let pairs = by_cpu.iter().zip(by_gpu).take(weights.tokens);
    let other =
        |(cpu, gpu): &(&Token, &Token)| cpu.id != gpu.id || (cpu.p - gpu.p).abs() > weights.allowed * cpu.p.max(gpu.p);
    match pairs.enumerate().find(|(_, pair)| other(pair)) {
        Some((at, (cpu, gpu))) => Outcome::Failed(format!("token {at} is {gpu:?} instead of {cpu:?}")),
        None => Outcome::Passed,
    }
}

impl Whisper {
    /// What a side writes of a sound.
    fn listen(
        &self,
        machine: &Machine,
        unit: &Unit<'_>,
        sound: &str,
        options: &[&str],
    ) -> Result<(Ran, Option<Vec<Token>>)> {
        let (file, sound, to) =
            (format!("{WORK}/{}.bin", unit.name), format!("{WORK}/{sound}.wav"), format!("{WORK}/heard"));
        let heard = unit.at.join("heard.json");
        if heard.exists() {
            fs::remove_file(&heard).with_context(|| format!("remove {}", heard.display()))?;
        }
        let arguments = [ASKED, &["-m", &file, "-f", &sound, "-of", &to], options].concat();
        let ran = machine.run_in_root(unit, PROGRAM, self.options(unit.name), &arguments, self.patience())?;
        let text = fs::read_to_string(&heard).ok().filter(|_| ran.code == Some(0));
        let tokens = text.map(|text| tokens(&text)).transpose()?;
        Ok((ran, tokens))
    }
}

impl Suite for Whisper {
    fn name(&self) -> &'static str {
        "whisper"
    }

    fn about(&self) -> &'static str {
        "whisper.cpp on HIP against its CPU backend: tokens of sounds by models made here"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["python3"]
    }

    fn source(&self) -> Source {
        Source::Root { suite: "sid", packages: &["libggml0-backend-hip", "whisper.cpp-tools"] }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx90a", "gfx900", "gfx1030", "gfx1100"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(30 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(600)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        Ok(WEIGHTS.iter().map(|weights| weights.name.into()).collect())
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        let script = tree::root().join(SCRIPT);
        let mut make = Command::new("python3");
        make.arg(&script).arg(unit.at);
        let mut commands = vec![venv::made_from(&[script])?, make];
        if unit.name.starts_with('q') {
            let root = unit.root.context("whisper.cpp is in a root")?;
            let mut quantize = Root::at(root).program(unit.at, unit.source);
            quantize.args([QUANTIZE, "/work/f16.bin", &format!("{WORK}/{}.bin", unit.name), unit.name]);
            commands.push(quantize);
        }
        Ok(commands)
    }

    fn options(&self, _unit: &str) -> &'static [&'static str] {
        &["--vram", "4G"]
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &[]
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let weights = WEIGHTS.iter().find(|weights| weights.name == unit.name).context("a type of weights")?;
        let (mut cases, mut by_gpu) = (Vec::new(), Vec::new());
        for (name, sound, options) in WAYS {
            let options = options.concat();
            let (cpu, expected) = self.listen(machine, unit, sound, &[&options[..], &["-ng"]].concat())?;
            let (gpu, seen) = self.listen(machine, unit, sound, &options)?;
            let outcome = match (&expected, &seen) {
                _ if !gpu.stderr.contains(ON_GPU) || cpu.stderr.contains(ON_GPU) => {
                    Outcome::Failed(format!("not on the GPU: {}", gpu.why()))
                }
                (Some(expected), Some(seen)) => compare(expected, seen, weights),
                (None, _) => Outcome::Failed(format!("on the CPU: {}", cpu.why())),
                (_, None) => Outcome::Failed(gpu.why()),
            };
            cases.push(Case::of(unit.name, name, outcome));
            by_gpu.push(seen.unwrap_or_default());
        }
        let ids = |tokens: &[Token]| tokens.iter().map(|token| token.id).collect::<Vec<_>>();
        let outcome = match &by_gpu[..] {
            [one, other, ..] if ids(one) != ids(other) => Outcome::Passed,
            _ => Outcome::Failed("the text of both sounds is the same".into()),
        };
        cases.push(Case::of(unit.name, OTHER, outcome));
        Ok(cases)
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        Outcome::Failed(ran.why())
    }

    fn controls(&self) -> &'static [Control] {
        const {
            &[
                Control::new("cu.handler=v_lshlrev_b64", "f32", "gfx90a"),
                Control::new("driver.invalidation", "f32", "gfx90a").on(Memory::Oversubscribed),
            ]
        }
    }
}
