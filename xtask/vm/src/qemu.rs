// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The virtual machine's command line.
//!
//! The guest's memory is a file that other processes can map (see [`Ram`]). What is not below the
//! hole that a PC has for its devices is above 4 GiB; the GPU knows where the machine divides it.
//! The machine is a q35: the interrupt table of the older "pc" is a program, which takes the
//! sanitizer kernel a minute to run.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use vkfd_guest::REPORT_PORT;
use vkfd_raw::memory_file;

pub const PROGRAM: &str = "qemu-system-x86_64";

/// As the GPU's `--machine` knows it too.
pub const MACHINE: &str = "q35";

/// Mount tag of the directory that a shell's guest has as /host.
pub const SHARE_TAG: &str = "host";

/// A directory that a guest can mount, read-only, by a tag.
#[derive(Clone, PartialEq, Eq)]
pub struct Share {
    pub directory: PathBuf,
    pub tag: &'static str,
}

impl Share {
    /// Adds it to a machine's command line.
    pub fn add(&self, command: &mut Command) {
        let Self { directory, tag } = self;
        let share = format!("local,path={},mount_tag={tag},security_model=none,readonly=on", directory.display());
        command.args(["-virtfs", &share]);
    }
}

/// For every kernel. A panic ends the guest. A second node gives pages a place to migrate to.
/// Nothing checks the clocks against each other: on a busy host an emulated processor is late, and
/// the check would end the boot. For the same reason a processor may stand still for a minute.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=-1 numa=fake=2 tsc=reliable no_timer_check rcupdate.rcu_cpu_stall_timeout=60";

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceleration {
    /// The processor.
    Kvm,
    /// An emulator.
    Tcg,
    /// An emulator of one thread whose clock is the number of instructions executed, one nanosecond
    /// each: the same at any load.
    Counted,
}

impl fmt::Display for Acceleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Acceleration::Kvm => "KVM",
            Acceleration::Tcg => "emulation (TCG)",
            Acceleration::Counted => "emulation that counts instructions (TCG, icount)",
        })
    }
}

/// The guest's memory: a file without a name, which is gone with this process and those that it was
/// given to.
pub struct Ram {
    file: OwnedFd,
    mib: u64,
}

impl Ram {
    pub fn new(mib: u64) -> Result<Self> {
        let file = memory_file::sealed(c"vkfd-guest-ram", mib << 20).context("make the guest's memory")?;
        Ok(Self { file: file.into(), mib })
    }

    /// A path by which processes of this user can open it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }
}

/// A virtual machine.
pub struct Machine<'a> {
    pub acceleration: Acceleration,
    pub processors: u32,
    pub kernel: &'a Path,
    pub initrd: &'a Path,
    /// More words for the kernel's command line.
    pub append: &'a str,
    pub ram: &'a Ram,
    /// The GPUs' sockets.
    pub gpus: &'a [PathBuf],
    pub console: Console<'a>,
    pub shares: &'a [Share],
}

/// Where the guest's console is.
pub enum Console<'a> {
    /// In a file; records come on standard output.
    File(&'a Path),
    /// Here, for typing.
    Terminal,
}

impl Machine<'_> {
    /// Ends when the guest powers off or panics, and when this process ends.
    pub fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", PROGRAM]);
        command.args(["-no-user-config", "-nodefaults", "-no-reboot", "-display", "none"]);
        match self.acceleration {
            Acceleration::Kvm => command.args(["-accel", "kvm", "-cpu", "max"]),
            // Page walks of five levels would only cost time.
            Acceleration::Tcg => command.args(["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]),
            Acceleration::Counted => {
                command.args(["-accel", "tcg,thread=single", "-icount", "shift=0", "-cpu", "max,la57=off"])
            }
        };
        let mib = self.ram.mib;
        command.args([
            "-machine",
            &format!("{MACHINE},memory-backend=ram"),
            "-m",
            &format!("{mib}M"),
            "-smp",
            &self.processors.to_string(),
        ]);
        let ram = format!("memory-backend-file,id=ram,size={mib}M,share=on,mem-path={}", self.ram.path().display());
        command.args(["-object", &ram]);
        command.arg("-kernel").arg(self.kernel).arg("-initrd").arg(self.initrd);
        command.args(["-append", &format!("{COMMAND_LINE} {}", self.append)]);
        command.args(["-device", "virtio-rng-pci"]);
        match self.console {
            Console::File(path) => {
                command.args([
                    "-chardev",
                    &format!("file,id=console,path={}", path.display()),
                    "-serial",
                    "chardev:console",
                ]);
                command.args(["-device", "virtio-serial-pci", "-chardev", "stdio,id=report,signal=off"]);
                command.args(["-device", &format!("virtserialport,chardev=report,name={REPORT_PORT}")]);
            }
            Console::Terminal => {
                command.args(["-serial", "mon:stdio"]);
            }
        }
        self.shares.iter().for_each(|share| share.add(&mut command));
        for (number, socket) in self.gpus.iter().enumerate() {
            command.args(["-chardev", &format!("socket,id=gpu{number},path={}", socket.display())]);
            command.args(["-device", &format!("ivshmem-doorbell,chardev=gpu{number},vectors=1")]);
        }
        command
    }
}
