// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compares the decoder and the disassembler with `llvm-mc`: `cargo run -p vkfd-isa --example sweep -- --target TARGET`.
//!
//! Words that we decode are given to `llvm-mc` with exactly the length that we found, and it must print one instruction, the
//! same. Words that we do not decode must be none for it.

mod cases;
mod exceptions;
mod mc;
mod vectors;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::ensure;
use clap::Parser;
use vkfd_isa::{disassemble, Target, MAX_WORDS};

use cases::Words;
use mc::Answer;

/// Compare the decoder with llvm-mc
#[derive(Parser)]
struct Args {
    /// The assembler to compare with
    #[arg(long, default_value = "llvm-mc-19")]
    mc: String,
    /// Only these targets
    #[arg(long)]
    target: Vec<Target>,
    /// Random cases for each encoding
    #[arg(long, default_value_t = 50)]
    random: u32,
    /// Every n-th encoding only
    #[arg(long, default_value_t = 1)]
    stride: usize,
    /// Words without any structure, for each target
    #[arg(long, default_value_t = 20_000)]
    words: usize,
    /// LLVM's tests: the directory llvm/test/MC
    #[arg(long)]
    vectors: Option<PathBuf>,
    /// Differences to print
    #[arg(long, default_value_t = 20)]
    show: usize,
    /// Flip this bit of every word before decoding: the comparison must notice
    #[arg(long)]
    plant: Option<u32>,
}

const BATCH: usize = 2_000;

#[derive(Default)]
struct Tally {
    compared: usize,
    excepted: BTreeMap<&'static str, usize>,
    /// Mnemonic and text.
    differences: Vec<(String, String)>,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let targets = if args.target.is_empty() { Target::ALL.to_vec() } else { args.target.clone() };
    let mut wrong = 0;
    for target in targets {
        let mut words: Vec<Words> = cases::cases(target, args.random, args.stride, 0).collect();
        let mut random = cases::Random(0x5eed + target as u64);
        let before = words.len();
        words.retain(|words| !exceptions::crashes(target, words));
        println!("{target}: {} cases are left out: {}", before - words.len(), exceptions::CRASHES);
        words.extend(
            (0..args.words)
                .map(|_| std::array::from_fn(|_| random.word()))
                .filter(|words| !exceptions::crashes(target, words)),
        );
        let tally = compare(&args, target, &words)?;
        wrong += report(&args, &format!("{target}: encodings"), &tally);
        if let Some(dir) = &args.vectors {
            let mut words = vectors::read(dir)?;
            words.retain(|words| !exceptions::crashes(target, words));
            let tally = compare(&args, target, &words)?;
            wrong += report(&args, &format!("{target}: LLVM's tests"), &tally);
        }
    }
    if args.plant.is_some() {
        ensure!(wrong != 0, "a planted fault was not noticed");
        println!("the planted fault was noticed");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(args: &Args, what: &str, tally: &Tally) -> usize {
    println!("{what}: {} compared, {} differ", tally.compared, tally.differences.len());
    for (reason, count) in &tally.excepted {
        println!("  {count} excepted: {reason}");
    }
    // One of a kind, by llvm-mc's mnemonic.
    let mut shown: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (mnemonic, difference) in &tally.differences {
        shown.entry(mnemonic).or_insert((0, difference)).0 += 1;
    }
    let kinds = shown.len();
    if kinds > args.show {
        println!("  {kinds} mnemonics differ");
    }
    for (mnemonic, (count, difference)) in shown.iter().take(args.show) {
        println!("  {count} of {mnemonic:?}: {difference}");
    }
    tally.differences.len()
}

fn compare(args: &Args, target: Target, words: &[Words]) -> anyhow::Result<Tally> {
    let total = Mutex::new(Tally::default());
    let batches = Mutex::new(words.chunks(BATCH));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            loop {
                let Some(batch) = batches.lock().unwrap_or_else(PoisonError::into_inner).next() else { return Ok(()) };
                let tally = compare_batch(args, target, batch)?;
                let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                total.compared += tally.compared;
                for (reason, count) in tally.excepted {
                    *total.excepted.entry(reason).or_default() += count;
                }
                total.differences.extend(tally.differences);
            }
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().try_for_each(|handle| handle.join().expect("no thread panics"))
    })?;
    Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn compare_batch(args: &Args, target: Target, batch: &[Words]) -> anyhow::Result<Tally> {
    let longest = if target.is_gfx9() { 2 } else { MAX_WORDS };
    let ours: Vec<Option<(usize, String)>> = batch
        .iter()
        .map(|words| {
            let mut words = *words;
            if let Some(bit) = args.plant {
                words[(bit / 32) as usize] ^= 1 << (bit % 32);
            }
            disassemble(target, &words[..longest]).ok().map(|(inst, text)| (usize::from(inst.bytes / 4), text))
        })
        .collect();
    let lines: Vec<Vec<u32>> = batch
        .iter()
        .zip(&ours)
        .map(|(words, ours)| words[..ours.as_ref().map_or(longest, |(length, _)| *length)].to_vec())
        .collect();
    let answers = mc::disassemble(&args.mc, target, &lines)?;
    let mut tally = Tally::default();
    for ((line, ours), answer) in lines.iter().zip(&ours).zip(&answers) {
        tally.compared += 1;
        let ours: Vec<&str> = ours.iter().map(|(_, text)| text.as_str()).collect();
        let same = match answer {
            Answer::Text(theirs) => ours == *theirs,
            Answer::Crash => false,
        };
        if same {
            continue;
        }
        if let Some(reason) = exceptions::reason(target, line, &ours, answer) {
            *tally.excepted.entry(reason).or_default() += 1;
            continue;
        }
        let name = match answer {
            Answer::Text(theirs) => theirs.first().and_then(|text| text.split(' ').next()).unwrap_or("none"),
            Answer::Crash => "crash",
        };
        let text = format!("{line:08x?}: ours {ours:?}, llvm-mc {answer:?}");
        tally.differences.push((name.to_string(), text));
    }
    Ok(tally)
}
