// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HIP programs with many tests each, by subject: memory, the order of work, waves, and the answers
//! of HIP.
//!
//! Mechanism: a program says "right" after each of its tests, which compare with the host's result.
//! A control runs one of the tests on a machine that is broken, and wants the words by which the
//! test notices.

use anyhow::Result;
use vkfd_sabotage::Switch;

use super::hip_kernels::TARGETS;
use super::source::Source;
use super::{Client, Report, Stand};

/// A program.
struct Program {
    source: Source,
    about: &'static str,
    /// How many tests it has.
    tests: usize,
    /// Options of `vkfd run`, a machine each.
    machines: &'static [&'static [&'static str]],
    controls: &'static [Control],
}

/// A test on a broken machine.
struct Control {
    switch: Switch,
    test: &'static str,
    /// What the test says.
    sign: &'static str,
    what: &'static str,
}

const PACKAGES: &[&str] = &["hipcc", "libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"];
const EACH: &[&[&str]] = &[&["--target", "gfx900"], &["--target", "gfx90a"], &["--target", "gfx1030"]];

const fn client(name: &'static str, check: fn(&Stand, &mut Report) -> Result<()>) -> Client {
    Client { name, packages: PACKAGES, check }
}

const fn source(file: &'static str) -> Source {
    Source { file, arguments: TARGETS }
}

pub const MEMORY: Client = client("hip-memory", |stand, report| {
    const PROGRAM: Program = Program {
        source: source("tests/clients/hip/hip_memory.hip"),
        about: "copies, memset, symbols, host and managed memory",
        tests: 9,
        machines: EACH,
        controls: &[
            control(Switch::ShortCopy, "line", "FAILED: a line", "a GPU that leaves the last byte of a copy out"),
            control(
                Switch::ShortCopy,
                "box",
                "FAILED: a box",
                "a GPU that leaves the last byte of a copy out, in a box",
            ),
            control(
                Switch::ShortGrid,
                "registered",
                "FAILED: memory registered",
                "a GPU that leaves the last work-item out",
            ),
        ],
    };
    PROGRAM.check(stand, report)
});

pub const ORDER: Client = client("hip-order", |stand, report| {
    const PROGRAM: Program = Program {
        source: source("tests/clients/hip/hip_order.hip"),
        about: "streams, events, functions of the host, graphs, several GPUs",
        tests: 7,
        machines: &[&["--target", "gfx900"], &["--target", "gfx90a", "--gpus", "2"], &["--target", "gfx1030"]],
        controls: &[
            control(Switch::ShortGrid, "streams", "FAILED: two kernels", "a GPU that leaves the last work-item out"),
            control(
                Switch::ShortGrid,
                "built",
                "FAILED: a graph",
                "a GPU that leaves the last work-item out, in a graph",
            ),
        ],
    };
    PROGRAM.check(stand, report)
});

pub const WAVES: Client = client("hip-waves", |stand, report| {
    const PROGRAM: Program = Program {
        source: source("tests/clients/hip/hip_waves.hip"),
        about: "shuffles, votes, atomics by scope, groups, launch bounds, arithmetic",
        tests: 8,
        machines: EACH,
        controls: &[
            control(
                Switch::ShortGrid,
                "votes",
                "FAILED: a ballot",
                "a GPU that leaves the last work-item out, in a vote",
            ),
            control(
                Switch::ShortGrid,
                "atomics",
                "FAILED: atomic",
                "a GPU that leaves the last work-item out, in atomics",
            ),
        ],
    };
    PROGRAM.check(stand, report)
});

pub const ANSWERS: Client = client("hip-answers", |stand, report| {
    const PROGRAM: Program = Program {
        source: source("tests/clients/hip/hip_answers.hip"),
        about: "errors, refused launches, modules",
        tests: 5,
        machines: EACH,
        controls: &[control(
            Switch::ShortGrid,
            "launches",
            "FAILED: a kernel after",
            "a GPU that leaves the last work-item out, after refused launches",
        )],
    };
    PROGRAM.check(stand, report)
});

const fn control(switch: Switch, test: &'static str, sign: &'static str, what: &'static str) -> Control {
    Control { switch, test, sign, what }
}

impl Program {
    fn check(&self, stand: &Stand, report: &mut Report) -> Result<()> {
        let program = stand.compile(&self.source)?;
        for options in self.machines {
            let ran = stand.run(options, &program, &[], &[])?;
            let right = ran.succeeded() && all_right(&ran.stdout, self.tests);
            report.expect(right, &format!("HIP, {}: {}", options.join(" "), self.about), &ran);
        }
        for Control { switch, test, sign, what } in self.controls {
            let sound = stand.broken("", &[], &program, &[test])?;
            let broken = stand.broken(switch.name(), &[], &program, &[test])?;
            let noticed = all_right(&sound.stdout, 1) && !broken.succeeded() && broken.stdout.contains(sign);
            report.expect(noticed, &format!("control: {what}, is noticed by the test {test}"), &broken);
        }
        Ok(())
    }
}

/// Whether so many tests said that they are right, and the program came to its end.
fn all_right(stdout: &str, tests: usize) -> bool {
    stdout.matches(": right\n").count() == tests && stdout.ends_with("ok\n")
}

#[cfg(test)]
mod tests {
    use super::all_right;

    #[test]
    fn a_test_that_is_missing_is_noticed() {
        assert!(all_right("a: right\nb: right\nok\n", 2));
        assert!(!all_right("a: right\nok\n", 2) && !all_right("a: right\nb: right\n", 2));
    }
}
