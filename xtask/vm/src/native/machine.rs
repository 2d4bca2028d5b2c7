// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A boot: the device's process, and QEMU beside it.
//!
//! The device ends with its VMM (`--once`), and its last words say what was left of the guest:
//! nothing must be.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::json;
use vkfd_guest::{Job, Program, Record, REPORT_PORT};

use super::super::boot::{watch, Directory, Outcome};
use super::super::cache::Cache;
use super::super::initrd::Initrd;
use super::super::kernel::Kernel;
use super::super::programs::{Programs, INIT, NATIVE, VKFD};
use super::super::Flavor;
use super::parts::{self, Parts, DEVICE, MODULES};
use xtask_base::cargo::Build;
use xtask_base::Verdict;

/// Time for the guest to boot and end; it takes 20 s on an idle machine.
const AROUND_PROGRAMS: Duration = Duration::from_secs(300);
/// For the device to end after its VMM.
const ENDING: Duration = Duration::from_secs(20);
const STARTING: Duration = Duration::from_secs(60);

/// What virtio-gpu needs of the tree's kernel, in the order of loading.
const PATCHED_MODULES: [(&str, &str); 7] = [
    ("drm_panel_orientation_quirks", "drivers/gpu/drm/drm_panel_orientation_quirks"),
    ("i2c_core", "drivers/i2c/i2c-core"),
    ("drm", "drivers/gpu/drm/drm"),
    ("drm_kms_helper", "drivers/gpu/drm/drm_kms_helper"),
    ("drm_shmem_helper", "drivers/gpu/drm/drm_shmem_helper"),
    ("virtio_dma_buf", "drivers/virtio/virtio_dma_buf"),
    ("virtio_gpu", "drivers/gpu/drm/virtio/virtio-gpu"),
];

/// Said when the guest's things are gone, and nothing is left of them.
const NOTHING_LEFT: &str = "nothing of the guest is left";

/// What boots are made of.
pub struct Machine {
    pub parts: Parts,
    /// The tree's kernel, with userptr blobs, instead of the distribution's kernel.
    patched: Option<Kernel>,
    programs: Programs,
}

/// Puts more into a guest's file system.
pub type More<'a> = dyn Fn(&mut Initrd) -> Result<()> + 'a;

/// A guest to boot.
pub struct Wanted<'a> {
    /// Names its files.
    pub name: &'a str,
    pub memory_mib: u64,
    /// More words for `vkfd virtio-gpu`.
    pub device: &'a [&'a str],
    /// Shell commands, each with its seconds.
    pub commands: &'a [(&'a str, u64)],
    /// What else goes into the guest's file system.
    pub more: Option<&'a More<'a>>,
}

/// What a host does to its guests.
pub struct Host {
    /// Number of the device's process.
    device: u32,
    /// QEMU's monitor.
    monitor: PathBuf,
}

impl Host {
    /// Ends the device at once.
    pub fn kill_device(&self) -> Result<()> {
        let pid = i32::try_from(self.device).ok().and_then(Pid::from_raw).context("the device's process number")?;
        // The device's `Child` waits for it later, so the number is its own.
        kill_process(pid, Signal::KILL).context("kill the device")
    }

    /// Has the guest's balloon leave it so much memory.
    pub fn leave(&self, mib: u64) -> Result<()> {
        let at = || format!("QEMU's monitor, {}", self.monitor.display());
        let mut stream = UnixStream::connect(&self.monitor).with_context(at)?;
        stream.set_read_timeout(Some(ENDING)).with_context(at)?;
        let mut lines = BufReader::new(stream.try_clone().with_context(at)?).lines();
        // It greets first.
        lines.next();
        for command in
            [json!({"execute": "qmp_capabilities"}), json!({"execute": "balloon", "arguments": {"value": mib << 20}})]
        {
            writeln!(stream, "{command}").with_context(at)?;
            // Events come in between.
            let answer = lines.by_ref().find(|line| !matches!(line, Ok(line) if line.contains("\"event\"")));
            let answer = answer.context("no answer").with_context(at)?.with_context(at)?;
            ensure!(answer.contains("\"return\""), "{}: {command}: {answer}", at());
        }
        Ok(())
    }
}

/// What came of it.
pub struct Ran {
    pub outcome: Outcome,
    pub job: Job,
    /// What the device said.
    pub log: String,
    /// What is wrong with the device's end.
    pub left: Vec<String>,
    /// Processes of the device that are there after its end.
    pub processes: Vec<String>,
}

impl Machine {
    /// Gets the parts and builds the programs.
    pub fn new(build: Build) -> Result<Self> {
        let parts = parts::get()?;
        let programs = Programs::build(build, &[INIT, NATIVE, VKFD])?;
        Ok(Self { parts, patched: None, programs })
    }

    /// The same with the tree's kernel, whose virtio-gpu makes blobs of a program's own memory.
    pub fn patched() -> Result<Self> {
        let kernel = Kernel::find(&Cache::open()?, Flavor::Plain)?;
        Ok(Self { patched: Some(kernel), ..Self::new(Build::of_checks()?)? })
    }

    /// What QEMU boots.
    fn image(&self) -> PathBuf {
        self.patched.as_ref().map_or_else(|| self.parts.image(), Kernel::image)
    }

    /// Modules to load, in order.
    fn modules(&self) -> Vec<(&'static str, PathBuf)> {
        match &self.patched {
            Some(kernel) => PATCHED_MODULES.iter().map(|(name, path)| (*name, kernel.module(path))).collect(),
            None => MODULES.iter().map(|(name, _)| (*name, self.parts.module(name))).collect(),
        }
    }

    /// Boots and runs the commands. QEMU is killed when `on_record` does not want to go on.
    pub fn boot(&self, wanted: &Wanted<'_>, mut on_record: impl FnMut(&Record, &Host) -> bool) -> Result<Ran> {
        let directory = Directory::at(super::directory(wanted.name)?)?;
        let (mut initrd, mut job) = self.guest()?;
        if let Some(more) = wanted.more {
            more(&mut initrd)?;
        }
        for (command, seconds) in wanted.commands {
            job.programs.push(Program {
                name: (*command).into(),
                argv: ["/bin/sh", "-c", command].map(Into::into).into(),
                env: vec![("RUST_BACKTRACE".into(), "1".into())],
                seconds: *seconds,
            });
        }
        let archive = directory.path().join("initrd.cpio");
        initrd.write(&job, &archive)?;
        let (console, complaints) = (directory.path().join("console.log"), directory.path().join("qemu.log"));
        fs::write(&console, "").with_context(|| format!("write {}", console.display()))?;
        let mut device = self.device(wanted, directory.path())?;
        let mut command = self.command(&archive, &device.socket, wanted.memory_mib);
        command.args(["-append", &kernel_words("loglevel=6")]);
        command.args(["-chardev", &format!("file,id=console,path={}", console.display())]);
        command.args(["-serial", "chardev:console", "-device", "virtio-serial-pci"]);
        command.args(["-chardev", "stdio,id=report,signal=off"]);
        command.args(["-device", &format!("virtserialport,chardev=report,name={REPORT_PORT}")]);
        let host = Host { device: device.child.id(), monitor: directory.path().join("monitor") };
        command.args(["-device", "virtio-balloon-pci"]);
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", host.monitor.display())]);
        let programs: u64 = wanted.commands.iter().map(|(_, seconds)| seconds).sum();
        let limit = AROUND_PROGRAMS + Duration::from_secs(programs);
        let watched = watch(command, &complaints, limit, |record| on_record(record, &host))?;
        let (log, left) = device.finish();
        let processes = processes(&device.socket);
        Ok(Ran { outcome: watched.outcome(&console, &complaints, Vec::new())?, job, log, left, processes })
    }

    /// `vkfd` and the library that it loads into programs.
    pub fn run(&self) -> Result<[PathBuf; 2]> {
        let program = self.programs.path(VKFD)?;
        let library = program.with_file_name("deps").join("libvkfd_preload.so");
        ensure!(library.is_file(), "there is no {}", library.display());
        Ok([program.into(), library])
    }

    fn guest(&self) -> Result<(Initrd, Job)> {
        let mut initrd = Initrd::new(self.programs.path(INIT)?)?;
        initrd.add_program(self.programs.path(NATIVE)?)?;
        let mut job = Job::default();
        for (name, path) in self.modules() {
            let file = initrd.add_module(&path)?;
            // Linux 7.3's virtio-gpu does not wait for the answers to its last requests to free,
            // and may crash when it is unloaded then.
            job.modules.push(vkfd_guest::Module { name: name.into(), file, parameters: String::new(), stays: true });
        }
        Ok((initrd, job))
    }

    fn command(&self, archive: &Path, socket: &Path, memory_mib: u64) -> Command {
        let qemu = self.parts.qemu();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(qemu.get_program())
            .args(qemu.get_args())
            .env_remove("LD_LIBRARY_PATH");
        command.args(["-no-user-config", "-nodefaults", "-no-reboot", "-display", "none"]);
        // One thread: with more, a stock kernel that patches its code at boot can die of it under
        // emulation.
        command.args(["-accel", "tcg,thread=single", "-cpu", "max,la57=off", "-smp", "1"]);
        command.args(["-machine", "q35,memory-backend=ram", "-m", &format!("{memory_mib}M")]);
        command.args(["-object", &format!("memory-backend-memfd,id=ram,size={memory_mib}M,share=on")]);
        command.arg("-kernel").arg(self.image()).arg("-initrd").arg(archive);
        command.args(["-chardev", &format!("socket,id=gpu,path={}", socket.display())]);
        command.args(["-device", &format!("{DEVICE},chardev=gpu,virtio-id=16,num_vqs=2,config_size=20,vq_size=1024")]);
        command
    }

    fn device(&self, wanted: &Wanted<'_>, directory: &Path) -> Result<Device> {
        let program = self.programs.path(VKFD)?;
        let socket = directory.join("gpu");
        ensure!(socket.as_os_str().len() < 100, "{}: too long for a socket", socket.display());
        if socket.exists() {
            fs::remove_file(&socket).with_context(|| format!("remove {}", socket.display()))?;
        }
        let log = directory.join("gpu.log");
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let errors = file.try_clone().context("share the device's log")?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).args(["virtio-gpu", "--once", "--socket"]).arg(&socket);
        command.args(wanted.device).stdin(Stdio::null()).stdout(file).stderr(errors);
        let mut device = Device { child: command.spawn().context("start the device")?, socket, log };
        let deadline = Instant::now() + STARTING;
        while !device.socket.exists() {
            if let Some(status) = device.child.try_wait().context("wait for the device")? {
                bail!(
                    "the device has ended ({status}): {}",
                    fs::read_to_string(&device.log).unwrap_or_default().trim()
                );
            }
            ensure!(Instant::now() < deadline, "the device has made no socket in {} s", STARTING.as_secs());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(device)
    }
}

fn kernel_words(more: &str) -> String {
    // The processor's own counter is measured at boot, by an emulated processor that a busy host
    // may stop in between: the guest's clock could then run many times too fast. The HPET's rate is
    // known.
    let clock = "tsc=unstable clocksource=hpet no_timer_check";
    format!("console=ttyS0 panic=-1 {clock} rcupdate.rcu_cpu_stall_timeout=60 {more}")
}

/// Processes that were started with `socket`.
fn processes(socket: &Path) -> Vec<String> {
    let socket = socket.display().to_string();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let words = all.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    words.map(|words| words.replace('\0', " ")).filter(|words| words.contains(&socket)).collect()
}

/// The device's process. Ended when dropped.
struct Device {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Device {
    /// Waits for its end. Its log, and what is wrong with it.
    fn finish(&mut self) -> (String, Vec<String>) {
        let deadline = Instant::now() + ENDING;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
                _ => break None,
            }
        };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let mut left = Vec::new();
        match status {
            Some(status) if status.success() => {}
            Some(status) => left.push(format!("the device has ended with {status}, see {}", self.log.display())),
            None => left.push(format!("the device does not end with its VMM, see {}", self.log.display())),
        }
        if !log.contains(NOTHING_LEFT) {
            left.push(format!("the device does not say that {NOTHING_LEFT}, see {}", self.log.display()));
        }
        left.extend(log.lines().filter(|line| line.contains(" ERROR ") || line.contains("panicked")).map(Into::into));
        (log, left)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A guest by hand.
pub fn shell() -> Result<Verdict> {
    ensure!(std::io::stdin().is_terminal(), "a shell needs a terminal; `cargo xtask vm native check` does without");
    let machine = Machine::new(Build::of_checks()?)?;
    let directory = Directory::at(super::directory("shell")?)?;
    let (initrd, mut job) = machine.guest()?;
    job.shell = true;
    let archive = directory.path().join("initrd.cpio");
    initrd.write(&job, &archive)?;
    let wanted = Wanted { name: "shell", memory_mib: 2048, device: &[], commands: &[], more: None };
    let device = machine.device(&wanted, directory.path())?;
    let mut command = machine.command(&archive, &device.socket, wanted.memory_mib);
    command.args(["-append", &kernel_words("quiet"), "-serial", "mon:stdio"]);
    let status = command.status().context("start QEMU")?;
    ensure!(status.success(), "QEMU ended with {status}");
    Ok(Verdict::Clean("the guest has ended".into()))
}
