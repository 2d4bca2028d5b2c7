// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GPUs: a process outside of the guest that has the guest's memory, and a socket a GPU that
//! QEMU's ivshmem-doorbell connects to.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use vkfd_targets::Target;

use super::qemu::{self, Ram};

/// What an address of a Unix socket has room for, less what the process appends.
const SOCKET_PATH_BYTES: usize = 100;

const STARTING: Duration = Duration::from_secs(60);

/// Why the process that runs the GPUs may end: the guest has ended, or its driver was unloaded.
const EXPECTED_ENDS: [&str; 2] = ["its guest has gone", "the driver wants a reset"];

/// A target on a command line.
pub fn target() -> impl TypedValueParser<Value = Target> {
    PossibleValuesParser::new(Target::ALL.map(Target::name)).try_map(|name| name.parse::<Target>())
}

/// GPUs to start.
#[derive(Clone)]
pub struct Wanted {
    pub program: PathBuf,
    pub count: u32,
    /// Of each.
    pub vram_mib: u64,
    pub target: Target,
    /// What a sabotaged program breaks.
    pub sabotage: Option<&'static str>,
    /// In the guest's RAM, from this MiB on; else in their BARs.
    pub vram_in_ram_mib: Option<u64>,
}

/// Running GPUs. Ended when dropped.
pub struct Gpus {
    child: Child,
    sockets: Vec<PathBuf>,
    log: PathBuf,
}

impl Gpus {
    /// Starts them with their files in `directory`, and waits until QEMU can connect.
    pub fn start(wanted: &Wanted, ram: &Ram, directory: &Path) -> Result<Self> {
        let socket = directory.join("gpu");
        ensure!(
            socket.as_os_str().len() < SOCKET_PATH_BYTES,
            "{}: too long for a socket; set CARGO_TARGET_DIR to a directory with a shorter path",
            socket.display()
        );
        let sockets: Vec<PathBuf> = match wanted.count {
            1 => vec![socket.clone()],
            count => (0..count).map(|number| directory.join(format!("gpu.{number}"))).collect(),
        };
        for socket in &sockets {
            // What an earlier process has left would be taken for the new one's.
            if socket.exists() {
                fs::remove_file(socket).with_context(|| format!("remove {}", socket.display()))?;
            }
        }
        let log = directory.join("gpu.log");
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(&wanted.program)
            .arg("--socket")
            .arg(&socket)
            .arg("--ram")
            .arg(ram.path());
        command.args([
            "--machine",
            qemu::MACHINE,
            "--vram",
            &format!("{}M", wanted.vram_mib),
            "--gpus",
            &wanted.count.to_string(),
            "--target",
            wanted.target.name(),
        ]);
        if let Some(what) = wanted.sabotage {
            command.args(["--sabotage", what]);
        }
        if let Some(mib) = wanted.vram_in_ram_mib {
            command.args(["--vram-in-ram", &format!("{mib}M")]);
        }
        let errors = file.try_clone().context("share the GPU's log")?;
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn().context("start the GPU")?;
        let mut gpus = Self { child, sockets, log };
        let deadline = Instant::now() + STARTING;
        while !gpus.sockets.iter().all(|socket| socket.exists()) {
            if let Some(end) = gpus.ended() {
                bail!("{end}");
            }
            if Instant::now() >= deadline {
                bail!("the GPU has made no socket in {} s; its log is {}", STARTING.as_secs(), gpus.log.display());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(gpus)
    }

    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// What went wrong in it, for all that its log and its end say.
    pub fn troubles(&mut self) -> Vec<String> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let mut troubles: Vec<String> = self.ended().into_iter().collect();
        troubles.extend(troubles_in(&log).map(|line| format!("{}: {line}", self.log.display())));
        troubles
    }

    /// If it has ended by itself, which it must not: how, and its last words.
    fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().last().unwrap_or("nothing");
        Some(format!("the GPU process has ended ({status}), saying: {last}"))
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Warnings and errors, panics, and ends of the process that runs the GPUs, which is started again
/// by itself.
fn troubles_in(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter(|line| {
        let words = [" WARN ", " ERROR ", "panicked at"];
        let ended = line.contains("device process: ") && !EXPECTED_ENDS.iter().any(|why| line.contains(why));
        ended || words.iter().any(|word| line.contains(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_died_complained_or_panicked_is_in_trouble() {
        let healthy = "2026-01-01T00:00:00Z  INFO vkfd_device::server: device process connected pid=5 epoch=1\n\
            2026-01-01T00:00:01Z  INFO vkfd_device::server: device process: its guest has gone pid=5 epoch=1\n";
        assert_eq!(troubles_in(healthy).count(), 0);
        for bad in [
            "2026-01-01T00:00:00Z  INFO vkfd_device::server: device process: it ended pid=5 epoch=1 status=101",
            "2026-01-01T00:00:00Z  WARN vkfd_device::ram: guest RAM cannot be touched pa=0x1000",
            "2026-01-01T00:00:00Z ERROR vkfd_device::server: device process does not end pid=5",
            "thread 'gpu' panicked at device/src/device.rs:1:1:",
        ] {
            assert_eq!(troubles_in(&format!("{healthy}{bad}\n{healthy}")).collect::<Vec<_>>(), [bad]);
        }
    }
}
