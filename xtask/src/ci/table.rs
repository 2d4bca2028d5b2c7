// SPDX-License-Identifier: GPL-2.0 OR MIT
//! xtask/ci.toml: which checks there are, and which part of the tree each guards.

use std::collections::BTreeSet;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use xtask_base::pattern::matches;

/// The table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    #[serde(rename = "ring")]
    pub(super) rings: Vec<Ring>,
}

/// Checks that guard the same part of the tree.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ring {
    pub(super) name: String,
    /// In a line, for people.
    pub(super) about: String,
    /// Patterns of paths (`*` stands for anything). A change of such a file has the ring's long
    /// form run; a ring without any has one form.
    #[serde(default)]
    pub(super) guards: Vec<String>,
    /// Whether it runs beside the other rings: its steps leave a processor idle.
    #[serde(default)]
    pub(super) beside: bool,
    #[serde(rename = "step")]
    pub(super) steps: Vec<Step>,
}

/// A check: shell commands for one form of its ring or more.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub(super) name: String,
    /// Patterns of paths that replace the ring's patterns.
    pub(super) when: Option<Vec<String>>,
    /// What runs at each change.
    short: Option<String>,
    /// What runs where something was changed that the ring guards.
    long: Option<String>,
    /// What runs with `--all`.
    all: Option<String>,
    /// The step is ended after so many minutes.
    #[serde(default = "quarter_of_an_hour")]
    minutes: u64,
}

/// How much of a ring is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    Short,
    Long,
    All,
}

impl Form {
    pub(super) fn name(self) -> &'static str {
        match self {
            Form::Short => "short",
            Form::Long => "long",
            Form::All => "all",
        }
    }
}

fn quarter_of_an_hour() -> u64 {
    15
}

/// `--all` is for machines that do other work, too, where steps take longer.
const BUSY: u64 = 3;

impl Step {
    /// Minutes after which it is ended.
    pub(super) fn minutes(&self, form: Form) -> u64 {
        self.minutes * if form == Form::All { BUSY } else { 1 }
    }

    /// The command of a form. A longer form without one of its own has the shorter form's; a step
    /// that has none is not part of the form.
    pub(super) fn command(&self, form: Form) -> Option<&str> {
        let forms = [(Form::All, &self.all), (Form::Long, &self.long), (Form::Short, &self.short)];
        let written = forms.into_iter().filter(|(of, _)| *of <= form).find_map(|(_, command)| command.as_deref());
        // An empty one leaves the step out, where another form has taken its place.
        written.filter(|command| !command.is_empty())
    }
}

impl Table {
    pub(super) fn read() -> Result<Table> {
        let path = xtask_base::tree::root().join("xtask/ci.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Table::parse(&text).with_context(|| path.display().to_string())
    }

    pub(super) fn parse(text: &str) -> Result<Table> {
        let table: Table = toml::from_str(text)?;
        let mut names = BTreeSet::new();
        for ring in &table.rings {
            ensure!(names.insert(ring.name.as_str()), "there are two rings {:?}", ring.name);
            let has_short = ring.steps.iter().any(|step| step.command(Form::Short).is_some());
            ensure!(has_short, "ring {:?} has no short form: it would be skipped", ring.name);
            for step in &ring.steps {
                ensure!(names.insert(step.name.as_str()), "there are two steps {:?}", step.name);
                ensure!(step.command(Form::All).is_some(), "step {:?} is in no form", step.name);
            }
        }
        Ok(table)
    }

    /// What runs, in order.
    pub(super) fn plan(&self, scope: &Scope) -> Vec<Planned<'_>> {
        let mut plan = Vec::new();
        for ring in &self.rings {
            for step in &ring.steps {
                let form = match scope {
                    Scope::Form(form) => *form,
                    Scope::Changed(paths) if paths.iter().any(|path| self.concerns(ring, step, path)) => Form::Long,
                    Scope::Changed(_) => Form::Short,
                };
                plan.extend(step.command(form).map(|command| Planned { ring, step, form, command }));
            }
        }
        plan
    }

    /// Whether a step guards a path. What no ring guards, all do.
    fn concerns(&self, ring: &Ring, step: &Step, path: &str) -> bool {
        let fits = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, path));
        fits(step.when.as_ref().unwrap_or(&ring.guards)) || !self.rings.iter().any(|ring| fits(&ring.guards))
    }
}

/// What decides on the forms.
pub(super) enum Scope {
    /// All rings have this one.
    Form(Form),
    /// It depends on which files have changed.
    Changed(Vec<String>),
}

/// A step that is to run.
pub(super) struct Planned<'a> {
    pub(super) ring: &'a Ring,
    pub(super) step: &'a Step,
    pub(super) form: Form,
    pub(super) command: &'a str,
}

impl Planned<'_> {
    pub(super) fn name(&self) -> String {
        format!("{}: {} ({})", self.ring.name, self.step.name, self.form.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rings of the tree's own table that run in their long form when `path` has changed.
    fn long_for(path: &str) -> Vec<String> {
        let table = Table::read().expect("the table");
        let plan = table.plan(&Scope::Changed(vec![path.into()]));
        let ran: BTreeSet<_> = plan.iter().map(|planned| planned.ring.name.as_str()).collect();
        assert_eq!(ran.len(), table.rings.len(), "no ring is skipped");
        let long = |ring: &Ring| {
            let mut steps = plan.iter().filter(|planned| planned.ring.name == ring.name && planned.step.when.is_none());
            steps.any(|planned| planned.form == Form::Long)
        };
        table.rings.iter().filter(|ring| long(ring)).map(|ring| ring.name.clone()).collect()
    }

    #[test]
    fn one_line_has_the_right_rings_run() {
        for (path, rings) in [
            ("cu/src/fast/step.rs", &["engine", "programs"][..]),
            ("isa/src/decode.rs", &["engine", "lint", "programs"]),
            ("lint/src/waits.rs", &["lint"]),
            ("gpu/src/gpu.rs", &["engine", "programs"]),
            ("linux/main.rs", &["guest"]),
            ("wire/src/lib.rs", &["guest"]),
            ("driver/src/svm/mod.rs", &["driver", "guest"]),
            ("host/src/mm.rs", &["driver", "clients"]),
            ("virtio-gpu/src/lib.rs", &["native"]),
            ("remote/src/lib.rs", &["native"]),
            ("preload/src/machine.rs", &["release", "clients"]),
            ("cli/src/main.rs", &["release", "clients", "pages"]),
            ("xtask/programs/rocrand.toml", &["programs"]),
            ("docs/ci.md", &["pages"]),
            ("README.md", &["pages"]),
        ] {
            assert_eq!(long_for(path), rings, "{path}");
        }
    }

    #[test]
    fn what_no_ring_guards_concerns_all() {
        let table = Table::read().expect("the table");
        for path in ["Cargo.toml", "Cargo.lock", ".ci/run", "rust-toolchain.toml", "something/new.rs"] {
            assert_eq!(long_for(path).len(), table.rings.len(), "{path}");
        }
    }

    #[test]
    fn a_step_may_guard_other_files_than_its_ring() {
        let text =
            "[[ring]]\nname = 'r'\nabout = 'a'\nguards = ['a/*']\n[[ring.step]]\nname = 's'\nshort = 'x'\nlong = 'y'\n\
                    [[ring.step]]\nname = 't'\nwhen = ['*.rs']\nlong = 'z'\n[[ring]]\nname = 'q'\nabout = 'a'\n\
                    guards = ['b/*']\n[[ring.step]]\nname = 'u'\nshort = 'w'\n";
        let table = Table::parse(text).expect("a table");
        let commands = |path: &str| {
            let plan = table.plan(&Scope::Changed(vec![path.into()]));
            plan.iter().map(|planned| planned.command).collect::<Vec<_>>()
        };
        assert_eq!(commands("a/x.c"), ["y", "w"]);
        assert_eq!(commands("b/x.rs"), ["x", "z", "w"]);
        assert_eq!(commands("c"), ["y", "z", "w"]);
    }

    #[test]
    fn a_longer_form_has_what_the_shorter_one_has() {
        let text = "[[ring]]\nname = 'r'\nabout = 'a'\n[[ring.step]]\nname = 's'\nshort = 'one'\nall = 'three'\n\
                    [[ring.step]]\nname = 't'\nlong = 'two'\n[[ring.step]]\nname = 'u'\nshort = 'x'\nlong = ''\nall = 'y'\n";
        let table = Table::parse(text).expect("a table");
        let commands = |form| table.rings[0].steps.iter().filter_map(|step| step.command(form)).collect::<Vec<_>>();
        assert_eq!(commands(Form::Short), ["one", "x"]);
        assert_eq!(commands(Form::Long), ["one", "two"]);
        assert_eq!(commands(Form::All), ["three", "two", "y"]);
        let minutes = |form| table.rings[0].steps[0].minutes(form);
        assert_eq!([Form::Short, Form::Long, Form::All].map(minutes), [15, 15, 45]);
    }

    #[test]
    fn a_ring_that_would_be_skipped_is_refused() {
        let ring = |steps: &str| format!("[[ring]]\nname = 'r'\nabout = 'a'\n{steps}");
        let step = |name: &str, form: &str| format!("[[ring.step]]\nname = '{name}'\n{form} = 'x'\n");
        assert!(Table::parse(&ring(&step("s", "short"))).is_ok());
        for steps in
            [step("s", "long"), step("s", "short").repeat(2), step("r", "short"), "[[ring.step]]\nname = 's'\n".into()]
        {
            assert!(Table::parse(&ring(&steps)).is_err(), "{steps}");
        }
    }
}
