// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One boot of the guest, from power-on to power-off or to the time limit.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use rustix::fs::{flock, FlockOperation};
use rustix::process::{kill_process, Pid, Signal};
use vkfd_guest::{Job, Record};

use super::device::{Gpus, Wanted};
use super::initrd::Initrd;
use super::kernel::Kernel;
use super::qemu::{Acceleration, Console, Machine, Ram, Share};
use xtask_base::tree;

/// What a boot is made of.
pub struct Boot<'a> {
    pub kernel: &'a Kernel,
    pub acceleration: Acceleration,
    pub memory_mib: u64,
    pub gpus: Option<Wanted>,
    /// More words for the kernel's command line.
    pub append: String,
    pub shares: &'a [Share],
    /// The guest is switched off after this time.
    pub limit: Duration,
}

/// How a boot came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The virtual machine ended.
    Exited(ExitStatus),
    /// It was switched off after this time.
    TimedOut(Duration),
}

/// What a boot has shown.
pub struct Outcome {
    pub end: End,
    pub records: Vec<Record>,
    /// Lines of the report that are no records.
    pub garbled: Vec<String>,
    /// The kernel's log.
    pub console: String,
    pub console_path: PathBuf,
    /// What QEMU complained of.
    pub complaints: String,
    /// What went wrong in the process of the GPUs.
    pub gpu_troubles: Vec<String>,
    pub took: Duration,
}

/// The files of a boot, which the next boot of that name overwrites. One boot at a time has them.
pub struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Below the target directory.
    pub fn new(kernel: &Kernel, name: &str) -> Result<Self> {
        let path = std::path::absolute(tree::target()).context("make the target directory absolute")?;
        Self::at(path.join("vm").join(kernel.flavor.name()).join(name))
    }

    /// This one.
    pub fn at(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        let lock = File::create(path.join("lock")).with_context(|| format!("create a file in {}", path.display()))?;
        ensure!(
            flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
            "another guest runs with its files in {}: wait for its end, or set CARGO_TARGET_DIR to another place",
            path.display()
        );
        Ok(Self { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Boot<'_> {
    /// Boots, hands over records as they come, and returns when the guest has ended.
    pub fn run(
        &self,
        initrd: Initrd,
        job: &Job,
        directory: &Directory,
        mut on_record: impl FnMut(&Record),
    ) -> Result<Outcome> {
        let archive = directory.path.join("initrd.cpio");
        initrd.write(job, &archive)?;
        let ram = Ram::new(self.memory_mib)?;
        let gpus = self.gpus.as_ref().map(|wanted| Gpus::start(wanted, &ram, &directory.path));
        let mut gpus = gpus.transpose()?;
        let console_path = directory.path.join("console.log");
        let image = self.kernel.image();
        let machine = Machine {
            acceleration: self.acceleration,
            processors: 2,
            kernel: &image,
            initrd: &archive,
            // The whole log: what is wrong need not be an error to the kernel.
            append: &format!("loglevel=7 {}", self.append),
            ram: &ram,
            gpus: gpus.as_ref().map_or(&[], Gpus::sockets),
            console: Console::File(&console_path),
            shares: self.shares,
        };
        // What an earlier boot has left must not be taken for this one's.
        fs::write(&console_path, "").with_context(|| format!("write {}", console_path.display()))?;
        let complaints_path = directory.path.join("qemu.log");
        let all = |record: &Record| {
            on_record(record);
            true
        };
        let watched = watch(machine.command(), &complaints_path, self.limit, all)?;
        watched.outcome(&console_path, &complaints_path, gpus.as_mut().map_or_else(Vec::new, Gpus::troubles))
    }
}

/// A virtual machine's run, by its result.
pub struct Watched {
    end: End,
    records: Vec<Record>,
    garbled: Vec<String>,
    took: Duration,
}

/// Runs `command`, whose output is the guest's report; hands over records as they come. It is
/// killed after `limit`, or when `on_record` says that it does not want to go on.
pub fn watch(
    mut command: Command,
    complaints_path: &Path,
    limit: Duration,
    mut on_record: impl FnMut(&Record) -> bool,
) -> Result<Watched> {
    let complaints = File::create(complaints_path).with_context(|| format!("create {}", complaints_path.display()))?;
    let began = Instant::now();
    // QEMU disconnects the report's port when its standard input ends, so that is a pipe which
    // stays open.
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints).spawn().context("start QEMU")?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("QEMU's process number")?;
    let output = child.stdout.take().context("QEMU's output")?;

    // The guest's end closes the output, and the channel ends the watch before the process is
    // waited for. So the process number is still QEMU's whenever the watch uses it.
    let (ended, watched) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        let timed_out = watched.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if timed_out {
            let _ = kill_process(pid, Signal::KILL);
        }
        timed_out
    });
    let (mut records, mut garbled) = (Vec::new(), Vec::new());
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("read the guest's report")?;
        match serde_json::from_slice(&line) {
            Ok(record) => {
                if !on_record(&record) {
                    // It has not been waited for, so the number is its own.
                    let _ = kill_process(pid, Signal::KILL);
                }
                records.push(record);
            }
            Err(_) => garbled.push(String::from_utf8_lossy(&line).into_owned()),
        }
    }
    drop(ended);
    let timed_out = watch.join().unwrap_or(false);
    let status = child.wait().context("wait for QEMU")?;
    let took = began.elapsed();
    let end = if timed_out { End::TimedOut(limit) } else { End::Exited(status) };
    Ok(Watched { end, records, garbled, took })
}

impl Watched {
    /// The outcome, with the files' contents.
    pub fn outcome(self, console: &Path, complaints: &Path, gpu_troubles: Vec<String>) -> Result<Outcome> {
        Ok(Outcome {
            end: self.end,
            records: self.records,
            garbled: self.garbled,
            console: String::from_utf8_lossy(&fs::read(console).context("read the console's log")?).into_owned(),
            console_path: console.into(),
            complaints: fs::read_to_string(complaints).unwrap_or_default(),
            gpu_troubles,
            took: self.took,
        })
    }
}
