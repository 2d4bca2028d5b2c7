// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the library is that is loaded into programs.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};

const NAME: &str = "libvkfd_preload.so";
/// Names it, before all other places.
const VARIABLE: &str = "VKFD_PRELOAD";

/// The library: as named, or beside this program, in `deps/` (where cargo builds it), or in `../lib/vkfd/`.
pub fn find(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named.map(Path::to_owned).or_else(|| std::env::var_os(VARIABLE).map(Into::into)) {
        let library = std::path::absolute(&named)?;
        return if library.is_file() { Ok(library) } else { bail!("there is no {}", library.display()) };
    }
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [beside.to_owned(), beside.join("deps"), beside.join("../lib/vkfd")];
    let found = places.iter().map(|place| place.join(NAME)).find(|library| library.is_file());
    let Some(found) = found else {
        bail!(
            "there is no {NAME} beside {}, in deps/ or in ../lib/vkfd/: `cargo build --release` makes it (target/release/deps/{NAME}); \
             copy it to one of these places, or put its path into {VARIABLE}",
            program.display()
        );
    };
    Ok(found.canonicalize()?)
}

/// The value of LD_PRELOAD: the library before what is there.
pub fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty() && before != library.as_os_str()) {
        value.push(OsStr::new(":"));
        value.push(before);
    }
    value
}
