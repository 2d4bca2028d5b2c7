// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd man`: the manual, made from the command line's own help.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::roff::{roman, Roff};
use clap_mangen::Man;

use crate::format;

/// What every page ends with.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("VKFD_LOG", "How much the driver writes to stderr: off, error, warn (the default), info, debug or trace."),
    (
        "VKFD_NOTIFY",
        "How the driver learns of changed mappings: uffd (userfaultfd), interpose (the program's own calls of libc), none, or auto, the best \
         that there is.",
    ),
    ("VKFD_PRELOAD", "A file to load into programs instead of the library that vkfd has inside."),
    ("XDG_CACHE_HOME", "Where that library is kept, in vkfd/; by default in .cache in the home directory."),
    (
        "XDG_RUNTIME_DIR, TMPDIR",
        "Where a run's private directory may be; otherwise it is in /dev/shm or /tmp. Shared machines are in vkfd/ of the first.",
    ),
];

/// The environment variables, for `vkfd --help`.
pub fn environment() -> String {
    let mut text = String::from("Environment:");
    for (name, meaning) in ENVIRONMENT {
        text.push_str(&format!("\n  {name}"));
        for line in format::wrap(meaning, 90) {
            text.push_str(&format!("\n      {line}"));
        }
    }
    text
}

/// Writes a page for the program and for each command into a directory, which is made.
pub fn write(mut command: Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    // Full names, and `help` is no command that needs a page.
    command = command.disable_help_subcommand(true);
    command.build();
    pages(&command, directory)
}

fn pages(command: &Command, directory: &Path) -> io::Result<()> {
    let visible: Vec<_> = command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    visible.iter().try_for_each(|command| pages(command, directory))?;
    let manual = concat!("vkfd ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(manual).manual("User Commands");
    let mut file = Vec::new();
    man.render_title(&mut file)?;
    man.render_name_section(&mut file)?;
    man.render_synopsis_section(&mut file)?;
    man.render_description_section(&mut file)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut file)?;
    }
    if !visible.is_empty() {
        man.render_subcommands_section(&mut file)?;
    }
    let mut more = Roff::new();
    let after = command.get_after_long_help().map(ToString::to_string).filter(|text| text.starts_with("Examples:"));
    if let Some(text) = after {
        more.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in text.lines().filter(|line| *line != "Examples:") {
            more.text([roman(line)]);
        }
        more.control("fi", []);
    }
    more.control("SH", ["ENVIRONMENT"]);
    for (name, text) in ENVIRONMENT {
        more.control("TP", []).text([roman(name)]).text([roman(text)]);
    }
    more.to_writer(&mut file)?;
    fs::File::create(directory.join(man.get_filename()))?.write_all(&file)
}
