// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the library is that is loaded into programs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};

const NAME: &str = "libvkfd_preload.so";
/// Names it, before all other places.
const VARIABLE: &str = "VKFD_PRELOAD";

/// The library: as named, or in `deps/` beside this program (where cargo builds it), beside it, or in `../lib/vkfd/`.
pub fn find(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named.map(Path::to_owned).or_else(|| std::env::var_os(VARIABLE).map(Into::into)) {
        let library = std::path::absolute(&named)?;
        return if library.is_file() { Ok(library) } else { bail!("there is no {}", library.display()) };
    }
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    // deps/ first: where cargo has built the library for itself as well, the one beside this program may be older.
    let places = [beside.join("deps"), beside.to_owned(), beside.join("../lib/vkfd")];
    let found = places.iter().map(|place| place.join(NAME)).find(|library| library.is_file());
    let Some(found) = found else {
        bail!(
            "there is no {NAME} beside {}, in deps/ there, or in ../lib/vkfd/: `cargo build --release` makes it (target/release/deps/{NAME}); \
             copy it to one of these places, or put its path into {VARIABLE}",
            program.display()
        );
    };
    Ok(found.canonicalize()?)
}

/// The value of LD_PRELOAD: the library before what is there. Its parts are separated by spaces and colons, so a path that has some gets another
/// name in `directory`.
pub fn preload(library: &Path, directory: &Path, before: Option<OsString>) -> io::Result<OsString> {
    let mut name = library.to_owned();
    if library.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        name = directory.join(NAME);
        symlink(library, &name)?;
    }
    let mut value = name.into_os_string();
    if let Some(before) = before.filter(|before| !before.is_empty() && *before != value) {
        value.push(OsStr::new(":"));
        value.push(before);
    }
    Ok(value)
}
