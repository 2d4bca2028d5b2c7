// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is installed: ROCm's libraries, a real KFD, and what guests need.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Check, State};
use crate::targets;

pub(super) fn checks() -> Vec<Check> {
    vec![runtime(), hip(), device(), guests()]
}

/// The directories of libraries: the loader's, the distribution's, and AMD's.
fn places() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> =
        std::env::var_os("LD_LIBRARY_PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    places.extend(["/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from));
    places.push("/opt/rocm/lib".into());
    let versions = fs::read_dir("/opt").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut versions: Vec<_> = versions
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rocm-")))
        .collect();
    versions.sort();
    places.extend(versions.into_iter().map(|path| path.join("lib")));
    places
}

/// The file behind a library's name.
fn library(places: &[PathBuf], name: &str) -> Option<PathBuf> {
    places.iter().find_map(|place| {
        let entries = fs::read_dir(place).ok()?;
        let named = entries.flatten().map(|entry| entry.path());
        // With a version: what programs were linked with.
        let mut named: Vec<_> = named.filter(|path| version(path, name).is_some()).collect();
        named.sort();
        named.pop()?.canonicalize().ok()
    })
}

/// What follows a library's name in that of its file.
fn version<'a>(path: &'a Path, name: &str) -> Option<&'a str> {
    path.file_name()?.to_str()?.strip_prefix(name)?.strip_prefix(".so.")
}

fn runtime() -> Check {
    const NAME: &str = "ROCR";
    const LIBRARY: &str = "libhsa-runtime64";
    let Some(file) = library(&places(), LIBRARY) else {
        return Check::new(NAME, State::Absent, "ROCm's runtime (libhsa-runtime64) was not found")
            .means("HIP and OpenCL programs need it; programs that speak to KFD themselves do not.")
            .advice("on Debian and Ubuntu: apt-get install hipcc rocminfo");
    };
    // The library's own number stays 1; AMD's directories and HIP tell ROCm's.
    let rocm = rocm(&file).or_else(|| hip_version(&library(&places(), "libamdhip64")?));
    let rocm = rocm.map_or_else(String::new, |version| format!(", of ROCm {version}"));
    Check::new(NAME, State::Good, format!("{}{rocm}", file.display()))
        .means(format!("Seen to work: {}.", targets::known_runtimes().join("; ")))
}

fn hip() -> Check {
    const NAME: &str = "HIP";
    match library(&places(), "libamdhip64") {
        Some(file) => {
            let version = hip_version(&file).map_or_else(String::new, |version| format!(", HIP {version}"));
            Check::new(NAME, State::Good, format!("{}{version}", file.display()))
        }
        None => Check::new(NAME, State::Absent, "libamdhip64 was not found")
            .advice("on Debian and Ubuntu: apt-get install hipcc"),
    }
}

/// `5.2` of `libamdhip64.so.5.2.21153`.
fn hip_version(file: &Path) -> Option<String> {
    let numbers: Vec<_> = version(file, "libamdhip64")?.split('.').take(2).collect();
    Some(numbers.join("."))
}

/// What AMD's packages say beside the library.
fn rocm(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file.parent()?.parent()?.join(".info/version")).ok()?;
    Some(text.trim().to_owned())
}

fn device() -> Check {
    const NAME: &str = "/dev/kfd";
    const PATH: &str = "/dev/kfd";
    if !Path::new(PATH).exists() {
        return Check::new(NAME, State::Absent, "not there: no AMD GPU's driver is loaded").means("vkfd needs none.");
    }
    match File::options().read(true).write(true).open(PATH) {
        Ok(_) => Check::new(NAME, State::Good, "there, and may be used").means(
            "Programs under `vkfd run` see vkfd's machine instead. `vkfd inspect --device /dev/kfd` shows this one.",
        ),
        Err(error) => Check::new(NAME, State::Absent, format!("there, and cannot be opened: {error}"))
            .means("vkfd does not need it.")
            .advice("to use it: be in the groups render and video"),
    }
}

/// What `cargo xtask vm` runs guests with.
fn guests() -> Check {
    const NAME: &str = "guests";
    let version = Command::new("qemu-system-x86_64").arg("--version").output().ok().filter(|ran| ran.status.success());
    let Some(version) = version else {
        return Check::new(NAME, State::Absent, "QEMU (qemu-system-x86_64) was not found")
            .means("Only vkfd's kernel module and native context need it.")
            .advice("in vkfd's sources: cargo xtask vm setup");
    };
    let version = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default().to_owned();
    match File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Check::new(NAME, State::Good, format!("{version}; /dev/kvm opens")),
        Err(error) => Check::new(NAME, State::Absent, format!("{version}; /dev/kvm: {error}"))
            .means("Guests are emulated: they work, ten times slower."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_with_their_versions() {
        let place = tempfile::tempdir().unwrap();
        let places = [place.path().join("none"), place.path().to_owned()];
        assert_eq!(library(&places, "libamdhip64"), None);
        for name in
            ["libamdhip64.so", "libamdhip64.so.5.2.21153", "libamdhip64_other.so.9", "libhsa-runtime64.so.1.5.0"]
        {
            fs::write(place.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("libamdhip64.so.5.2.21153", place.path().join("libamdhip64.so.5")).unwrap();
        let found = library(&places, "libamdhip64").unwrap();
        assert_eq!(hip_version(&found).as_deref(), Some("5.2"));
        assert!(library(&places, "libhsa-runtime64").is_some());
        let info = place.path().join("rocm/.info");
        fs::create_dir_all(&info).unwrap();
        fs::write(info.join("version"), "6.4.3-127\n").unwrap();
        assert_eq!(rocm(&place.path().join("rocm/lib/libhsa-runtime64.so.1")).as_deref(), Some("6.4.3-127"));
    }
}
