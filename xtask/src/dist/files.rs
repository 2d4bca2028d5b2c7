// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is installed where: groups of files, with paths below a prefix. Each group is a Debian
//! package; all of them are the archive.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};

use super::Dist;

/// Shells that there are completions for, and their files.
pub(super) const SHELLS: [(&str, &str); 3] = [("bash", "vkfd"), ("zsh", "_vkfd"), ("fish", "vkfd.fish")];

/// A file or link.
pub(super) struct Entry {
    /// Below the prefix. What is in `lib` is in the architecture's directory in Debian packages.
    pub(super) path: String,
    pub(super) what: What,
}

pub(super) enum What {
    Data(Vec<u8>),
    /// Bytes that can be run.
    Program(Vec<u8>),
    /// A link to a neighbour.
    Link(String),
}

/// What is installed together.
pub(super) struct Group {
    pub(super) package: &'static str,
    pub(super) section: &'static str,
    /// One line, and a paragraph.
    pub(super) about: (&'static str, &'static str),
    /// Packages that it needs besides those that its programs are linked with.
    pub(super) needs: Vec<String>,
    /// Packages that make it useful.
    pub(super) suggests: &'static str,
    pub(super) entries: Vec<Entry>,
}

/// The shared library's name for the loader.
pub(super) const SONAME: &str = "libvkfd.so.0";

pub(super) fn groups(dist: &Dist) -> Result<[Group; 3]> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    let data = |path: String, from: &Path| Ok::<_, anyhow::Error>(Entry { path, what: What::Data(read(from)?) });
    let link = |path: String, to: &str| Entry { path, what: What::Link(to.to_owned()) };
    let root = &dist.root;

    let mut program = vec![Entry { path: "bin/vkfd".into(), what: What::Program(read(&dist.vkfd)?) }];
    let mut pages: Vec<_> = fs::read_dir(&dist.pages)?.collect::<Result<_, _>>()?;
    pages.sort_by_key(fs::DirEntry::file_name);
    for page in pages {
        let name = page.file_name().to_string_lossy().into_owned();
        let text = read(&page.path())?;
        let (path, text) = match SHELLS.iter().find(|(_, file)| *file == name) {
            Some(("bash", _)) => (format!("share/bash-completion/completions/{name}"), text),
            Some(("zsh", _)) => (format!("share/zsh/vendor-completions/{name}"), text),
            Some(_) => (format!("share/fish/vendor_completions.d/{name}"), text),
            None => (format!("share/man/man1/{name}.gz"), gzip(&text)?),
        };
        program.push(Entry { path, what: What::Data(text) });
    }
    for page in ["README.md", "docs/rocm.md"] {
        let name = Path::new(page).file_name().unwrap_or_default().to_string_lossy();
        program.push(Entry {
            path: format!("share/doc/vkfd/{name}.gz"),
            what: What::Data(gzip(&read(&root.join(page))?)?),
        });
    }

    let real = format!("libvkfd.so.{}", dist.version);
    let library = vec![data(format!("lib/{real}"), &dist.shared)?, link(format!("lib/{SONAME}"), &real)];

    let capi = root.join("client/capi");
    let pkg_config = String::from_utf8(read(&capi.join("vkfd.pc.in"))?)?.replace("@VERSION@", &dist.version);
    let mut development = vec![
        data("include/vkfd.h".into(), &capi.join("include/vkfd.h"))?,
        data("lib/libvkfd.a".into(), &dist.archive)?,
        link("lib/libvkfd.so".into(), SONAME),
        Entry { path: "lib/pkgconfig/vkfd.pc".into(), what: What::Data(pkg_config.into_bytes()) },
    ];
    let mut examples: Vec<_> = fs::read_dir(capi.join("examples"))?.collect::<Result<_, _>>()?;
    examples.sort_by_key(fs::DirEntry::file_name);
    let mut examples: Vec<_> = examples.iter().map(fs::DirEntry::path).collect();
    // The kernel that some of them run.
    examples.extend(["triple.cl", "triple.gfx900.co"].map(|name| root.join("client/examples").join(name)));
    for example in examples {
        let name = example.file_name().unwrap_or_default().to_string_lossy().into_owned();
        development.push(data(format!("share/doc/libvkfd-dev/examples/{name}"), &example)?);
    }

    Ok([
        Group {
            package: "vkfd",
            section: "utils",
            about: (
                "run ROCm programs on a machine without an AMD GPU",
                "vkfd is AMD's compute driver KFD with a software GPU that executes AMD's machine code. Unmodified ROCm programs find it as \
                 /dev/kfd, without privileges and without a kernel module. It registers scattered memory in one call (batch userptr).",
            ),
            needs: Vec::new(),
            suggests: "hipcc, rocminfo",
            entries: program,
        },
        Group {
            package: "libvkfd0",
            section: "libs",
            about: (
                "register scattered CPU memory as one GPU range - C library",
                "A client library for KFD, AMD's compute driver: memory, copies, kernels, SVM, and batch registration of CPU memory, on AMD's \
                 driver and on vkfd, which it also has inside.",
            ),
            needs: Vec::new(),
            suggests: "",
            entries: library,
        },
        Group {
            package: "libvkfd-dev",
            section: "libdevel",
            about: (
                "register scattered CPU memory as one GPU range - development files",
                "A client library for KFD, AMD's compute driver. This package has the header, the static library, the pkg-config file and \
                 examples.",
            ),
            needs: vec![format!("libvkfd0 (= {})", dist.version)],
            suggests: "pkg-config",
            entries: development,
        },
    ])
}

/// Compressed as `gzip -9n` does.
pub(super) fn gzip(data: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    writer.write_all(data)?;
    Ok(writer.finish()?)
}
