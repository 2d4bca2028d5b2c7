// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd disasm`: what is in a code object: its kernels, their descriptors field by field, their
//! instructions.
//!
//! A file is an AMDGPU code object (ELF), or anything that has such objects in it: a bundle, a HIP
//! program. Each function is disassembled from its symbol to its end; words that are no instruction
//! are shown with their reason, and the next word is tried.

mod code_object;
mod descriptor;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use serde_json::{json, Value};
use vkfd_isa::{disassemble, DecodeError, Format, Inst, Target, MAX_WORDS};

use code_object::{CodeObject, Function};

/// The options of `vkfd disasm`.
#[derive(Args, Clone, Debug)]
pub struct DisasmArgs {
    /// A code object, or a program or bundle that contains code objects
    file: PathBuf,

    /// Decode the code for this target, whatever the object says
    #[arg(long)]
    target: Option<Target>,

    /// In a file with several code objects, show only those of this target
    #[arg(long, value_name = "TARGET")]
    only: Option<String>,

    /// Show only functions whose name contains this, and code objects that have one
    #[arg(long, value_name = "TEXT")]
    symbol: Option<String>,

    /// Show only symbols and descriptors
    #[arg(long)]
    no_code: bool,

    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// A place in a function: an instruction, or a word that is none.
struct Line {
    address: u64,
    /// Where it is in the file.
    offset: u64,
    words: Vec<u32>,
    decoded: Result<(Inst, String), DecodeError>,
}

/// Runs it. Exit code 1: some words are no instruction; 2, by the caller: the file is none that can
/// be read.
pub fn run(args: &DisasmArgs) -> Result<ExitCode> {
    let file = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let mut objects = code_object::all(&file).with_context(|| format!("{}", args.file.display()))?;
    if let Some(only) = &args.only {
        objects.retain(|object| object.machine.split(':').next() == Some(only.as_str()));
        ensure!(!objects.is_empty(), "{} has no code object of {only}", args.file.display());
    }
    let (mut unknown, mut is_found) = (0, false);
    let mut documents = Vec::new();
    for object in &objects {
        let target = match args.target {
            Some(target) => target,
            None => match object.target() {
                Ok(target) => target,
                Err(error) if objects.len() > 1 => {
                    eprintln!("vkfd: a code object of {}: {error}", object.machine);
                    continue;
                }
                Err(error) => bail!("{error}; --target reads it as another's"),
            },
        };
        let functions: Vec<&Function> = object
            .functions
            .iter()
            .filter(|function| args.symbol.as_ref().is_none_or(|text| function.name.contains(text.as_str())))
            .collect();
        if args.symbol.is_some() && functions.is_empty() {
            continue;
        }
        is_found = true;
        let mut shown = Vec::new();
        for function in functions {
            let lines = if args.no_code { Vec::new() } else { lines(target, function) };
            let bad: Vec<&Line> = lines.iter().filter(|line| line.decoded.is_err()).collect();
            if let Some(Line { offset, address, decoded: Err(error), .. }) = bad.first() {
                let more = if bad.len() > 1 { format!(", and {} more in it", bad.len() - 1) } else { String::new() };
                let at = address - function.address;
                eprintln!(
                    "vkfd: {}: byte {offset:#x} ({} + {at:#x}): {error}{more}",
                    args.file.display(),
                    function.name
                );
            }
            unknown += bad.len();
            shown.push((function, lines));
        }
        if args.json {
            documents.push(document(object, target, &shown));
        } else {
            print!("{}", text(object, target, &shown));
        }
    }
    if let Some(symbol) = args.symbol.as_ref().filter(|_| !is_found) {
        bail!("{} has no function whose name contains {symbol}", args.file.display());
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&json!({ "objects": documents }))?);
    }
    Ok(if unknown == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn lines(target: Target, function: &Function) -> Vec<Line> {
    let words: Vec<u32> = function.code.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let mut lines = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let window = &words[at..words.len().min(at + MAX_WORDS)];
        let decoded = disassemble(target, window);
        let length = decoded.as_ref().map_or(1, |(inst, _)| usize::from(inst.bytes / 4));
        let bytes = 4 * u64::try_from(at).unwrap_or(u64::MAX / 4);
        let (address, offset) = (function.address.wrapping_add(bytes), function.offset.saturating_add(bytes));
        lines.push(Line { address, offset, words: window[..length].to_vec(), decoded });
        at += length;
    }
    lines
}

/// Where a branch goes.
fn branch_target(line: &Line) -> Option<u64> {
    let (inst, text) = line.decoded.as_ref().ok()?;
    let branches = text.starts_with("s_branch") || text.starts_with("s_cbranch") || text.starts_with("s_call");
    let relative = matches!(inst.format, Format::Sopp | Format::Sopk) && branches;
    relative.then(|| line.address.wrapping_add(4).wrapping_add_signed(i64::from(inst.imm) * 4))
}

/// Names for the places that branches of a function go to.
fn labels(lines: &[Line]) -> BTreeMap<u64, String> {
    let mut labels: BTreeMap<u64, String> =
        lines.iter().filter_map(branch_target).map(|at| (at, String::new())).collect();
    for (n, label) in labels.values_mut().enumerate() {
        *label = format!("L{n}");
    }
    labels
}

fn text(object: &CodeObject, target: Target, functions: &[(&Function, Vec<Line>)]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "code object of {}, version {}, read as {target}", object.machine, object.version);
    for (function, lines) in functions {
        let kind = if function.descriptor.is_some() { "kernel" } else { "function" };
        let _ = writeln!(out, "\n{kind} {}: {:#x}, {} bytes", function.name, function.address, function.code.len());
        if let Some(descriptor) = &function.descriptor {
            let _ = writeln!(out, "  descriptor at {:#x}", descriptor.address);
            for (name, value) in descriptor.fields(target) {
                let _ = writeln!(out, "    {name:<44} {}", descriptor::shown(&value));
            }
        }
        let labels = labels(lines);
        for line in lines {
            if let Some(label) = labels.get(&line.address) {
                let _ = writeln!(out, "{label}:");
            }
            let words: Vec<String> = line.words.iter().map(|word| format!("{word:08X}")).collect();
            let (text, note) = match &line.decoded {
                Ok((_, text)) => {
                    let target = branch_target(line).and_then(|at| labels.get(&at));
                    (text.clone(), target.map(|label| format!(" -> {label}")).unwrap_or_default())
                }
                Err(error) => (format!(".long {:#010x}", line.words[0]), format!(" byte {:#x}: {error}", line.offset)),
            };
            let _ = writeln!(out, "  {text:<60} // {:012X}: {}{note}", line.address, words.join(" "));
        }
    }
    out
}

fn document(object: &CodeObject, target: Target, functions: &[(&Function, Vec<Line>)]) -> Value {
    let functions: Vec<Value> = functions
        .iter()
        .map(|(function, lines)| {
            let descriptor = function.descriptor.as_ref().map(|descriptor| {
                let fields: serde_json::Map<String, Value> =
                    descriptor.fields(target).into_iter().map(|(name, value)| (name.to_string(), value)).collect();
                json!({ "address": descriptor.address, "fields": fields })
            });
            let instructions: Vec<Value> = lines
                .iter()
                .map(|line| match &line.decoded {
                    Ok((inst, text)) => json!({
                        "address": line.address,
                        "words": line.words,
                        "text": text,
                        "operation": inst.op.name(),
                        "branch": branch_target(line),
                    }),
                    Err(error) => {
                        json!({ "address": line.address, "words": line.words, "offset": line.offset, "error": error.to_string() })
                    }
                })
                .collect();
            json!({
                "name": function.name,
                "address": function.address,
                "bytes": function.code.len(),
                "descriptor": descriptor,
                "instructions": instructions,
            })
        })
        .collect();
    json!({
        "machine": object.machine,
        "offset": object.offset,
        "version": object.version,
        "target": target.name(),
        "functions": functions,
    })
}
