// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A boot with AMD's driver: the device's process, and QEMU beside it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use vkfd_guest::{Job, Module, Program, Record, REPORT_PORT};

use super::super::boot::{watch, Directory, Outcome};
use super::super::initrd::Initrd;
use super::super::native::parts::Parts;
use super::super::others;
use super::super::programs::{Programs, INIT, PCI_GPU};
use super::super::qemu::Share;
use super::super::Flavor;
use super::parts::{self, Kernel, DRIVER};
use super::series::Series;
use xtask_base::apt::quiet;
use xtask_base::cargo::{self, Build};

/// Time for the guest to boot, load the driver and end: half a minute on an idle machine.
const AROUND_PROGRAMS: Duration = Duration::from_secs(300);
/// For the device to end after its VMM.
const ENDING: Duration = Duration::from_secs(20);
const STARTING: Duration = Duration::from_secs(60);
/// How much longer everything may take with the sanitizers.
const SANITIZED: u32 = 6;
/// The guest's usual memory.
const MIB: u32 = 1536;

/// Firmware comes by registers and not by a security processor. Of the driver's blocks the first
/// five run: common, memory, interrupts, graphics, copies. A hang is not followed by a reset.
const PARAMETERS: &str = "fw_load_type=0 ip_block_mask=0x1f gpu_recovery=0";

/// Where the kernel looks for firmware.
const FIRMWARE: &str = "/lib/firmware/amdgpu";
/// Where libdrm looks for products' names.
const PRODUCTS: &str = "/usr/share/libdrm/amdgpu.ids";

/// What boots are made of.
pub struct Machine {
    pub parts: Parts,
    pub kernel: Kernel,
    programs: Programs,
    /// Times are multiplied with it.
    slow: u32,
}

/// A guest to boot.
#[derive(Default)]
pub struct Wanted<'a> {
    /// Names its files.
    pub name: &'a str,
    /// More parameters for the driver.
    pub parameters: &'a str,
    /// Programs of this machine that go into the guest, with their libraries.
    pub programs: &'a [PathBuf],
    /// Libraries that programs load by name.
    pub libraries: &'a [&'a Path],
    /// Shell commands, each with its seconds.
    pub commands: &'a [(&'a str, u64)],
    /// Programs that others wrote, which run before the commands, and what they load by name.
    pub others: &'a [others::Wanted],
    pub others_libraries: &'a [&'a str],
    /// The guest's memory, if it is not the usual.
    pub memory_mib: Option<u32>,
}

/// What came of it.
pub struct Ran {
    pub outcome: Outcome,
    /// What the device has done.
    pub summary: Summary,
    /// What is wrong with the device, or with its end.
    pub troubles: Vec<String>,
    /// Where the logs are.
    pub directory: PathBuf,
}

/// What the device says that it has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Its first line.
    pub counts: String,
    /// Registers that were read and that it does not model.
    pub unmodelled: BTreeSet<String>,
    /// Rings of the driver that stand still.
    pub halted: Vec<String>,
    /// Kinds of packets.
    pub packets: usize,
    /// The last accesses and interrupts.
    pub last: Vec<String>,
}

impl Summary {
    fn read(text: &str) -> Self {
        let mut summary = Self::default();
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("not modelled", name)) => {
                    summary.unmodelled.insert(name.into());
                }
                Some(("halted", ring)) => summary.halted.push(ring.into()),
                Some(("packet", _)) => summary.packets += 1,
                Some(("last", step)) => summary.last.push(step.into()),
                _ => summary.counts = line.into(),
            }
        }
        summary
    }
}

impl Machine {
    /// Gets the parts, with the distribution's kernel or that of a series, and builds the programs.
    pub fn new(series: Option<&Series>) -> Result<Self> {
        Self::of(Build::of_checks()?, series)
    }

    /// The same as released, so that times can be compared.
    pub fn to_measure(series: Option<&Series>) -> Result<Self> {
        Self::of(Build::Released, series)
    }

    fn of(build: Build, series: Option<&Series>) -> Result<Self> {
        let (parts, kernel) = series.map_or_else(parts::get, Series::get)?;
        let slow = if series.is_some_and(|series| series.flavor == Flavor::Debug) { SANITIZED } else { 1 };
        let programs = Programs::build(build, &[INIT, PCI_GPU])?;
        Ok(Self { parts, kernel, programs, slow })
    }

    /// The topology's files as vkfd's own driver would show them.
    pub fn topology(&self) -> Result<String> {
        quiet(Command::new(self.programs.path(PCI_GPU)?).arg("--topology"))
    }

    /// Boots, loads the driver, and runs the programs of others and the commands.
    pub fn boot(&self, wanted: &Wanted<'_>, on_record: impl FnMut(&Record) -> bool) -> Result<Ran> {
        let directory = Directory::at(cargo::target()?.join("vm").join(DRIVER).join(wanted.name))?;
        let path = directory.path();
        let firmware = path.join("firmware");
        quiet(Command::new(self.programs.path(PCI_GPU)?).arg("--write-firmware").arg(&firmware))?;
        let (initrd, job, shares) = self.guest(wanted, &firmware)?;
        let archive = path.join("initrd.cpio");
        initrd.write(&job, &archive)?;
        let (console, complaints) = (path.join("console.log"), path.join("qemu.log"));
        fs::write(&console, "").with_context(|| format!("write {}", console.display()))?;
        let mut device = self.device(path)?;
        let mut command = self.command(wanted.memory_mib.unwrap_or(MIB), &archive, &device.socket, &shares);
        command.args(["-chardev", &format!("file,id=console,path={}", console.display())]);
        let programs: u64 = job.programs.iter().map(|program| program.seconds).sum();
        let limit = AROUND_PROGRAMS * self.slow + Duration::from_secs(programs);
        let watched = watch(command, &complaints, limit, on_record)?;
        let (summary, troubles) = device.finish();
        let outcome = watched.outcome(&console, &complaints, Vec::new())?;
        Ok(Ran { outcome, summary, troubles, directory: path.into() })
    }

    fn guest(&self, wanted: &Wanted<'_>, firmware: &Path) -> Result<(Initrd, Job, Vec<Share>)> {
        let mut initrd = Initrd::new(self.programs.path(INIT)?)?;
        initrd.add_files(firmware, Path::new(FIRMWARE), false)?;
        if Path::new(PRODUCTS).exists() {
            initrd.add_file(Path::new(PRODUCTS), Path::new(PRODUCTS));
        }
        for program in wanted.programs {
            initrd.add_program(program)?;
        }
        for library in wanted.libraries {
            initrd.add_library(library)?;
        }
        let mut job = Job::default();
        let mut shares = Vec::new();
        others::add(&mut initrd, &mut job, &mut shares, wanted.others_libraries, false, wanted.others)?;
        for program in &mut job.programs {
            program.seconds *= u64::from(self.slow);
        }
        let sharing = if shares.is_empty() { &[][..] } else { &self.kernel.sharing };
        for (name, file) in sharing.iter().chain(&self.kernel.modules) {
            let file = initrd.add_module(file)?;
            let own = name == DRIVER;
            let parameters = if own { format!("{PARAMETERS} {}", wanted.parameters) } else { String::new() };
            // A second probe is not what these boots are for.
            job.modules.push(Module { name: name.clone(), file, parameters: parameters.trim().into(), stays: true });
        }
        for (command, seconds) in wanted.commands {
            job.programs.push(Program {
                name: (*command).into(),
                argv: ["/bin/sh", "-c", command].map(Into::into).into(),
                env: Vec::new(),
                seconds: *seconds * u64::from(self.slow),
            });
        }
        Ok((initrd, job, shares))
    }

    fn command(&self, mib: u32, archive: &Path, socket: &Path, shares: &[Share]) -> Command {
        let qemu = self.parts.qemu();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(qemu.get_program()).args(qemu.get_args());
        for (name, value) in qemu.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["-no-user-config", "-nodefaults", "-no-reboot", "-display", "none"]);
        // One thread: with more, a stock kernel that patches its code at boot can die of it under
        // emulation.
        command.args(["-accel", "tcg,thread=single", "-cpu", "max,la57=off", "-smp", "1"]);
        command.args(["-machine", "q35,memory-backend=ram", "-m", &format!("{mib}M")]);
        command.args(["-object", &format!("memory-backend-memfd,id=ram,size={mib}M,share=on")]);
        command.arg("-kernel").arg(&self.kernel.image).arg("-initrd").arg(archive);
        let clock = "tsc=unstable clocksource=hpet no_timer_check mitigations=off rcupdate.rcu_cpu_stall_timeout=60";
        command.args(["-append", &format!("console=ttyS0 panic=-1 loglevel=8 {clock}")]);
        command.args(["-serial", "chardev:console", "-device", "virtio-serial-pci"]);
        command.args(["-chardev", "stdio,id=report,signal=off"]);
        command.args(["-device", &format!("virtserialport,chardev=report,name={REPORT_PORT}")]);
        let device = serde_json::json!({
            "driver": "vfio-user-pci",
            "socket": {"type": "unix", "path": socket.display().to_string()},
        });
        command.args(["-device", &device.to_string()]);
        shares.iter().for_each(|share| share.add(&mut command));
        command
    }

    fn device(&self, directory: &Path) -> Result<Device> {
        let (socket, log, summary) = (directory.join("gpu"), directory.join("gpu.log"), directory.join("gpu.summary"));
        ensure!(socket.as_os_str().len() < 100, "{}: too long for a socket", socket.display());
        for path in [&socket, &summary] {
            if path.exists() {
                fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
            }
        }
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let errors = file.try_clone().context("share the device's log")?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(self.programs.path(PCI_GPU)?).arg("--once");
        command.arg("--socket").arg(&socket).arg("--summary").arg(&summary);
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let mut device = Device { child: command.spawn().context("start the device")?, socket, log, summary };
        let deadline = Instant::now() + STARTING;
        while !device.socket.exists() {
            if let Some(status) = device.child.try_wait().context("wait for the device")? {
                let log = fs::read_to_string(&device.log).unwrap_or_default();
                bail!("the device has ended ({status}): {}", log.trim());
            }
            ensure!(Instant::now() < deadline, "the device has made no socket in {} s", STARTING.as_secs());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(device)
    }
}

/// The device's process. Ended when dropped.
struct Device {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    summary: PathBuf,
}

impl Device {
    /// Waits for its end: what it has done, and what is wrong.
    fn finish(&mut self) -> (Summary, Vec<String>) {
        let deadline = Instant::now() + ENDING;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
                _ => break None,
            }
        };
        let mut troubles = Vec::new();
        match status {
            Some(status) if status.success() => {}
            Some(status) => troubles.push(format!("the device has ended with {status}, see {}", self.log.display())),
            None => troubles.push(format!("the device does not end with its VMM, see {}", self.log.display())),
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let bad = |line: &&str| [" WARN ", " ERROR ", "panicked"].iter().any(|sign| line.contains(sign));
        troubles.extend(log.lines().filter(bad).map(|line| format!("the device: {}", line.trim())));
        (Summary::read(&fs::read_to_string(&self.summary).unwrap_or_default()), troubles)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn the_devices_words_are_read() {
        let text = "registers: 5 reads, 6 writes; 7 doorbells, 8 interrupts\npacket: PM4 NOP 3\n\
                    not modelled: GC.X\nhalted: ring of SDMA1\nlast: 1.5 s: read GC.X = 0x1\n";
        let summary = Summary::read(text);
        assert!(summary.counts.starts_with("registers: 5") && summary.unmodelled.contains("GC.X"));
        assert_eq!((summary.halted, summary.packets), (vec!["ring of SDMA1".to_owned()], 1));
        assert_eq!(summary.last, ["1.5 s: read GC.X = 0x1"]);
    }
}
