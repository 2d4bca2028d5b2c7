// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compares the decoder and the disassembler with `llvm-mc`:
//! `cargo run -p vkfd-isa --example sweep -- --target TARGET`.
//!
//! Words that we decode are given to `llvm-mc` with exactly the length that we found, and it must
//! print one instruction, the same. Words that we do not decode must be none for it. Texts that
//! both agree about are assembled, and must give the same words or another encoding of the same
//! instruction. Faults planted in the tables must be noticed.

mod assemble;
mod cases;
mod exceptions;
mod faults;
mod mc;
mod vectors;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

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
    /// Which of them, and which numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Words without any structure, for each target
    #[arg(long, default_value_t = 20_000)]
    words: usize,
    /// LLVM's tests: the directory llvm/test/MC
    #[arg(long)]
    vectors: Option<PathBuf>,
    /// Differences to print
    #[arg(long, default_value_t = 20)]
    show: usize,
    /// So many faults are planted in the tables of each target: the comparison must notice every
    /// one
    #[arg(long, default_value_t = 0)]
    faults: usize,
}

const BATCH: usize = 2_000;

#[derive(Default)]
struct Tally {
    compared: usize,
    /// Texts that `llvm-mc` has made words of: the same, and others that are the same instruction.
    assembled: usize,
    respelled: usize,
    excepted: BTreeMap<&'static str, usize>,
    /// Mnemonic, or what the assembler says, and text.
    differences: Vec<(String, String)>,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let targets = if args.target.is_empty() { Target::ALL.to_vec() } else { args.target.clone() };
    let mut wrong = 0;
    for target in targets {
        let mut words: Vec<Words> = cases::cases(target, args.random, args.stride, args.seed).collect();
        let mut random = cases::Random(args.seed ^ (0x5eed + target as u64));
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
        if args.faults != 0 {
            let missed = faults::missed(&args, target, args.faults)?;
            println!("{target}: {} of {} planted faults were noticed", args.faults - missed.len(), args.faults);
            for fault in &missed {
                println!("  not noticed: {fault}");
            }
            wrong += missed.len();
        }
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(args: &Args, what: &str, tally: &Tally) -> usize {
    println!(
        "{what}: {} compared, {} differ; {} texts assembled to the same words, {} to others of the same meaning",
        tally.compared,
        tally.differences.len(),
        tally.assembled,
        tally.respelled
    );
    for (reason, count) in &tally.excepted {
        println!("  {count} excepted: {reason}");
    }
    // One of a kind.
    let mut shown: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (mnemonic, difference) in &tally.differences {
        shown.entry(mnemonic).or_insert((0, difference)).0 += 1;
    }
    let kinds = shown.len();
    if kinds > args.show {
        println!("  {kinds} kinds of difference");
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
                total.assembled += tally.assembled;
                total.respelled += tally.respelled;
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
    let mut agreed = Vec::new();
    for ((line, ours), answer) in lines.iter().zip(&ours).zip(&answers) {
        tally.compared += 1;
        let ours: Vec<&str> = ours.iter().map(|(_, text)| text.as_str()).collect();
        let same = match answer {
            Answer::Text(theirs) => ours == *theirs,
            Answer::Crash => false,
        };
        if same {
            agreed.extend(ours.first().map(|text| (line.as_slice(), *text)));
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
    reassemble(args, target, &agreed, &mut tally)?;
    Ok(tally)
}

/// Texts that both agree about, made words again: the same ones, or others of the same meaning.
fn reassemble(args: &Args, target: Target, agreed: &[(&[u32], &str)], tally: &mut Tally) -> anyhow::Result<()> {
    let texts: Vec<&str> = agreed.iter().map(|(_, text)| *text).collect();
    let assembled = assemble::assemble(&args.mc, target, &texts)?;
    for ((line, text), assembled) in agreed.iter().zip(assembled) {
        let name = text.split(' ').next().unwrap_or("none");
        let (kind, what) = match assembled {
            Ok(words) if words == *line => {
                tally.assembled += 1;
                continue;
            }
            Ok(words) if same(target, line, &words) => {
                tally.respelled += 1;
                continue;
            }
            Ok(words) => {
                if let Some(why) = exceptions::reassembled(target, text) {
                    *tally.excepted.entry(why).or_default() += 1;
                    continue;
                }
                (name.to_string(), format!("assembled to {words:08x?}"))
            }
            Err(reason) => {
                if let Some(why) = exceptions::refused(&reason) {
                    *tally.excepted.entry(why).or_default() += 1;
                    continue;
                }
                (reason, "refused".to_string())
            }
        };
        tally.differences.push((kind, format!("{line:08x?} {text:?}: {what}")));
    }
    Ok(())
}

/// Whether both are the same instruction: bits without a meaning and the way a constant is encoded
/// aside.
fn same(target: Target, one: &[u32], other: &[u32]) -> bool {
    let read = |words: &[u32]| disassemble(target, words).ok();
    let (Some((one, text)), Some((other, again))) = (read(one), read(other)) else { return false };
    text == again && one.op == other.op
}
