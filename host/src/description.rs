// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A machine in words, such as
//! `gpus=4 target=gfx90a vram=1073741824 threads=0 units=16 coherent xnack`: what `vkfd run` tells
//! the library that it loads into a program, through an environment variable.

use crate::error::HostError;
use crate::machine::MachineOptions;
use crate::shape::Shape;
use std::fmt;
use std::str::FromStr;
use vkfd_driver::targets::Target;
use vkfd_gpu::check::Checks;
use vkfd_gpu::{Schedule, Translate};
use vkfd_sabotage::Switches;

/// The variable that has a [`Description`].
pub const MACHINE_VARIABLE: &str = "VKFD_MACHINE";
/// The variable that has the private directory's path. Below it are the files that a program finds
/// in `/sys`, `/dev` and `/proc`.
pub const DIRECTORY_VARIABLE: &str = "VKFD_DIRECTORY";
/// The most bytes of that path: hooks put it before others, on the caller's stack.
pub const LONGEST_DIRECTORY: usize = 1024;
/// The file in it that has a byte once the program has asked for something of the machine.
pub const USED_FILE: &str = "used";
/// The file in it that has a byte once the program has opened KFD's device.
pub const OPENED_FILE: &str = "opened";
/// The file in it that has a byte once the program has taken a GPU.
pub const ACQUIRED_FILE: &str = "acquired";
/// The variable that has the path of the file to record calls in, if they are to be.
pub const TRACE_VARIABLE: &str = "VKFD_TRACE";
/// The variable that is set when that file has JSON lines.
pub const TRACE_JSON_VARIABLE: &str = "VKFD_TRACE_JSON";

/// The variable that has the way to the host's machine, where that is the one: a virtio-gpu's
/// render node, or a socket.
pub const FORWARD_VARIABLE: &str = "VKFD_FORWARD";

/// The variable that says how much of the driver's messages is shown.
pub const LOG_VARIABLE: &str = "VKFD_LOG";
/// What it may be.
pub const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// The variable that has the path of the file for kernels' costs, if they are to be written.
pub const PROFILE_VARIABLE: &str = "VKFD_PROFILE";
/// The variable that has the path of the directory for timelines, if they are to be written.
pub const TIMELINE_VARIABLE: &str = "VKFD_TIMELINE";

/// The variable that has the path of the directory for findings of checks.
pub const FINDINGS_VARIABLE: &str = "VKFD_FINDINGS";
/// The variable by which AMD's runtime learns of its tools: libraries that change its functions.
pub const TOOLS_VARIABLE: &str = "HSA_TOOLS_LIB";
/// The variable that is set when the runtime waits for the GPU as it wants to.
pub const SPIN_VARIABLE: &str = "VKFD_SPIN";

/// What `VKFD_SABOTAGE` says is broken of the driver, the GPUs and this process; these switches of
/// the process are on from now on.
///
/// # Errors
/// What is no such switch.
#[cfg(debug_assertions)]
pub fn sabotage_from_environment() -> Result<Switches, HostError> {
    use vkfd_sabotage::Part;

    let text = std::env::var("VKFD_SABOTAGE").unwrap_or_default();
    let parts = [Part::Driver, Part::Gpu, Part::Cu, Part::Host, Part::Program];
    let parsed = vkfd_sabotage::parse(&text, &parts, vkfd_gpu::sabotage_value);
    let parsed = parsed.map_err(|bad| HostError::Option(format!("VKFD_SABOTAGE: {bad}")))?;
    vkfd_sabotage::process().set(parsed);
    Ok(parsed)
}

/// Nothing is broken, whatever the environment says.
#[cfg(not(debug_assertions))]
pub fn sabotage_from_environment() -> Result<Switches, HostError> {
    Ok(Switches::NONE)
}

/// What a machine is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Description {
    pub gpus: u32,
    /// What they are.
    pub target: Target,
    /// Bytes of VRAM each, a multiple of 2 MiB.
    pub vram: u64,
    /// Bytes of it that SVM memory may have; `None`: all.
    pub svm_vram: Option<u64>,
    /// Whether their page faults are retried.
    pub xnack: bool,
    /// Whether the topology shows processors and GPUs as one coherent space.
    pub coherent: bool,
    /// Threads of each GPU that run a kernel; 0 for as many as there are processors.
    pub threads: usize,
    /// A kernel ends if it relies on something that the engine could do and hardware does not.
    pub strict: bool,
    /// Whether hot code of kernels is translated to code of the host.
    pub translate: Translate,
    /// Whether translated code is listed for perf.
    pub perf_map: bool,
    /// In which order kernels' work-groups and waves run.
    pub schedule: Schedule,
    /// What kernels are checked for.
    pub checks: Checks,
    /// The GPUs' parts with another description than their target's.
    pub shape: Shape,
}

impl Default for Description {
    /// One gfx900 with 1 GiB.
    fn default() -> Self {
        let (gpus, target, vram) = (1, Target::Gfx900, 1 << 30);
        let (xnack, coherent, strict) = (false, false, false);
        Self {
            gpus,
            target,
            vram,
            svm_vram: None,
            xnack,
            coherent,
            threads: 0,
            strict,
            translate: Translate::default(),
            perf_map: false,
            schedule: Schedule::Usual,
            checks: Checks::default(),
            shape: Shape::default(),
        }
    }
}

impl Description {
    /// Options for such a machine, for programs that open devices by path.
    pub fn options(&self) -> MachineOptions {
        let mut options = MachineOptions {
            gpus: self.gpus,
            vram_bytes: self.vram,
            target: self.target,
            shape: self.shape,
            xnack_capable: self.xnack,
            device_file: true,
            threads: self.threads,
            strict: self.strict,
            translate: self.translate,
            perf_map: self.perf_map,
            schedule: self.schedule,
            ..MachineOptions::default()
        };
        options.driver.svm_vram = self.svm_vram;
        options
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gpus,
            target,
            vram,
            svm_vram,
            xnack,
            coherent,
            threads,
            strict,
            translate,
            perf_map,
            schedule,
            checks,
            shape,
        } = self;
        write!(f, "gpus={gpus} target={target} vram={vram} threads={threads}{shape}")?;
        if let Some(bytes) = svm_vram {
            write!(f, " svm-vram={bytes}")?;
        }
        if checks.any() {
            write!(f, " checks={checks}")?;
        }
        if *schedule != Schedule::Usual {
            write!(f, " schedule={schedule}")?;
        }
        let (interpreted, checked) = (*translate == Translate::Off, *translate == Translate::Checked);
        let flags = [
            (*xnack, " xnack"),
            (*coherent, " coherent"),
            (*strict, " strict"),
            (interpreted, " no-translate"),
            (checked, " check-translation"),
            (*perf_map, " perf-map"),
        ];
        flags.into_iter().filter(|(on, _)| *on).try_for_each(|(_, word)| f.write_str(word))
    }
}

impl FromStr for Description {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let mut described = Self { xnack: false, ..Self::default() };
        for word in text.split_ascii_whitespace() {
            let bad = || HostError::Option(format!("{word:?} describes nothing of a machine"));
            match word.split_once('=') {
                Some(("gpus", value)) => described.gpus = value.parse().map_err(|_| bad())?,
                Some(("threads", value)) => described.threads = value.parse().map_err(|_| bad())?,
                Some(("vram", value)) => described.vram = value.parse().map_err(|_| bad())?,
                Some(("checks", value)) => described.checks = value.parse().map_err(|_| bad())?,
                Some(("schedule", value)) => described.schedule = value.parse().map_err(|_| bad())?,
                Some(("svm-vram", value)) => described.svm_vram = Some(value.parse().map_err(|_| bad())?),
                Some(("target", value)) => {
                    let unknown = |error| HostError::Option(format!("{value:?} is {error}"));
                    described.target = value.parse().map_err(unknown)?;
                }
                Some((part, value)) => {
                    let part = described.shape.part(part).ok_or_else(bad)?;
                    *part = Some(value.parse().map_err(|_| bad())?);
                }
                None if word == "xnack" => described.xnack = true,
                None if word == "coherent" => described.coherent = true,
                None if word == "strict" => described.strict = true,
                None if word == "perf-map" => described.perf_map = true,
                None if word == "no-translate" => described.translate = Translate::Off,
                None if word == "check-translation" => described.translate = Translate::Checked,
                _ => return Err(bad()),
            }
        }
        Ok(described)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for described in [
            Description::default(),
            Description {
                gpus: 2,
                target: Target::Gfx1100,
                vram: 2 << 20,
                svm_vram: Some(4 << 20),
                xnack: false,
                coherent: true,
                threads: 3,
                strict: true,
                translate: Translate::Checked,
                perf_map: true,
                schedule: Schedule::Random(17),
                checks: Checks::ALL,
                shape: Shape { units: Some(20), memory_mhz: Some(900), ..Shape::default() },
            },
            Description { xnack: true, translate: Translate::Off, ..Description::default() },
        ] {
            assert_eq!(described.to_string().parse::<Description>().unwrap(), described);
        }
        for bad in ["gpus=x", "what", "target=gfx1", "gpus", "units=many", "wheels=4"] {
            assert!(bad.parse::<Description>().is_err(), "{bad}");
        }
    }
}
