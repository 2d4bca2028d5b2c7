// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where notifications of changed mappings come from, and what each source cannot see.
//!
//! | source | notified of | order |
//! | --- | --- | --- |
//! | userfaultfd | every munmap, mremap, discard and fork, raw system calls included | the caller may go on once the event is *read*, see [`crate::uffd`] |
//! | interposed calls | what goes through libc's symbols: also mprotect and reclaim advice | exact: callbacks, change, end |
//! | access only | nothing; a GPU access that fails is turned into an invalidation | after the fact |
//!
//! All sources have the last row's line of defence as well.

use std::fmt;

/// How the host learns of changes to CPU mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Source {
    /// userfaultfd where permitted, else the interposed calls where in effect, else only failing
    /// accesses. The environment variable `VKFD_NOTIFY` (`uffd`, `interpose`, `none`) decides
    /// instead when it is set.
    #[default]
    Auto,
    /// userfaultfd events.
    Userfaultfd,
    /// libc's mapping calls, interposed (cargo feature `interpose`).
    Interposed,
    /// Nothing but accesses that fail.
    AccessOnly,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Userfaultfd => "userfaultfd",
            Self::Interposed => "interpose",
            Self::AccessOnly => "none",
        })
    }
}

/// `VKFD_NOTIFY` has a value that means nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[error("VKFD_NOTIFY={0:?}: expected uffd, interpose or none")]
pub struct BadVariable(pub String);

impl Source {
    /// This source, or what the environment says in place of [`Source::Auto`].
    ///
    /// # Errors
    /// [`BadVariable`].
    pub fn or_from_environment(self) -> Result<Self, BadVariable> {
        match (self, std::env::var("VKFD_NOTIFY")) {
            (Self::Auto, Ok(value)) => match value.as_str() {
                "" | "auto" => Ok(Self::Auto),
                "uffd" | "userfaultfd" => Ok(Self::Userfaultfd),
                "interpose" => Ok(Self::Interposed),
                "none" => Ok(Self::AccessOnly),
                _ => Err(BadVariable(value)),
            },
            _ => Ok(self),
        }
    }
}

/// Which changes of CPU mappings are told to the driver **before or as** they happen. What is not
/// seen is found when the GPU next touches the page and cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // a table of independent facts
pub struct Capabilities {
    /// munmap, and mmap with `MAP_FIXED` over a mapping.
    pub unmap: bool,
    pub remap: bool,
    /// `MADV_DONTNEED`, `MADV_REMOVE`, `MADV_FREE`.
    pub discard: bool,
    pub protect: bool,
    pub fork: bool,
    /// `MADV_PAGEOUT` (reclaim by the kernel itself is never seen).
    pub pageout: bool,
    /// The above also when libc is bypassed, or calls itself (`free` of a large block).
    pub raw_system_calls: bool,
    /// Mappings of files, not only anonymous and shared memory.
    pub files: bool,
    /// Callbacks are over before the change begins; otherwise the GPU is paused from before the
    /// caller goes on until they are over.
    pub before_change: bool,
}

impl Capabilities {
    /// One sentence about what is not seen, for people. Empty when everything is.
    pub fn unseen(&self) -> String {
        let missing: Vec<&str> = [
            (self.unmap, "munmap"),
            (self.remap, "mremap"),
            (self.discard, "MADV_DONTNEED"),
            (self.protect, "mprotect"),
            (self.fork, "fork"),
            (self.pageout, "MADV_PAGEOUT"),
            (self.raw_system_calls, "raw system calls and libc's own (free of a large block)"),
            (self.files, "changes of file mappings"),
        ]
        .into_iter()
        .filter_map(|(seen, what)| (!seen).then_some(what))
        .collect();
        if missing.is_empty() {
            return String::new();
        }
        format!("Not announced to the driver, and found only when the GPU's next access fails: {}.", missing.join(", "))
    }
}
