// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A root directory with packages of a suite that is newer than this machine's: in it programs run
//! with their own C library.
//!
//! Mechanism: apt gets the packages with all their dependencies from the archive that the machine
//! uses anyway ([`xtask_base::apt`]). They are unpacked and not configured: the programs here need
//! libraries in the places where the loader looks, and no more. A file in dpkg's form says what is
//! unpacked, so that apt gets the next ones without packages that are there. That file also names
//! dependencies that no suite has; a suite of tests brings a replacement. A program is started in a
//! separate mount namespace, with the machine's /proc, /sys and /dev, `vkfd`, and a directory to
//! work in. A program that is not compiled has its source there.
//!
//! Limits: a user that is not root needs user namespaces.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use super::cache::Cache;
use xtask_base::apt::{quiet, Apt};
use xtask_base::lock;

/// Where apt looks for a suite's missing packages. Debian's experimental holds changes to sid. Some
/// wheels of PyPI are for a Python that sid no longer has.
const BELOW: &[(&str, &str)] = &[("experimental", "sid"), ("sid", "bookworm")];
/// Packages, with their versions, that others need and no suite has.
const ABSENT: &[(&str, &str, &str)] = &[("experimental", "libamd-smi26", "7.2.4")];
/// Packages of which a part is unpacked: of piglit's two gigabytes nearly all is OpenGL's.
const PARTS: &[(&str, &[&str])] = &[(
    "piglit",
    &[
        "./usr/lib/x86_64-linux-gnu/piglit/bin/cl-*",
        "./usr/lib/x86_64-linux-gnu/piglit/generated_tests/cl/*",
        "./usr/lib/x86_64-linux-gnu/piglit/lib/*",
        "./usr/lib/x86_64-linux-gnu/piglit/tests/cl/*",
    ],
)];
/// Suites whose lists are good for a week.
const DATED: &[&str] = &["experimental", "sid"];

/// Where the working directory is in the root.
pub const WORK: &str = "/work";
/// Where the socket of a shared machine is, if the program joins one.
pub const SHARED: &str = "/tmp/shared";
/// Where the suite's source is.
pub const SOURCE: &str = "/source";
/// What the machine gives a program in the root, each an empty place in it.
const DIRECTORIES: &[&str] = &["proc", "sys", "dev", "tmp", "work", "source"];
const FILES: &[&str] = &["vkfd"];
/// Directories that a Debian has as links.
const LINKS: &[&str] = &["bin", "lib", "lib64", "sbin"];

/// Mounts at the places, and becomes the program: root, vkfd or nothing, working directory, source,
/// and the directory of a socket or nothing come first.
const ENTER: &str = r#"
set -e
root=$1 vkfd=$2 work=$3 source=$4 shared=$5
shift 5
for directory in proc sys dev; do mount --rbind /$directory "$root/$directory"; done
mount -t tmpfs tmp "$root/tmp"
if [ -n "$vkfd" ]; then mount --bind "$vkfd" "$root/vkfd"; fi
mount --bind "$work" "$root/work"
mount --bind "$source" "$root/source"
if [ -n "$shared" ]; then mkdir "$root/tmp/shared"; mount --bind "$shared" "$root/tmp/shared"; fi
exec chroot "$root" "$@"
"#;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    tree: PathBuf,
}

impl Root {
    /// With these packages of a Debian suite, if it has them.
    pub fn find(cache: &Cache, suite: &str, packages: &[&str]) -> Result<Option<Root>> {
        let at = cache.root_of(suite);
        xtask_base::cache::used(&at);
        let status = read(&at.join("status"))?;
        if !packages.iter().all(|package| is_unpacked(&status, package)) {
            return Ok(None);
        }
        // An older cache, or one that somebody tidied, may have lost a place.
        let tree = at.join("tree");
        prepare(&tree).with_context(|| format!("make {}", tree.display()))?;
        Ok(Some(Root { tree }))
    }

    /// With these packages of a Debian suite; what it has not is fetched.
    pub fn get(cache: &Cache, suite: &str, packages: &[&str]) -> Result<Root> {
        if let Some(root) = Self::find(cache, suite, packages)? {
            return Ok(root);
        }
        let at = cache.root_of(suite);
        let _lock = lock::hold(&at, "cargo xtask programs")?;
        // Another run may have brought them meanwhile.
        if let Some(root) = Self::find(cache, suite, packages)? {
            return Ok(root);
        }
        let (tree, listed) = (at.join("tree"), at.join("status"));
        println!("fetching {} of {suite}", packages.join(", "));
        prepare(&tree).with_context(|| format!("make {}", tree.display()))?;
        let fetched = at.join("apt");
        let below = BELOW.iter().filter(|(of, _)| *of == suite).map(|(_, below)| *below);
        let mut apt = Apt::new(fetched.clone(), &below.chain([suite]).collect::<Vec<_>>())?;
        if DATED.contains(&suite) {
            apt = apt.of_any_date();
        }
        apt.run("apt-get", &["update"])?;
        let mut status = read(&listed)?;
        for (_, package, version) in ABSENT.iter().filter(|(of, ..)| *of == suite) {
            if !is_unpacked(&status, package) {
                let about = format!("Package: {package}\nVersion: {version}\nArchitecture: amd64");
                status.push_str(&format!("{about}\nStatus: install ok installed\n\n"));
            }
        }
        for file in apt.download_all(suite, packages, &status)? {
            let about = quiet(Command::new("dpkg-deb").arg("--field").arg(&file))?;
            unpack(&file, &about, &tree)?;
            // Last: what is written here is whole.
            status.push_str(&format!("{}\nStatus: install ok installed\n\n", about.trim_end()));
            fs::write(&listed, &status).with_context(|| format!("write {}", listed.display()))?;
            fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
        fs::remove_dir_all(&fetched).context("remove apt's lists")?;
        Self::find(cache, suite, packages)?.with_context(|| format!("apt has not brought all of {packages:?}"))
    }

    /// Where its files are.
    pub fn tree(&self) -> &Path {
        &self.tree
    }

    /// The one whose files are below `tree`.
    pub fn at(tree: &Path) -> Root {
        Root { tree: tree.into() }
    }

    /// `vkfd` in the root; its arguments are to follow.
    pub fn enter(&self, vkfd: &Path, work: &Path, source: &Path) -> Command {
        self.enter_with(vkfd, work, source, None)
    }

    /// The same with a directory at [`SHARED`].
    pub fn enter_with(&self, vkfd: &Path, work: &Path, source: &Path, shared: Option<&Path>) -> Command {
        let mut command = self.start(vkfd, work, source, shared);
        command.arg("/vkfd");
        command
    }

    /// A program of the root, without `vkfd`; its path is to follow.
    pub fn program(&self, work: &Path, source: &Path) -> Command {
        self.start(Path::new(""), work, source, None)
    }

    fn start(&self, vkfd: &Path, work: &Path, source: &Path, shared: Option<&Path>) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["sh", "-c", ENTER, "sh"]).arg(&self.tree).arg(vkfd);
        command.arg(work).arg(source).arg(shared.unwrap_or(Path::new("")));
        // Cargo's is for this machine's programs, and a home of the machine is not in the root.
        command.env_remove("LD_LIBRARY_PATH").env("HOME", "/tmp");
        command
    }
}

/// Unpacks a package, of which `about` is dpkg's description.
fn unpack(file: &Path, about: &str, tree: &Path) -> Result<()> {
    let Some((_, parts)) = PARTS.iter().find(|(package, _)| is_unpacked(about, package)) else {
        return quiet(Command::new("dpkg-deb").arg("--extract").arg(file).arg(tree)).map(drop);
    };
    let mut packed = Command::new("dpkg-deb");
    let mut packed = packed.arg("--fsys-tarfile").arg(file).stdout(Stdio::piped()).spawn().context("run dpkg-deb")?;
    let files = packed.stdout.take().context("dpkg-deb has no stdout")?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--wildcards", "--directory"]).arg(tree).args(*parts).stdin(files);
    let unpacked = tar.status().context("run tar")?;
    ensure!(packed.wait()?.success() && unpacked.success(), "{} cannot be unpacked", file.display());
    Ok(())
}

/// Makes the places in a root that has not all of them.
fn prepare(tree: &Path) -> Result<()> {
    for directory in DIRECTORIES {
        fs::create_dir_all(tree.join(directory))?;
    }
    for file in FILES {
        File::create(tree.join(file))?;
    }
    for link in LINKS {
        let to = Path::new("usr").join(link);
        fs::create_dir_all(tree.join(&to))?;
        if !tree.join(link).is_symlink() {
            symlink(&to, tree.join(link))?;
        }
    }
    Ok(())
}

/// Makes links in the root below `tree` that are not there: the link, and its target.
pub fn link(tree: &Path, places: &[(&str, &str)]) -> Result<()> {
    for (link, to) in places {
        let link = tree.join(link.trim_start_matches('/'));
        if !link.is_symlink() {
            let directory = link.parent().context("a link without a directory")?;
            fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
            symlink(to, &link).with_context(|| format!("make {}", link.display()))?;
        }
    }
    Ok(())
}

fn read(status: &Path) -> Result<String> {
    match status.exists() {
        true => fs::read_to_string(status).with_context(|| format!("read {}", status.display())),
        false => Ok(String::new()),
    }
}

fn is_unpacked(status: &str, package: &str) -> bool {
    status.lines().any(|line| line.strip_prefix("Package: ") == Some(package))
}

/// The programs in a directory of the root.
pub fn programs(tree: &Path, directory: &str) -> Result<Vec<String>> {
    let at = tree.join(directory.trim_start_matches('/'));
    let entries = fs::read_dir(&at).with_context(|| format!("read {}", at.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    ensure!(!names.is_empty(), "{} is empty", at.display());
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_is_named_in_full() {
        let status = "Package: librocrand1-tests\nDepends: libc6\nStatus: install ok installed\n\n";
        assert!(is_unpacked(status, "librocrand1-tests"));
        assert!(!is_unpacked(status, "librocrand1") && !is_unpacked(status, "libc6") && !is_unpacked("", "libc6"));
    }

    #[test]
    fn a_root_is_found_with_all_its_places() {
        let cache = Cache::at(std::env::temp_dir().join(format!("vkfd-xtask-root-{}", std::process::id())));
        let root = cache.root_of("trixie");
        fs::create_dir_all(&root).expect("a directory");
        fs::write(root.join("status"), "Package: piglit\nStatus: install ok installed\n\n").expect("a status");
        for lost in DIRECTORIES {
            let found = Root::find(&cache, "trixie", &["piglit"]).expect("readable").expect("a root");
            let places = DIRECTORIES.iter().all(|place| found.tree().join(place).is_dir());
            assert!(places && found.tree().join("lib64").is_dir() && found.tree().join("vkfd").is_file());
            fs::remove_dir(found.tree().join(lost)).expect("a place that is empty");
        }
        assert_eq!(Root::find(&cache, "trixie", &["rocrand"]).expect("readable"), None);
        fs::remove_dir_all(root).expect("removed");
    }
}
