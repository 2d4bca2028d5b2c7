// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A finding and its parts.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The check that made a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Accesses outside of an allocation, to freed memory, misaligned ones.
    Memory,
    /// Values that nothing wrote decide something.
    Init,
    /// Accesses without an order between them.
    Race,
    /// Results used before the wait that makes them right.
    Waits,
    /// Fewer wait states between two instructions than the hardware needs.
    Hazards,
}

impl Check {
    /// All of them.
    pub const ALL: [Check; 5] = [Check::Memory, Check::Init, Check::Race, Check::Waits, Check::Hazards];

    /// Its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Check::Memory => "memory",
            Check::Init => "init",
            Check::Race => "race",
            Check::Waits => "waits",
            Check::Hazards => "hazards",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of a check that does not exist.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no check is called {0:?}; there are memory, init, race, waits and hazards")]
pub struct UnknownCheck(String);

impl FromStr for Check {
    type Err = UnknownCheck;

    fn from_str(name: &str) -> Result<Check, UnknownCheck> {
        Check::ALL.into_iter().find(|check| check.name() == name).ok_or_else(|| UnknownCheck(name.to_string()))
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Results may be wrong, under conditions that the check cannot see.
    Warning,
    /// Results are wrong, or memory is.
    Error,
}

impl Severity {
    /// Its name, which is SARIF's level as well.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Source {
    /// The file's path, as the line table has it.
    pub file: String,
    /// From 1; 0: the table does not know it.
    pub line: u32,
    /// From 1; 0: the table does not know it.
    pub column: u32,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (0, _) => f.write_str(&self.file),
            (line, 0) => write!(f, "{}:{line}", self.file),
            (line, column) => write!(f, "{}:{line}:{column}", self.file),
        }
    }
}

/// Where in GPU code something is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The code object: a file, or the loader's name of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The kernel or the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The program counter: the instruction's address in the code object, as its symbols count.
    pub pc: u64,
    /// The same from the kernel's first instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The machine instruction's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// The source line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// A lane's place in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Thread {
    /// The work-group.
    pub group: [u32; 3],
    /// The wave in its work-group.
    pub wave: u32,
    /// The lane in its wave, where one lane did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<u8>,
}

/// The way in which memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Read,
    Write,
    Atomic,
}

impl Access {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Atomic => "atomic",
        }
    }
}

/// Where an access is in relation to an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Position {
    /// So many bytes before its first.
    Before(u64),
    /// So many bytes from its first, inside.
    Inside(u64),
    /// So many bytes behind its end; 0 is the first byte after it.
    Behind(u64),
}

/// An allocation near an access.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Allocation {
    pub address: u64,
    pub bytes: u64,
    /// Its kind or name, such as "LDS", "device memory" or a variable's name.
    pub name: String,
    /// The access in relation to it.
    pub position: Position,
}

/// An access to memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address {
    /// A virtual address, or a place in LDS or scratch.
    pub address: u64,
    pub bytes: u32,
    pub access: Access,
    /// The nearest allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<Allocation>,
}

/// Something else that has to do with a finding, such as the write that another access races with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Note {
    /// A sentence without a full stop.
    pub message: String,
    /// Where it happened in GPU code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Which lane did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<Thread>,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Finding {
    pub check: Check,
    /// The rule's name, such as `waits/vmcnt`.
    pub rule: Cow<'static, str>,
    pub severity: Severity,
    /// A sentence without a full stop.
    pub message: String,
    pub place: Place,
    /// Which lane showed it first. Static checks have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<Thread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// What makes two findings the same: the rule, the place, and the first note's place. Lanes, waves,
/// groups and addresses do not count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    rule: Cow<'static, str>,
    object: Option<String>,
    kernel: Option<String>,
    pc: u64,
    other: Option<u64>,
}

impl Finding {
    /// A finding with nothing but a rule, a message and a place.
    #[must_use]
    pub fn new(
        check: Check,
        rule: impl Into<Cow<'static, str>>,
        severity: Severity,
        message: String,
        place: Place,
    ) -> Finding {
        Finding { check, rule: rule.into(), severity, message, place, thread: None, address: None, notes: Vec::new() }
    }

    /// What makes it the same as another.
    #[must_use]
    pub fn key(&self) -> Key {
        Key {
            rule: self.rule.clone(),
            object: self.place.object.clone(),
            kernel: self.place.kernel.clone(),
            pc: self.place.pc,
            other: self.notes.iter().find_map(|note| note.place.as_ref()).map(|place| place.pc),
        }
    }

    /// Bytes that it takes, texts included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let source = |source: &Option<Source>| source.as_ref().map_or(0, |source| source.file.len());
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let place = |place: &Place| {
            text(&place.object) + text(&place.kernel) + text(&place.instruction) + source(&place.source)
        };
        let notes: usize = self
            .notes
            .iter()
            .map(|note| size_of::<Note>() + note.message.len() + note.place.as_ref().map_or(0, place))
            .sum();
        let nearest = self.address.as_ref().and_then(|address| address.nearest.as_ref());
        size_of::<Finding>()
            + self.rule.len()
            + self.message.len()
            + place(&self.place)
            + nearest.map_or(0, |nearest| nearest.name.len())
            + notes
    }
}
