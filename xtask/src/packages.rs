// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask packages`: whether what outsiders use could be published as it is.
//!
//! Mechanism: cargo says what packages there are and what they need; each is either
//! `publish = false` or complete. Then cargo packs them, which finds what only it knows of. What a
//! package's sources include has to be in the package: that would fail only in its user's build.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use xtask_base::{tree, Verdict};

/// Check that packages are ready for crates.io, or are not to be published
///
/// A finding is a package without description, licence, readme, keywords or categories. Another is
/// a dependency on a package of this tree without a version, with another version than it has, or
/// on one that is not published. A third is a source file that includes a file from outside of its
/// package. All refusals of `cargo package` are findings, too. It packs without building.
///
/// Exit status: 0 clean, 1 findings, 2 cannot check.
#[derive(clap::Args)]
pub struct Args {}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    description: Option<String>,
    license: Option<String>,
    readme: Option<PathBuf>,
    keywords: Vec<String>,
    categories: Vec<String>,
    /// Registries it may be published to; `null` for any.
    publish: Option<Vec<String>>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

impl Package {
    fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    fn directory(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("/"))
    }
}

pub fn run(_: &Args) -> Result<Verdict> {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(tree::root());
        command
    };
    let listed =
        cargo().args(["metadata", "--format-version=1", "--no-deps", "--locked"]).output().context("run cargo")?;
    ensure!(listed.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&listed.stderr).trim());
    let Metadata { packages } = serde_json::from_slice(&listed.stdout).context("read what cargo metadata says")?;
    let mut findings = Vec::new();
    for package in packages.iter().filter(|package| package.is_published()) {
        findings.extend(check(package, &packages));
        for file in sources(package.directory())? {
            findings.extend(outside(&file, &fs::read_to_string(&file)?, package.directory()));
        }
    }
    if !findings.is_empty() {
        return Ok(Verdict::Findings(findings));
    }
    let (published, kept): (Vec<_>, Vec<_>) = packages.iter().partition(|package| package.is_published());
    let summary = format!("{} packages can be published, {} are not to be", published.len(), kept.len());
    let version = cargo().arg("--version").output().context("run cargo")?;
    if !packs_together(&String::from_utf8_lossy(&version.stdout)) {
        return Ok(Verdict::Clean(format!("{summary}; not packed, which takes cargo 1.90 or later")));
    }
    let mut pack = cargo();
    pack.args(["package", "--no-verify", "--allow-dirty", "--locked", "--quiet", "--workspace"]);
    pack.args(kept.iter().flat_map(|package| ["--exclude", &package.name]));
    let packed = pack.output().context("run cargo")?;
    if !packed.status.success() {
        let text = String::from_utf8_lossy(&packed.stderr).trim().to_owned();
        return Ok(Verdict::Findings(vec![format!("cargo package: {text}")]));
    }
    Ok(Verdict::Clean(format!("{summary}; packed")))
}

/// Whether a cargo of this version packs packages that need each other before they are published.
fn packs_together(version: &str) -> bool {
    let minor =
        version.split_whitespace().nth(1).and_then(|number| number.strip_prefix("1.")?.split('.').next()?.parse().ok());
    minor.is_some_and(|minor: u32| minor >= 90)
}

/// The findings in a package's description of itself.
fn check(package: &Package, all: &[Package]) -> Vec<String> {
    let name = &package.name;
    let mut findings = Vec::new();
    let readme = package.readme.as_ref().is_some_and(|readme| package.directory().join(readme).is_file());
    for (there, what) in [
        (package.description.is_some(), "description"),
        (package.license.is_some(), "license"),
        (readme, "readme"),
        (!package.keywords.is_empty(), "keywords"),
        (!package.categories.is_empty(), "categories"),
    ] {
        if !there {
            findings.push(format!("{name}: no {what} (or publish = false is missing)"));
        }
    }
    // What tests need without a version is left out of the package.
    let of_the_tree = package.dependencies.iter().filter(|dependency| dependency.path.is_some());
    for dependency in
        of_the_tree.filter(|dependency| dependency.kind.as_deref() != Some("dev") || dependency.req != "*")
    {
        let Some(needed) = all.iter().find(|package| package.name == dependency.name) else { continue };
        if !needed.is_published() {
            findings.push(format!("{name} needs {}, which is not published", needed.name));
        }
        if dependency.req != format!("^{}", needed.version) {
            findings.push(format!("{name} needs {} {}, which is {}", needed.name, dependency.req, needed.version));
        }
    }
    findings
}

/// Rust files that a user compiles.
fn sources(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut places = vec![directory.join("src")];
    let script = directory.join("build.rs");
    files.extend(script.is_file().then_some(script));
    while let Some(place) = places.pop() {
        for entry in fs::read_dir(&place).with_context(|| format!("read {}", place.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                places.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// What a file includes from outside of `package`.
fn outside(file: &Path, text: &str, package: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for opening in ["include_str!(", "include_bytes!(", "include!(", "#[path = "] {
        for (at, _) in text.match_indices(opening) {
            // The first literal, also of a `concat!`.
            let Some(path) = text[at + opening.len()..].split('"').nth(1) else { continue };
            let from = file.parent().unwrap_or(package).join(path);
            if !plain(&from).starts_with(package) {
                let line = text[..at].matches('\n').count() + 1;
                found.push(format!("{}:{line}: {path} is outside of the package", file.display()));
            }
        }
    }
    found
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependency: Option<(&str, &str, Option<&str>)>) -> Package {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        Package {
            name: name.into(),
            version: "0.1.0".into(),
            description: Some("Something".into()),
            license: Some("MIT".into()),
            readme: Some("Cargo.toml".into()),
            keywords: vec!["gpu".into()],
            categories: vec!["emulators".into()],
            publish: None,
            manifest_path: here.join("Cargo.toml"),
            dependencies: dependency
                .map(|(name, req, kind)| Dependency {
                    name: name.into(),
                    req: req.into(),
                    kind: kind.map(Into::into),
                    path: Some(here.into()),
                })
                .into_iter()
                .collect(),
        }
    }

    #[test]
    fn what_is_missing_is_found() {
        assert!(check(&package("a", None), &[]).is_empty());
        assert_eq!(check(&Package { description: None, ..package("a", None) }, &[]).len(), 1);
        assert_eq!(check(&Package { readme: Some("none".into()), ..package("a", None) }, &[]).len(), 1);
        assert!(!Package { publish: Some(Vec::new()), ..package("a", None) }.is_published());
    }

    #[test]
    fn what_a_package_needs_is_published_too() {
        let needed = [package("b", None)];
        for (req, kind, findings) in
            [("^0.1.0", None, 0), ("*", None, 1), ("^0.2.0", None, 1), ("*", Some("dev"), 0), ("*", Some("build"), 1)]
        {
            assert_eq!(check(&package("a", Some(("b", req, kind))), &needed).len(), findings, "{req} {kind:?}");
        }
        let kept = [Package { publish: Some(Vec::new()), ..package("b", None) }];
        assert_eq!(check(&package("a", Some(("b", "^0.1.0", None))), &kept).len(), 1);
    }

    #[test]
    fn versions_of_cargo_are_read() {
        for (version, packs) in [
            ("cargo 1.95.0 (f2d3ce0bd 2026-03-21)", true),
            ("cargo 1.90.0", true),
            ("cargo 1.85.1", false),
            ("", false),
        ] {
            assert_eq!(packs_together(version), packs, "{version}");
        }
    }

    #[test]
    fn what_is_included_from_outside_is_found() {
        let (package, file) = (Path::new("/p"), Path::new("/p/src/a/b.rs"));
        for (text, findings) in [
            ("include_str!(\"../x.txt\")", 0),
            ("include_str!(\"../../x.txt\")", 0),
            ("\ninclude_bytes!(concat!(\"../../../data/\", $name))", 1),
            ("#[path = \"../../../other.rs\"]\nmod other;", 1),
            ("concat!(env!(\"OUT_DIR\"), \"/x\")", 0),
        ] {
            assert_eq!(outside(file, text, package).len(), findings, "{text}");
        }
    }
}
