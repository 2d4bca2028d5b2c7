// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask isa`: makes the decoder's tables from LLVM's description of AMD's GPUs.
//!
//! Mechanism: `llvm-tblgen` writes the records of the AMDGPU target as JSON. Those that LLVM's
//! disassembler has for one of our targets are converted (`encoding`), named (`names`) and written
//! as Rust (`emit`) below `isa/src`. Without `--write`, the text is compared with the files.

mod emit;
mod encoding;
mod names;
mod subtarget;
mod sweep;
mod tablegen;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context};
use vkfd_targets::Target;

use emit::Row;
use names::Names;
use subtarget::{namespaces, Subtarget, ORDER};
use tablegen::Records;
use xtask_base::Verdict;

/// The release whose description the tables are from.
const LLVM: &str = "19.1.7";

/// Make the decoder's tables from LLVM's TableGen, and compare them with the tree's; or compare the
/// decoder with llvm-mc
///
/// Takes LLVM's records as JSON (--json), or makes them with llvm-tblgen from LLVM's source
/// (--llvm; it takes 15 GiB of memory). Without --write nothing in the tree changes.
///
/// --sweep: the decoder and the disassembler of all targets against llvm-mc-19, on a sample of the
/// encodings. Text that is assembled again must give the same instruction, and faults that are
/// planted in the tables must be noticed. --whole takes every encoding, --vectors LLVM's own tests
/// as well.
///
/// Exit status: 0 the same, or written; 1 differences; 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// Write the tables instead of comparing
    #[arg(long)]
    write: bool,
    /// LLVM's sources: the directory with `include` and `lib/Target/AMDGPU`
    #[arg(long, value_name = "DIR", required_unless_present_any = ["json", "sweep"])]
    llvm: Option<PathBuf>,
    /// The output of `llvm-tblgen --dump-json`, if it is there already
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    sweep: sweep::Args,
}

/// The task.
pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    if args.sweep.sweep {
        return sweep::run(&args.sweep);
    }
    let scratch;
    let json = match (&args.json, &args.llvm) {
        (Some(json), _) => json,
        (None, Some(llvm)) => {
            scratch = dump(llvm)?;
            &scratch
        }
        (None, None) => unreachable!("clap asks for one of them"),
    };
    let records = Records::read(json)?;
    let (rows, operations) = rows(&records)?;
    let source = format!("LLVM {LLVM}, llvm/lib/Target/AMDGPU/*.td");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("isa").join("src");
    let mut findings = Vec::new();
    for (name, text) in emit::files(&rows, &operations, &source)? {
        let path = root.join(name);
        if args.write {
            fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        } else if fs::read_to_string(&path).unwrap_or_default() != text {
            findings.push(format!("{} is not what the generator makes", path.display()));
        }
    }
    Ok(if findings.is_empty() {
        let operations = operations.values().collect::<std::collections::BTreeSet<_>>().len();
        Verdict::Clean(format!("{} encodings of {operations} operations", rows.len()))
    } else {
        Verdict::Findings(findings)
    })
}

/// Runs TableGen.
fn dump(llvm: &Path) -> anyhow::Result<PathBuf> {
    let tblgen = format!("llvm-tblgen-{}", LLVM.split('.').next().unwrap_or(LLVM));
    let version = Command::new(&tblgen).arg("--version").output().with_context(|| tblgen.clone())?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    ensure!(version.contains(&format!("LLVM version {LLVM}")), "{tblgen} is not of LLVM {LLVM}");
    let out = std::env::temp_dir().join(format!("vkfd-amdgpu-{LLVM}.json"));
    let target = llvm.join("lib/Target/AMDGPU");
    let status = Command::new(&tblgen)
        .arg("--dump-json")
        .args([Path::new("-I"), &llvm.join("include"), Path::new("-I"), &target])
        .arg(target.join("AMDGPU.td"))
        .args([Path::new("-o"), &out])
        .status()?;
    ensure!(status.success(), "{tblgen}: {status}");
    Ok(out)
}

/// The encodings of all targets in the order of precedence, and the operation of each mnemonic.
fn rows(records: &Records) -> anyhow::Result<(Vec<Row>, BTreeMap<String, String>)> {
    let subtargets: Vec<Subtarget> = Target::ALL
        .map(|target| Subtarget::new(records, target.name(), namespaces(target)))
        .into_iter()
        .collect::<Result<_, _>>()?;
    let mut names = Names::default();
    let mut rows: Vec<(usize, Row)> = Vec::new();
    for instruction in &records.instructions {
        if instruction.is_pseudo || instruction.is_codegen_only || instruction.is_asm_only {
            continue;
        }
        let mut targets = 0;
        for (rank, subtarget) in subtargets.iter().enumerate() {
            if subtarget.has(records, instruction)? {
                targets |= 1 << rank;
            }
        }
        if targets == 0 {
            continue;
        }
        let encoding = encoding::encoding(records, instruction)?;
        for rank in (0..Target::ALL.len()).filter(|rank| targets >> rank & 1 != 0) {
            if !encoding.mnemonic.starts_with("v_dual_") {
                names.add(rank, &encoding.mnemonic, instruction.pseudo.as_deref());
            }
        }
        let space = instruction.namespace.as_deref().unwrap_or("");
        let order = ORDER.iter().position(|name| *name == space).with_context(|| format!("table {space}"))?;
        rows.push((order, Row { encoding, targets }));
    }
    // The longest first; in one table, those that fix more bits.
    rows.sort_by_key(|(order, row)| {
        let fixed: u32 = row.encoding.mask.iter().map(|word| word.count_ones()).sum();
        let words = row
            .encoding
            .mask
            .iter()
            .rposition(|word| *word != 0)
            .unwrap_or(0)
            .max(usize::from(row.encoding.shape.bytes.min(12) / 4));
        (std::cmp::Reverse(words), *order, std::cmp::Reverse(fixed))
    });
    Ok((rows.into_iter().map(|(_, row)| row).collect(), names.operations()?))
}
