// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The origins of a suite. It may be a directory in which its user has built it, or a git
//! repository that the user has as an archive or a checkout. Debian has source packages, and
//! packages of a newer Debian are not compiled here.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use super::cache::Cache;
use super::pytorch;
use super::root::Root;
use xtask_base::apt::Apt;
use xtask_base::made::once;
use xtask_base::{tree, venv};

/// See the module.
#[derive(Clone, Copy)]
pub enum Source {
    /// A directory in which the user has built the suite by its own README; `--built` names it.
    /// `how` says in a line how that is done.
    Built { how: &'static str },
    /// The same. The programs run in a root as [`Source::Root`].
    BuiltInRoot { how: &'static str, suite: &'static str, packages: &'static [&'static str] },
    /// A source package of Debian, and the wanted part of it: an archive within its upstream
    /// archive, and a directory within that.
    Debian { package: &'static str, upstream: &'static str, inner: &'static str, directory: &'static str },
    /// The upstream archive of a source package of a newer Debian suite, and a directory of it.
    Upstream { suite: &'static str, package: &'static str, archive: &'static str, directory: &'static str },
    /// Packages of a newer Debian suite, with all that they need, in a root of their own. They are
    /// large: a run fetches them only for a named suite.
    Root { suite: &'static str, packages: &'static [&'static str] },
    /// A repository: `NAME.tar.xz` (with a directory NAME in it) or a directory NAME among the
    /// user's sources. Its programs run in a root as [`Source::Root`].
    GitInRoot {
        name: &'static str,
        repository: &'static str,
        commit: &'static str,
        suite: &'static str,
        packages: &'static [&'static str],
    },
    /// A Python package, `NAME==VERSION`, from PyPI, which a root's Python imports. Its
    /// dependencies are in the root.
    WheelInRoot { wheel: &'static str, suite: &'static str, packages: &'static [&'static str] },
    /// Wheels of PyPI for a Python of the root, which `xtask/programs/WHEELS` names with all that
    /// they need of PyPI. The rest is in the root.
    LibraryInRoot { python: &'static str, wheels: &'static str, suite: &'static str, packages: &'static [&'static str] },
    /// The same, and a package's own tests from its source on PyPI ([`Tests`]).
    TestedLibraryInRoot {
        python: &'static str,
        wheels: &'static str,
        tests: Tests,
        suite: &'static str,
        packages: &'static [&'static str],
    },
    /// The same for PyTorch, which `cargo xtask programs pytorch --build` has put there.
    BuiltLibrary { suite: &'static str, packages: &'static [&'static str] },
}

/// A package's own tests, in the directory [`Tests::PLACE`] of the library. A source is not built.
#[derive(Clone, Copy)]
pub struct Tests {
    /// `NAME==VERSION`.
    pub package: &'static str,
    /// What is wanted of the source.
    pub parts: &'static [&'static str],
    /// Beside the expectation files: the wheels that the tests need besides the library's.
    pub wheels: &'static str,
}

impl Tests {
    /// Below the library.
    const PLACE: &str = "own";

    /// Puts them into a library.
    fn put(&self, library: &Path, python: &str) -> Result<()> {
        let Tests { package, parts, wheels } = *self;
        let (wheels, text) = listed(wheels)?;
        let to = library.join(Tests::PLACE);
        once(&to, &format!("{package} {}\n{text}", parts.join(" ")), || {
            venv::library(&to, python, &wheels)?;
            venv::source(&to, package, parts)
        })
    }
}

/// Where the user has sources and built suites.
pub struct Places<'a> {
    pub sources: &'a Path,
    /// Where the suite that is named was built.
    pub built: Option<&'a Path>,
}

/// Where a source was found, and the root that its programs run in. For [`Source::Root`] they are
/// one.
pub struct Unpacked {
    pub source: PathBuf,
    pub root: Option<PathBuf>,
}

/// Whether a source can be had.
pub enum Found {
    /// Unpacked, there.
    Here(Unpacked),
    /// How to get it.
    Missing(String),
}

impl Found {
    /// What needs no root.
    fn plain(source: PathBuf) -> Found {
        Found::Here(Unpacked { source, root: None })
    }
}

impl Source {
    /// Whether its user builds it.
    pub fn is_built(&self) -> bool {
        matches!(self, Source::Built { .. } | Source::BuiltInRoot { .. })
    }

    /// Whether somebody builds it before it can run, by hand or in hours.
    pub fn is_built_first(&self) -> bool {
        self.is_built() || matches!(self, Source::BuiltLibrary { .. })
    }

    /// Finds it, unpacked.
    pub fn find(&self, places: &Places<'_>, cache: &Cache, is_named: bool) -> Result<Found> {
        match *self {
            Source::Built { how } => match places.built {
                Some(built) => Ok(Found::plain(built.into())),
                None => Ok(Found::Missing(how.into())),
            },
            Source::BuiltInRoot { how, suite, packages } => {
                let Some(built) = places.built else { return Ok(Found::Missing(how.into())) };
                let rooted = Source::Root { suite, packages }.find(places, cache, is_named)?;
                let Found::Here(Unpacked { root, .. }) = rooted else { return Ok(rooted) };
                Ok(Found::Here(Unpacked { source: built.into(), root }))
            }
            Source::Debian { package, upstream, inner, directory } => {
                let to = cache.unpacked(package);
                once(&to, &format!("{upstream} {inner} {directory}"), || {
                    let archive = download(package, upstream, &cache.debian())?;
                    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&to).arg(inner))?;
                    let inner = to.join(inner);
                    run(Command::new("tar").arg("-xf").arg(&inner).arg("-C").arg(&to).arg(directory))?;
                    fs::remove_file(&inner).with_context(|| format!("remove {}", inner.display()))
                })?;
                Ok(Found::plain(to.join(directory)))
            }
            Source::Upstream { suite, package, archive, directory } => {
                let to = cache.unpacked(package);
                once(&to, &format!("{archive} {directory}"), || {
                    println!("fetching the source of {package}");
                    let fetched = to.join("apt");
                    let apt = Apt::new(fetched.clone(), &[suite])?.of_any_date().with_sources()?;
                    apt.run("apt-get", &["update"])?;
                    let archive = apt.archive_of_source(package, archive)?;
                    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&to).arg(directory))?;
                    fs::remove_dir_all(&fetched).with_context(|| format!("remove {}", fetched.display()))
                })?;
                Ok(Found::plain(to.join(directory)))
            }
            Source::Root { suite, packages } => {
                let found = match is_named {
                    true => Some(Root::get(cache, suite, packages)?),
                    false => Root::find(cache, suite, packages)?,
                };
                Ok(found.map_or_else(
                    || Found::Missing(format!("{} of {suite} is fetched for those who name it", packages.join(", "))),
                    |root| Found::Here(Unpacked { source: root.tree().into(), root: Some(root.tree().into()) }),
                ))
            }
            Source::GitInRoot { name, repository, commit, suite, packages } => {
                let git = checkout(name, repository, commit, places.sources, cache)?;
                let Found::Here(Unpacked { source, .. }) = git else { return Ok(git) };
                let rooted = Source::Root { suite, packages }.find(places, cache, is_named)?;
                let Found::Here(Unpacked { root, .. }) = rooted else { return Ok(rooted) };
                Ok(Found::Here(Unpacked { source, root }))
            }
            Source::WheelInRoot { wheel, suite, packages } => {
                let rooted = Source::Root { suite, packages }.find(places, cache, is_named)?;
                let Found::Here(Unpacked { root, .. }) = rooted else { return Ok(rooted) };
                let environment = cache.environment(&wheel.replace("==", "-"));
                venv::python(&environment, &[wheel])?;
                Ok(Found::Here(Unpacked { source: venv::packages(&environment)?, root }))
            }
            Source::LibraryInRoot { python, wheels, suite, packages } => {
                let rooted = Source::Root { suite, packages }.find(places, cache, is_named)?;
                let Found::Here(Unpacked { root, .. }) = rooted else { return Ok(rooted) };
                let (listed, text) = listed(wheels)?;
                let library = cache.environment(wheels.trim_end_matches(".txt"));
                once(&library, &format!("{python}\n{text}"), || venv::library(&library, python, &listed))?;
                Ok(Found::Here(Unpacked { source: library, root }))
            }
            Source::TestedLibraryInRoot { python, wheels, tests, suite, packages } => {
                let library =
                    Source::LibraryInRoot { python, wheels, suite, packages }.find(places, cache, is_named)?;
                if let Found::Here(Unpacked { source, .. }) = &library {
                    tests.put(source, python)?;
                }
                Ok(library)
            }
            Source::BuiltLibrary { suite, packages } => {
                let Some(library) = pytorch::library(cache) else {
                    let how = "`cargo xtask programs pytorch --build` builds it first, which takes hours";
                    return Ok(Found::Missing(how.into()));
                };
                let rooted = Source::Root { suite, packages }.find(places, cache, is_named)?;
                let Found::Here(Unpacked { root, .. }) = rooted else { return Ok(rooted) };
                Ok(Found::Here(Unpacked { source: library, root }))
            }
        }
    }
}

/// A file beside the expectation files that names wheels, and its text.
fn listed(wheels: &str) -> Result<(PathBuf, String)> {
    let listed = tree::root().join("xtask/programs").join(wheels);
    let text = fs::read_to_string(&listed).with_context(|| format!("read {}", listed.display()))?;
    Ok((listed, text))
}

/// A repository among the user's sources.
fn checkout(name: &str, repository: &str, commit: &str, sources: &Path, cache: &Cache) -> Result<Found> {
    let checkout = sources.join(name);
    if checkout.is_dir() {
        return Ok(Found::plain(checkout));
    }
    let archive = sources.join(name).with_extension("tar.xz");
    let Ok(of) = fs::metadata(&archive) else {
        let from = sources.display();
        return Ok(Found::Missing(format!(
            "its source is not in {from}: `git clone {repository} {name}`, `git -C {name} checkout {commit}`, and say \
             --sources where {name} is"
        )));
    };
    let to = cache.unpacked(name);
    once(&to, &format!("{} {} {}", archive.display(), of.size(), of.mtime()), || {
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&to))
    })?;
    Ok(Found::plain(to.join(name)))
}

/// Has apt fetch a package's source, and check it, into `at`. It comes from the same archive as
/// apt's packages.
fn download(package: &str, upstream: &str, at: &Path) -> Result<PathBuf> {
    let archive = at.join(upstream);
    if archive.exists() {
        return Ok(archive);
    }
    println!("fetching the source of {package}");
    let lists = at.join("lists");
    fs::create_dir_all(&lists).with_context(|| format!("make {}", lists.display()))?;
    let listed = at.join("debian.sources");
    let system = Path::new("/etc/apt/sources.list.d/debian.sources");
    let text = fs::read_to_string(system).with_context(|| format!("read {}", system.display()))?;
    fs::write(&listed, text.replace("Types: deb\n", "Types: deb-src\n"))
        .with_context(|| format!("write {}", listed.display()))?;
    let apt = || {
        let mut command = Command::new("apt-get");
        let here = [("Dir::Etc::sourcelist", &listed), ("Dir::State::lists", &lists)];
        command.args(["-qq", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "APT::Sandbox::User=root"]);
        for (name, path) in here {
            command.arg("-o").arg(format!("{name}={}", path.display()));
        }
        command.current_dir(at).stdout(Stdio::null());
        command
    };
    run(apt().arg("update"))?;
    run(apt().args(["source", "--download-only", package]))?;
    ensure!(archive.exists(), "apt has no {upstream}: the source of {package} that is wanted is Debian 12's");
    Ok(archive)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
