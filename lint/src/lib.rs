// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Static checks of AMD GPU machine code.
//!
//! Compilers put `s_waitcnt` between a load and the use of its result, and `s_nop` between
//! instructions that hardware does not keep apart. An author or a generator of machine code has to
//! do that as well. Nothing on the GPU notices a missing one: results are wrong,
//! sometimes. The checks find them in a code object, without running it.
//!
//! [`Object`] reads a code object, and [`lint`] puts what it finds into a list. Control-flow graphs
//! are made of its functions one by one; a function's calls are taken to follow the calling
//! convention.
//!
//! | module | |
//! |---|---|
//! | `object`, `lines` | code objects and their line tables |
//! | `class`, `register`, `step` | instructions as the checks see them |
//! | `graph` | the ways through a function |
//! | `counter`, `waits` | missing waits |
//! | `live` | missing waits on the way that a wave takes |
//! | `hazards` | too few wait states |
//! | `table` | the rules for a page |

mod class;
mod counter;
mod graph;
mod hazards;
mod lines;
pub mod live;
mod object;
mod register;
mod step;
pub mod table;
mod waits;

pub use lines::Lines;
pub use object::{Function, Kernel, Object, ReadError};

use vkfd_findings::{Check, Finding, Findings, Note, Place, Severity};
use vkfd_isa::{disassemble, Target, MAX_WORDS};

use graph::Graph;

/// Which checks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    pub waits: bool,
    pub hazards: bool,
}

impl Checks {
    /// All that there are.
    pub const ALL: Checks = Checks { waits: true, hazards: true };
}

/// A rule, for catalogues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub id: &'static str,
    pub summary: &'static str,
    pub targets: &'static [Target],
    /// Wait states that are needed, as text.
    pub states: String,
    /// The producers of a wait's rule, or the place of a hazard's rule in LLVM.
    pub source: &'static str,
}

/// The rules of both checks.
#[must_use]
pub fn rules() -> Vec<Rule> {
    let waits = waits::RULES.iter().map(|(id, summary, source)| Rule {
        id,
        summary,
        targets: &Target::ALL,
        states: String::from("-"),
        source,
    });
    let hazards = hazards::RULES.iter().map(|rule| Rule {
        id: rule.id,
        summary: rule.summary,
        targets: rule.targets,
        states: rule.states(),
        source: rule.source,
    });
    waits.chain(hazards).collect()
}

/// Checks the functions of a code object that the list wants. `name` is the object's, for places.
///
/// A hazard is an error if all ways between the two instructions are too short, and a warning if
/// one of several is.
pub fn lint(object: &Object, name: &str, checks: Checks, findings: &mut Findings) {
    for function in &object.functions {
        if findings.wants(Some(&function.name)) {
            check(object, function, name, checks, findings);
        }
    }
}

fn check(object: &Object, function: &Function, name: &str, checks: Checks, findings: &mut Findings) {
    let target = object.target;
    // Of functions that are no kernels nobody says how many lanes their waves have. The kernels of
    // their object do.
    let kernels = object.functions.iter().filter_map(|function| function.kernel);
    let wave64 = match function.kernel {
        Some(kernel) => kernel.wave64,
        None => target.is_gfx9() || kernels.clone().next().is_some() && kernels.clone().all(|kernel| kernel.wave64),
    };
    let split = function.kernel.map_or_else(|| kernels.clone().any(|kernel| kernel.split), |kernel| kernel.split);
    let graph = Graph::new(target, if wave64 { 2 } else { 1 }, &function.code);
    let show = Show { object, function, graph: &graph, name };
    if checks.waits {
        let setting = waits::Setting { target, split, called: function.kernel.is_none() && graph.returns() };
        for missing in waits::check(&graph, setting) {
            let place = show.place(missing.at);
            let mut finding = Finding::new(Check::Waits, missing.rule(), Severity::Error, missing.message(), place);
            let by = usize::try_from(missing.late.by).unwrap_or(0);
            if missing.rule() != "waits/entry" {
                finding.notes.push(show.note("the result is that of", by));
            }
            findings.add(finding);
        }
    }
    if checks.hazards {
        let setting = hazards::Setting { target, wave64, xnack: object.xnack };
        for near in hazards::check(&graph, setting) {
            let place = show.place(near.at);
            let severity = if near.everywhere { Severity::Error } else { Severity::Warning };
            let mut finding = Finding::new(Check::Hazards, near.rule.id, severity, near.message(), place);
            finding.notes.push(show.note("the other instruction is", near.by));
            findings.add(finding);
        }
    }
}

/// Places in a function.
struct Show<'a> {
    object: &'a Object,
    function: &'a Function,
    graph: &'a Graph,
    name: &'a str,
}

impl Show<'_> {
    fn place(&self, at: usize) -> Place {
        let offset = u64::from(self.graph.steps[at].offset);
        let pc = self.function.address.wrapping_add(offset);
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.function.code.get(begin..).unwrap_or(&[]);
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .take(MAX_WORDS)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        Place {
            object: Some(self.name.to_string()),
            kernel: Some(self.function.name.clone()),
            pc,
            offset: Some(offset),
            instruction: disassemble(self.object.target, &words).ok().map(|(_, text)| text.trim().to_string()),
            source: self.object.lines.as_ref().and_then(|lines| lines.at(pc)),
        }
    }

    fn note(&self, message: &str, at: usize) -> Note {
        // The object is the finding's own.
        let place = Place { object: None, kernel: None, ..self.place(at) };
        Note { message: message.to_string(), place: Some(place), thread: None }
    }
}
