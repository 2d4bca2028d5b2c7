// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd demo --input DIR`: a data loader's case. Files lie in many separate allocations, and all
//! of them become one GPU range. One kernel launch computes the CRC-32 of each file's bytes,
//! without the padding of its last page.
//!
//! Limits: symbolic links are not followed. A file that shrinks while it is mapped (`--mmap`) ends
//! the program, as with any mmap.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use clap::Args;
use serde_json::{json, Value};
use vkfd_client::{Buffer, RegisterOptions, UserptrRange, PAGE};

use crate::engine::{Comparison, Engine, Segment};
use crate::format::{bytes, count, counted, gigabytes_per_second, rate, time, Align, Table};
use crate::memory::Mapping;
use crate::report::{Output, Progress, Report};
use crate::session::Session;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Options about files.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Files instead of a scatter list")]
pub struct InputArgs {
    /// Register the contents of all regular files below DIR (or of one file), and let the GPU
    /// compute their CRC-32. Symbolic links are not followed
    #[arg(long, value_name = "DIR", conflicts_with_all = ["list", "all_lists"])]
    input: Option<PathBuf>,

    /// Map the files (mmap) instead of reading them; they are registered read-only
    #[arg(long, requires = "input")]
    mmap: bool,

    /// Register at most N files
    #[arg(long, value_name = "N", default_value_t = 10_000, requires = "input", value_parser = clap::value_parser!(u32).range(1..))]
    max_files: u32,

    /// Exit with 0 even if a file could not be read
    #[arg(long, requires = "input")]
    skip_errors: bool,

    /// Show N files in the table; 0 shows all (--json always has all)
    #[arg(long, value_name = "N", default_value_t = 20, requires = "input")]
    show: usize,
}

impl InputArgs {
    /// Whether files are to be used.
    pub fn is_given(&self) -> bool {
        self.input.is_some()
    }
}

const INTRODUCTION: &str = "Each file's contents lie in an allocation of their own, as in a program that loads data. All of them are \
    registered as one contiguous GPU range without copying, one kernel launch computes the CRC-32 of each file, and the results are \
    compared with the CPU's.";

/// What was found below a directory.
#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    errors: Vec<(PathBuf, String)>,
    cut: bool,
}

impl Found {
    /// Walks depth first, in the order of names.
    fn walk(&mut self, path: &Path, limit: usize) {
        let kind = match fs::symlink_metadata(path) {
            Ok(data) => data.file_type(),
            Err(error) => return self.errors.push((path.to_owned(), error.to_string())),
        };
        if kind.is_file() {
            if self.files.len() == limit {
                self.cut = true;
            } else {
                self.files.push(path.to_owned());
            }
        } else if kind.is_dir() {
            let entries =
                fs::read_dir(path).and_then(|dir| dir.map(|e| e.map(|e| e.path())).collect::<io::Result<Vec<_>>>());
            match entries {
                Ok(mut entries) => {
                    entries.sort();
                    for entry in entries {
                        if self.cut {
                            return;
                        }
                        self.walk(&entry, limit);
                    }
                }
                Err(error) => self.errors.push((path.to_owned(), error.to_string())),
            }
        }
    }
}

/// A file's contents; an empty file has no memory.
struct Loaded {
    path: PathBuf,
    bytes: u64,
    memory: Option<Mapping>,
}

impl Loaded {
    fn new(path: &Path, mmap: bool) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let data = file.metadata()?;
        if !data.is_file() {
            return Err(io::Error::other("not a regular file any more"));
        }
        let bytes = data.len();
        let memory = match bytes {
            0 => None,
            n if mmap => Some(Mapping::file(&file, n.next_multiple_of(PAGE))?),
            n => Some(read(&mut file, n)?),
        };
        Ok(Self { path: path.to_owned(), bytes, memory })
    }

    /// Bytes that it takes of the GPU range.
    fn padded(&self) -> u64 {
        self.bytes.next_multiple_of(PAGE)
    }

    /// `None` if the file has become shorter.
    fn checksum(&self) -> Option<u32> {
        let mut hasher = crc32fast::Hasher::new();
        let mut chunk = [0; 16 << 10];
        let mut at = 0;
        while let Some(memory) = self.memory.as_ref().filter(|_| at < self.bytes) {
            let n = usize::try_from(self.bytes - at).unwrap_or(usize::MAX).min(chunk.len());
            if !memory.try_read(at, &mut chunk[..n]) {
                return None;
            }
            hasher.update(&chunk[..n]);
            at += n as u64;
        }
        Some(hasher.finalize())
    }
}

fn read(file: &mut File, bytes: u64) -> io::Result<Mapping> {
    let memory = Mapping::anonymous(bytes.next_multiple_of(PAGE))?;
    let mut chunk = vec![0; CHUNK.min(usize::try_from(bytes).unwrap_or(CHUNK))];
    let mut at = 0;
    while at < bytes {
        let n = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(chunk.len());
        match file.read(&mut chunk[..n])? {
            0 => return Err(io::Error::other(format!("became shorter while it was read: {at} of {bytes} bytes"))),
            n => {
                memory.write(at, &chunk[..n]);
                at += n as u64;
            }
        }
    }
    Ok(memory)
}

/// Runs it.
///
/// # Errors
///
/// What kept it from starting: no such directory, no files, no memory.
pub fn run(args: &InputArgs, session: &Session, output: &Output) -> Result<ExitCode> {
    let root = args.input.as_deref().context("no --input")?;
    fs::metadata(root).with_context(|| format!("cannot use --input {}", root.display()))?;
    if args.mmap && session.client.caps().vkfd && !session.client.caps().read_only {
        bail!("this driver cannot register read-only memory: leave --mmap out");
    }
    output.text(INTRODUCTION)?;
    output.line("")?;
    output.text(&session.describe())?;
    let mut found = Found::default();
    // The root itself may be a link.
    let start = match fs::read_link(root) {
        Ok(_) => fs::canonicalize(root).with_context(|| format!("cannot use --input {}", root.display()))?,
        Err(_) => root.to_owned(),
    };
    found.walk(&start, usize::try_from(args.max_files).unwrap_or(usize::MAX));
    let Found { files, mut errors, cut } = found;
    if files.is_empty() && errors.is_empty() {
        bail!("there is no regular file below {}: give a directory with files", root.display());
    }
    check_memory(&files, args.mmap)?;
    let mut report = Report::new(output);
    let mut loaded = Vec::with_capacity(files.len());
    let began = Instant::now();
    report.output().heading("1. Files")?;
    report.step("files", "Reading files", |step| {
        let progress = output.progress("reading", files.len() as u64);
        for path in &files {
            match Loaded::new(path, args.mmap) {
                Ok(file) => loaded.push(file),
                Err(error) => errors.push((path.clone(), error.to_string())),
            }
            progress.advance(1);
        }
        drop(progress);
        let total = loaded.iter().map(|file| file.bytes).sum();
        let empty = loaded.iter().filter(|file| file.bytes == 0).count() as u64;
        let how =
            if args.mmap { "mapped, each where the kernel put it" } else { "read, each into an allocation of its own" };
        step.did(format!(
            "{} with {} {how} ({})",
            counted(loaded.len() as u64, "file"),
            bytes(total),
            time(began.elapsed())
        ));
        step.took("read", began.elapsed());
        step.number("files", loaded.len() as u64).number("bytes", total).number("empty_files", empty);
        step.number("unreadable", errors.len() as u64);
        if empty != 0 {
            step.note(format!("{} of them empty: nothing to register, their CRC-32 is 0", count(empty)));
        }
        if cut {
            step.note(format!("stopped after {} files: --max-files allows more", count(args.max_files)));
        }
        let words: Vec<String> = errors.iter().map(|(path, why)| format!("{}: {why}", path.display())).collect();
        if args.skip_errors {
            for word in &words {
                step.note(format!("left out: {word}"));
            }
        } else {
            step.check("all files can be read (--skip-errors leaves out those that cannot)", words.is_empty(), || {
                words.join("; ")
            });
        }
        Ok(())
    })?;
    let results = check(args, session, &mut report, &loaded)?;
    let ok = report.ok();
    output.line("")?;
    output.line(if ok { "All checks held." } else { "A check FAILED: see above." })?;
    output.document(&json!({
        "vkfd": env!("CARGO_PKG_VERSION"), "command": "demo --input", "ok": ok, "kfd": session.json(),
        "steps": report.steps, "files": results, "max_files_reached": cut,
        "errors": errors.iter().map(|(path, why)| json!({ "path": path.to_string_lossy(), "error": why })).collect::<Vec<_>>(),
    }))?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Refuses what would not fit before it is read.
fn check_memory(files: &[PathBuf], mmap: bool) -> Result<()> {
    let total: u64 = files.iter().filter_map(|path| fs::metadata(path).ok()).map(|data| data.len()).sum();
    match vkfd_host::memory_left() {
        Some(available) if !mmap && total > available => bail!(
            "the files have {} and {} of memory is free: use --mmap, --max-files or a smaller directory",
            bytes(total),
            bytes(available)
        ),
        _ => Ok(()),
    }
}

/// Registers, computes, compares, prints; the files' results for JSON.
fn check(args: &InputArgs, session: &Session, report: &mut Report<'_>, files: &[Loaded]) -> Result<Vec<Value>> {
    let output = report.output();
    if files.is_empty() {
        return Ok(Vec::new());
    }
    report.output().heading("2. Registration")?;
    let mut registered: Option<Buffer> = None;
    let memory = |file: &Loaded| file.memory.as_ref().map(|m| UserptrRange { start: m.start().0, size: file.padded() });
    let list: Vec<UserptrRange> = files.iter().filter_map(memory).collect();
    if list.is_empty() {
        report.skip("register", "Registration", "all files are empty, so there is no memory to register")?;
    } else {
        let done = report.step("register", "Registering all files as one GPU range", |step| {
            let start = Instant::now();
            let options = RegisterOptions { writable: !args.mmap, ..RegisterOptions::default() };
            // SAFETY: the memory is only copied from, never referred to, and not while the GPU
            // works on it.
            let buffer = unsafe { session.client.register_ranges(&list, &options) };
            let buffer = buffer.map_err(|error| blame(files, error.into()))?;
            let (va, total) = (buffer.gpu_va(), buffer.len());
            step.did(format!(
                "{} registered {} and mapped as one GPU range of {}, {va} to {} ({})",
                counted(list.len() as u64, "allocation"),
                match buffer.handles().len() {
                    1 => "in one call".to_owned(),
                    n => format!("in {} calls (this driver has no batch call)", count(n as u64)),
                },
                bytes(total),
                va.offset(total),
                time(start.elapsed())
            ));
            step.took("register", start.elapsed()).number("ranges", list.len() as u64).number("gpu_bytes", total);
            step.number("gpu_va", va.to_string());
            registered = Some(buffer);
            Ok(())
        })?;
        if !done {
            return Ok(Vec::new());
        }
    }
    report.output().heading("3. Checksums")?;
    let mut results = Vec::new();
    report.step("crc32", "CRC-32 of each file", |step| {
        let mut at = registered.as_ref().map_or(vkfd_client::GpuVa(0), Buffer::gpu_va);
        let segments: Vec<Segment> = files
            .iter()
            .map(|file| {
                let segment = Segment { va: at, bytes: file.bytes };
                at = at.offset(file.padded());
                segment
            })
            .collect();
        let total = files.iter().map(|file| file.bytes).sum();
        let (cpu, cpu_time) = by_cpu(files, &output.progress("computing on the CPU", files.len() as u64))?;
        let mut found = None;
        for gpu in session.client.gpus() {
            let mut engine = Engine::new(&session.client, gpu.id, files.len())?;
            let start = Instant::now();
            let values = engine.checksums(&segments).map_err(|error| blame(files, error))?;
            let gpu_time = start.elapsed();
            let how = if engine.has_kernels() { "in one launch" } else { "after copies by the GPU's copy engine" };
            step.did(format!("The GPU computed the CRC-32 of {} {how}", counted(files.len() as u64, "file")));
            step.note(format!(
                "{}: {} at {}; the CPU alone {} at {}",
                if session.machine.is_some() { "software GPU" } else { "GPU" },
                time(gpu_time),
                rate(total, gpu_time),
                time(cpu_time),
                rate(total, cpu_time)
            ));
            step.took("gpu", gpu_time).took("cpu", cpu_time);
            step.number("gpu_gb_per_s", gigabytes_per_second(total, gpu_time));
            let compared = Comparison::new(&cpu, &values);
            step.check("all are those that the CPU computes", compared.same(), || {
                let name = compared.first.and_then(|(place, ..)| files.get(usize::try_from(place).ok()?));
                let name = name.map(|file| format!(" ({})", file.path.display())).unwrap_or_default();
                format!("{}{name}", compared.difference())
            });
            found.get_or_insert(values);
        }
        let values = found.unwrap_or_default();
        results =
            files.iter().zip(cpu.iter().zip(&values)).map(|(file, (cpu, gpu))| file_json(file, *cpu, *gpu)).collect();
        for line in table(files, &cpu, &values, args.show).lines() {
            step.line(line);
        }
        if args.show != 0 && files.len() > args.show {
            step.line(format!("... and {} more (--show 0 shows all)", count((files.len() - args.show) as u64)));
        }
        step.line(format!("total: {}, {}", counted(files.len() as u64, "file"), bytes(total)));
        Ok(())
    })?;
    // The registration goes before the memory does.
    if let Some(buffer) = registered {
        buffer.free().context("cannot free the registration")?;
    }
    Ok(results)
}

/// Names a file that has become shorter since, instead of `error`: memory of it that was mapped has
/// gone, which is the reason.
fn blame(files: &[Loaded], error: anyhow::Error) -> anyhow::Error {
    let now = |file: &Loaded| fs::metadata(&file.path).map_or(0, |data| data.len());
    match files.iter().find(|file| now(file) < file.bytes) {
        Some(file) => anyhow::anyhow!(
            "{} became shorter while it was used: {} of {} bytes are left",
            file.path.display(),
            now(file),
            file.bytes
        ),
        None => error,
    }
}

fn by_cpu(files: &[Loaded], progress: &Progress) -> Result<(Vec<u32>, Duration)> {
    let start = Instant::now();
    let checksum = |file: &Loaded| {
        progress.advance(1);
        file.checksum().ok_or_else(|| blame(files, anyhow::anyhow!("{} cannot be read", file.path.display())))
    };
    let values = files.iter().map(checksum).collect::<Result<_>>()?;
    Ok((values, start.elapsed()))
}

fn file_json(file: &Loaded, cpu: u32, gpu: u32) -> Value {
    json!({
        "path": file.path.to_string_lossy(), "bytes": file.bytes,
        "crc32_gpu": format!("{gpu:08x}"), "crc32_cpu": format!("{cpu:08x}"), "ok": cpu == gpu,
    })
}

fn table(files: &[Loaded], cpu: &[u32], gpu: &[u32], show: usize) -> Table {
    let mut table =
        Table::new(&[("CRC-32 (GPU)", Align::Left), ("bytes", Align::Right), ("", Align::Left), ("file", Align::Left)]);
    let shown = if show == 0 { files.len() } else { show };
    for (file, (cpu, gpu)) in files.iter().zip(cpu.iter().zip(gpu)).take(shown) {
        let verdict = if cpu == gpu { "ok".to_owned() } else { format!("FAILED: the CPU has {cpu:08x}") };
        // Names may have control characters, which must not reach a terminal.
        let name: String = file.path.to_string_lossy().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        table.row(vec![format!("{gpu:08x}"), count(file.bytes), verdict, name]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_result_shows_in_table_and_json() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a\nb");
        fs::write(&path, b"123456789").unwrap();
        for mmap in [false, true] {
            let file = Loaded::new(&path, mmap).unwrap();
            // The check value of CRC-32.
            assert_eq!((file.checksum(), file.bytes, file.padded()), (Some(0xcbf4_3926), 9, PAGE));
            let lines = table(std::slice::from_ref(&file), &[0xcbf4_3926], &[0xcbf4_3927], 20).lines();
            assert!(lines[1].contains("FAILED") && lines[1].contains("a?b"), "{lines:?}");
            assert_eq!(file_json(&file, 1, 2)["ok"], false);
            assert_eq!(file_json(&file, 2, 2)["ok"], true);
        }
    }

    #[test]
    fn a_file_that_becomes_shorter_is_named_and_nobody_dies_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shrinking");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let files = [Loaded::new(&path, true).unwrap()];
        assert!(files[0].checksum().is_some());
        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert_eq!(files[0].checksum(), None);
        let words = format!("{:#}", blame(&files, anyhow::anyhow!("a page fault")));
        assert!(
            words.ends_with("shrinking became shorter while it was used: 100 of 1048576 bytes are left"),
            "{words}"
        );
        File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(blame(&files, anyhow::anyhow!("other")).to_string(), "other");
    }

    #[test]
    fn the_walk_is_in_order_stops_and_follows_no_links() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("b")).unwrap();
        for name in ["c", "b/2", "b/1", "a"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink(dir.path(), dir.path().join("b/loop")).unwrap();
        let walk = |limit| {
            let mut found = Found::default();
            found.walk(dir.path(), limit);
            assert!(found.errors.is_empty());
            let names: Vec<String> = found
                .files
                .iter()
                .map(|f| f.strip_prefix(dir.path()).unwrap().to_string_lossy().into_owned())
                .collect();
            (names, found.cut)
        };
        assert_eq!(walk(10), (["a", "b/1", "b/2", "c"].map(String::from).to_vec(), false));
        assert!(!walk(4).1);
        assert_eq!(walk(3), (["a", "b/1", "b/2"].map(String::from).to_vec(), true));
    }
}
