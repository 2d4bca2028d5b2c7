// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask frames`: how much stack the functions take that a program's own threads run.
//!
//! Mechanism: the preload library is disassembled (objdump), and what each function's beginning
//! takes off the stack pointer is added up: pushes do not count, probes of large frames do. What
//! only threads of vkfd's run, whose stacks it makes itself, is left out by name.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use xtask_base::{tree, Verdict};

/// Check how much stack the functions of the preload library take (needs objdump)
///
/// A program's thread may have a stack of 16 KiB, and hooks and calls of the driver run on it. So
/// no function may have a frame of more than 8 KiB, except those that only vkfd's own threads run,
/// or that run on a stack of their own.
///
/// Exit status: 0 all are small, 1 some are not, 2 cannot look.
#[derive(clap::Args)]
pub struct Args {
    /// The most that a frame may have, in bytes
    #[arg(long, default_value_t = 8192)]
    most: u64,
}

/// Functions with such names may have larger frames, and why.
const OTHERS: &[(&str, &str)] = &[
    ("vkfd_cu::", "runs on the GPU's threads"),
    ("vkfd_translate::", "the same"),
    ("vkfd_gpu::kernels::engine::", "the same"),
    ("vkfd_gpu::kernels::worker::", "the same"),
    ("vkfd_gpu::state::contain::", "the same: around all that such a thread does"),
    ("vkfd_gpu::queue::run", "the same"),
    ("vkfd_host::migrate::Mover::start", "runs when the machine is made, on a stack of its own"),
    ("vkfd_host::migrate::late::LateDiscards::new", "the same"),
    ("std::backtrace", "runs when something has panicked"),
    ("gimli", "the same"),
    ("addr2line", "the same"),
];

pub fn run(args: &Args) -> Result<Verdict> {
    ensure!(cfg!(target_arch = "x86_64"), "the disassembly is read for x86-64 only");
    let built = Command::new("cargo")
        .current_dir(tree::root())
        .args(["build", "--quiet", "--release", "--locked", "--package", "vkfd-preload"])
        .status()
        .context("start cargo")?;
    ensure!(built.success(), "the library does not build");
    let library = tree::target().join("release/libvkfd_preload.so");
    let output = Command::new("objdump")
        .args(["--disassemble", "--demangle", "--no-show-raw-insn"])
        .arg(&library)
        .output()
        .context("start objdump (apt-get install binutils)")?;
    ensure!(output.status.success(), "objdump cannot read {}", library.display());
    let text = String::from_utf8_lossy(&output.stdout);
    let frames = frames(&text);
    ensure!(frames.len() > 1000, "{} functions are too few: is {} stripped?", frames.len(), library.display());
    let excused = |name: &str| OTHERS.iter().any(|(part, _)| name.contains(part));
    let large: Vec<String> = frames
        .iter()
        .filter(|(name, bytes)| **bytes > args.most && !excused(name))
        .map(|(name, bytes)| format!("{name}: a frame of {bytes} bytes, more than {}", args.most))
        .collect();
    Ok(if large.is_empty() {
        Verdict::Clean(format!("{} functions, none with a frame of more than {} bytes", frames.len(), args.most))
    } else {
        Verdict::Findings(large)
    })
}

/// Each function's largest frame.
fn frames(disassembly: &str) -> BTreeMap<&str, u64> {
    let mut frames = BTreeMap::new();
    let (mut name, mut frame) = ("", 0);
    for line in disassembly.lines() {
        if let Some((_, rest)) = line.split_once(" <").filter(|(address, _)| is_hex(address)) {
            (name, frame) = (rest.trim_end_matches(">:"), 0);
            continue;
        }
        let Some((_, instruction)) = line.split_once(":\t") else { continue };
        match taken(instruction) {
            Taken::Bytes(bytes) => frame += bytes,
            Taken::Probe => continue,
            Taken::Nothing => frame = 0,
        }
        let most: &mut u64 = frames.entry(name).or_default();
        *most = (*most).max(frame);
    }
    frames
}

fn is_hex(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

enum Taken {
    Bytes(u64),
    /// A store that makes sure that the page is there, between two steps.
    Probe,
    Nothing,
}

/// What an instruction takes off the stack pointer.
fn taken(instruction: &str) -> Taken {
    let mut words = instruction.split_whitespace();
    let (operation, operands) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let number = |text: &str| text.strip_prefix("$0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    match (operation, operands.split_once(',')) {
        ("sub", Some((bytes, "%rsp" | "%r11"))) => number(bytes).map_or(Taken::Nothing, Taken::Bytes),
        ("movq" | "orq", Some(("$0x0", "(%rsp)"))) | ("mov", Some(("%rsp", "%r11"))) => Taken::Probe,
        _ => Taken::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_added_up() {
        let text = "
0000000000001000 <one>:
    1000:\tpush   %rbx
    1001:\tsub    $0x1000,%rsp
    1008:\tmovq   $0x0,(%rsp)
    1010:\tsub    $0x18,%rsp
    1014:\tcall   2000 <two>
    1019:\tsub    $0x8,%rsp

0000000000002000 <two>:
    2000:\tmov    %rsp,%r11
    2003:\tsub    $0xe000,%r11
    200a:\tsub    $0x1000,%rsp
    2011:\tmovq   $0x0,(%rsp)
    2019:\tcmp    %r11,%rsp
";
        let found = frames(text);
        assert_eq!((found["one"], found["two"]), (0x1018, 0xf000), "the loop's step counts as well");
    }
}
