// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask calls`: docs/kfd-calls.md, made from the driver's dispatch.
//!
//! Mechanism: the commands come from `vkfd-uapi`, the answers from the `match` in
//! driver/src/calls/ioctl.rs. An arm is complete, unless a comment `// Checked only: WHY` stands
//! above it, or the arm is an error. A command without an arm is ENOTTY.
//!
//! Limits: the reader knows arms of the form `Some(c::Call::NAME) =>`, also with several names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{ensure, Context, Result};
use vkfd_uapi::command;

use xtask_base::{tree, Verdict};

/// Check or write the page that says which KFD calls are complete, checked only or refused
///
/// Exit status: 0 clean or written, 1 the page is not what the driver's dispatch says, 2 cannot
/// check.
#[derive(clap::Args)]
pub struct Args {
    /// Write the page
    #[arg(long)]
    write: bool,
}

const DISPATCH: &str = "driver/src/calls/ioctl.rs";
const PAGE: &str = "docs/kfd-calls.md";
const CHECKED: &str = "// Checked only: ";
const INTRO: &str = "\
<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->
<!-- Made by `cargo xtask calls --write` from driver/src/calls/ioctl.rs; do not edit. -->
# Which KFD calls there are

The driver reports version 1.15 of KFD's interface and knows the commands of `kfd_ioctl.h` up to
Linux 7.3 (1.23).

- *Complete*: the call does what KFD's does, errors included.
- *Checked only*: the driver checks the arguments as KFD does; the software GPU has nothing to set.
- *Refused*: the call fails with the errno that is named.

Batch userptr (0x28 as the word 0xC0304B28, and the flag of ALLOC_MEMORY_OF_GPU) is complete; so are
vkfd's own calls, which begin at 0x80 (`uapi/src/vkfd.rs`).

";
/// What the table adds about single calls.
const REMARKS: [(&str, &str); 2] = [
    ("CREATE_PROCESS", "the kernel module serves it in the file, before the driver"),
    ("PROFILER", "batch userptr v2 uses the same number with another size"),
];

/// What the driver does with a command.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    Complete,
    /// With the reason.
    Checked(String),
    /// With the errno.
    Refused(String),
}

pub fn run(args: &Args) -> Result<Verdict> {
    let (page, is) = (page(&read(DISPATCH)?)?, read(PAGE).unwrap_or_default());
    if args.write {
        fs::write(tree::root().join(PAGE), page).with_context(|| format!("write {PAGE}"))?;
    } else if page != is {
        return Ok(Verdict::Findings(vec![stale()]));
    }
    Ok(Verdict::Clean(format!("{PAGE} is what {DISPATCH} says")))
}

/// The finding of `stray`, if the page is not what the dispatch says.
pub fn check() -> Result<Option<String>> {
    Ok((page(&read(DISPATCH)?)? != read(PAGE).unwrap_or_default()).then(stale))
}

fn stale() -> String {
    format!("{PAGE} is not what {DISPATCH} says: `cargo xtask calls --write`")
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(tree::root().join(path)).with_context(|| format!("read {path}"))
}

fn page(dispatch: &str) -> Result<String> {
    let answers = answers(dispatch);
    ensure!(answers.len() > 30, "{DISPATCH}: only {} commands were found in it", answers.len());
    let mut page = format!("{INTRO}| number | call | since | answer | remarks |\n| --- | --- | --- | --- | --- |\n");
    let mut last = None;
    for known in command::ALL {
        let number = known.command.number();
        if last.replace(number) == Some(number) {
            continue;
        }
        let names = command::ALL.iter().filter(|other| other.command.number() == number).map(|other| other.name);
        let answer = names.clone().find_map(|name| answers.get(name)).cloned();
        let answer = answer.unwrap_or_else(|| Answer::Refused("ENOTTY".into()));
        let (word, mut remark) = match answer {
            Answer::Complete => ("complete".to_owned(), String::new()),
            Answer::Checked(why) => ("checked only".to_owned(), why),
            Answer::Refused(errno) => (format!("refused: {errno}"), String::new()),
        };
        if let Some((_, more)) = REMARKS.iter().find(|(name, _)| *name == known.name) {
            remark.push_str(more);
        }
        let _ = writeln!(page, "| {number:#04x} | {} | 1.{} | {word} | {remark} |", known.name, known.since);
    }
    Ok(page)
}

/// What each command's arm does, by the constant's name.
fn answers(dispatch: &str) -> BTreeMap<String, Answer> {
    let mut answers = BTreeMap::new();
    let mut checked = None;
    let mut pending: Vec<String> = Vec::new();
    let mut block = false;
    for line in dispatch.lines().map(str::trim) {
        if let Some(why) = line.strip_prefix(CHECKED) {
            checked = Some(why.trim_end_matches('.').to_owned());
        }
        let pattern = line.split("=>").next().unwrap_or_default();
        if line.starts_with("Some(c::Call::") || line.starts_with("c::Call::") || line.starts_with("| c::Call::") {
            let word =
                |rest: &str| rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect::<String>();
            pending.extend(pattern.split("c::Call::").skip(1).map(word));
        }
        let body = match line.split_once("=>") {
            // The answer of a block is on its first line.
            Some((_, body)) if body.trim() == "{" => {
                block = true;
                continue;
            }
            Some((_, body)) => body,
            None if std::mem::take(&mut block) => line,
            None => continue,
        };
        let errno = body.split_once("Err(Errno::").map(|(_, rest)| rest.split('.').next().unwrap_or_default());
        let answer = match (errno, checked.take()) {
            (Some(errno), _) => Answer::Refused(errno.to_owned()),
            (None, Some(why)) => Answer::Checked(why),
            (None, None) => Answer::Complete,
        };
        answers.extend(pending.drain(..).map(|name| (name, answer.clone())));
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_are_answers() {
        let dispatch = "Some(c::Call::GET_VERSION) => call.with(|a| {\n})\n// Checked only: it has no caches.\n\
                        Some(c::Call::SET_MEMORY_POLICY) => call.with(|a| b),\n// As KFD.\nSome(c::Call::CRIU_OP) => Err(Errno::EACCES.into()),\n\
                        Some(\nc::Call::DBG_TRAP\n| c::Call::DBG_OLD,\n) => Err(Errno::EPERM.into()),\nSome(\nc::Call::PROFILER) => {\nErr(Errno::ENOTTY.into())\n}\n";
        let expected = [
            ("CRIU_OP", Answer::Refused("EACCES".into())),
            ("DBG_OLD", Answer::Refused("EPERM".into())),
            ("DBG_TRAP", Answer::Refused("EPERM".into())),
            ("GET_VERSION", Answer::Complete),
            ("PROFILER", Answer::Refused("ENOTTY".into())),
            ("SET_MEMORY_POLICY", Answer::Checked("it has no caches".into())),
        ];
        let expected: BTreeMap<_, _> = expected.map(|(name, answer)| (name.to_owned(), answer)).into();
        assert_eq!(answers(dispatch), expected);
    }

    #[test]
    fn a_dispatch_that_cannot_be_read_is_an_error() {
        assert!(page("fn dispatch() {}").is_err());
    }
}
