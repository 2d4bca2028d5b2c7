// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The rooms of a crate's source and their order: a room names only what is in lower ones.
//!
//! A room is a module of the crate's root, and modules name each other by the whole path
//! (`crate::gpuvm::vm`). A name that the root takes out of a room for users of the crate (`pub use
//! memory::vram::Vram;`) counts as the room's. Where a room must ask something of a higher one, it
//! has a trait for that, and the higher one implements it. Tests, at the end of a file or in a file
//! of their own, may name anything.
//!
//! A method is reached without its room's name. A method on a lower room's type would hide that the
//! caller needs a higher room. Only the `mod.rs` of a room adds such methods, for callers of the
//! crate.
//!
//! Because the order has no circle, the modules of different rooms do not know each other in a
//! ring.

use std::collections::HashMap;

/// The crates whose source stands in rooms.
pub const CRATES: [Crate; 3] = [
    Crate {
        source: "driver/src/",
        floors: &[
            &["base"],
            &["os"],
            &["collections", "seams"],
            &["device", "topology"],
            &["gpuvm"],
            &["queues"],
            &["userptr"],
            &["buffers", "svm"],
            &["machine"],
            &["process"],
            &["calls"],
            &["drm"],
        ],
    },
    Crate {
        source: "gpu/src/",
        floors: &[&["base"], &["memory"], &["state"], &["kernels"], &["packets"], &["queue"], &["gpu"]],
    },
    Crate {
        source: "host/src/",
        floors: &[
            &[
                "device_file",
                "files",
                "hook",
                "interposed",
                "listening",
                "log_rate",
                "mapping_count",
                "maps",
                "memory_left",
                "preload_list",
                "timeline",
            ],
            &["pagemap", "sabotage", "size", "source", "sys"],
            &["error", "per_process", "populate", "table", "uffd"],
            &["frame"],
            &["mm", "shape"],
            &["dma"],
            &["device"],
            &["migrate"],
            &["address_space", "interpose", "system"],
            &["grants"],
            &["blocks", "devices"],
            &["mapping"],
            &["kfd_file"],
            &["render_file"],
            &["machine"],
            &["confined", "description"],
        ],
    },
];

/// A crate and its rooms, from the ground up.
pub struct Crate {
    /// Where its source is, with a slash at the end.
    pub source: &'static str,
    floors: &'static [&'static [&'static str]],
}

impl Crate {
    fn floor(&self, room: &str) -> Option<usize> {
        self.floors.iter().position(|rooms| rooms.contains(&room))
    }
}

/// What is in which room of a crate.
pub struct Rooms {
    of: &'static Crate,
    /// A module's room, by the module's name in the root.
    names: HashMap<String, String>,
}

impl Rooms {
    /// As the crate's root says.
    pub fn new(of: &'static Crate, root: &str) -> Self {
        let mut names: HashMap<String, String> = HashMap::new();
        for name in of.floors.iter().copied().flatten() {
            names.insert((*name).into(), (*name).into());
        }
        let code: Vec<&str> = root.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
        for statement in code.join(" ").split(';') {
            let Some((before, used)) = statement.split_once("use ") else { continue };
            let Some((from, listed)) = used.split_once("::") else { continue };
            if before.contains('{') {
                continue;
            }
            // What comes from a room's module is in that room, too.
            let Some(room) = names.get(from.trim()).cloned() else { continue };
            let listed = listed.rsplit("::").next().unwrap_or_default();
            for name in listed.trim().trim_matches(['{', '}']).split(',').map(str::trim).filter(|name| !name.is_empty())
            {
                names.entry(name.into()).or_insert_with(|| room.clone());
            }
        }
        Self { of, names }
    }

    /// The findings in a file, `path` relative to the crate's source.
    pub fn check(&self, path: &str, text: &str) -> Vec<String> {
        let room = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        if path == "lib.rs" || path.ends_with("tests.rs") {
            return Vec::new();
        }
        let source = self.of.source;
        let Some(own) = self.of.floor(room) else { return vec![format!("{source}{path}: no room is called {room}")] };
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let mut findings = Vec::new();
        if path != format!("{room}/mod.rs") {
            for (number, foreign) in foreign_methods(code, room) {
                findings.push(format!("{source}{path}:{number}: {room} gives methods to {foreign}"));
            }
        }
        for (number, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default();
            for after in line.split("crate::").skip(1) {
                let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let Some(other) = self.names.get(&name).filter(|other| *other != room) else { continue };
                if self.of.floor(other).is_some_and(|other| other >= own) {
                    findings.push(format!(
                        "{source}{path}:{}: {room} names {name}, which is in {other}, not a lower room",
                        number + 1
                    ));
                }
            }
        }
        findings
    }
}

/// Where a file of `room` has methods of its own for types that it takes from other rooms: the
/// line, and the type with its room.
fn foreign_methods(code: &str, room: &str) -> Vec<(usize, String)> {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.filter(|word| !word.is_empty()).map(Into::into).collect()
    };
    // A type's name, and its room.
    let mut taken = HashMap::new();
    for used in code.split("use crate::").skip(1).filter_map(|rest| rest.split(';').next()) {
        let path = words(used);
        if let Some(other) = path.first().filter(|other| *other != room) {
            let types = path.iter().skip(1).filter(|word| word.starts_with(char::is_uppercase));
            taken.extend(types.map(|name| (name.clone(), format!("{other}'s {name}"))));
        }
    }
    let type_of = |line: &str| {
        // After the parameters of `impl<...>`.
        let named = line.strip_prefix("impl").map(|rest| match rest.starts_with('<') {
            true => rest.split_once("> ").map_or("", |(_, named)| named),
            false => rest,
        });
        words(named.unwrap_or_default()).into_iter().next()
    };
    let own = code.lines().enumerate().filter(|(_, line)| line.starts_with("impl") && !line.contains(" for "));
    own.filter_map(|(number, line)| Some((number + 1, taken.get(&type_of(line)?)?.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "pub mod svm;\npub use gpuvm::vm::{Leaves,\n Vm};\npub use calls::mmap;\n";

    fn rooms() -> Rooms {
        Rooms::new(&CRATES[0], ROOT)
    }

    #[test]
    fn a_room_names_only_lower_ones() {
        let rooms = rooms();
        assert!(rooms.check("process/mod.rs", "use crate::gpuvm::vm::Vm;\nuse crate::svm::Svm;\n").is_empty());
        assert_eq!(
            rooms.check("gpuvm/vm.rs", "use crate::Leaves;\n// crate::mmap\nlet x = crate::mmap::f();\n"),
            ["driver/src/gpuvm/vm.rs:3: gpuvm names mmap, which is in calls, not a lower room"]
        );
        assert_eq!(rooms.check("svm/window.rs", "use crate::process::Process;\n").len(), 1);
        assert_eq!(rooms.check("svm/window.rs", "use crate::buffers::Bo;\n").len(), 1, "one of the same floor");
        assert_eq!(rooms.check("base/addr.rs", "use crate::Vm;\n").len(), 1, "what the root takes out of a module");
        assert!(rooms.check("base/addr.rs", "\n#[cfg(test)]\nmod tests {\n    use crate::svm;\n}\n").is_empty());
    }

    #[test]
    fn only_a_rooms_face_adds_methods_to_others_types() {
        let text =
            "use crate::process::svm::{self, SvmWork};\nimpl<'a> SvmWork<'a> {\n}\nimpl Clone for SvmWork<'_> {\n";
        let finding = ["driver/src/calls/queue.rs:2: calls gives methods to process's SvmWork"];
        assert_eq!(rooms().check("calls/queue.rs", text), finding);
        assert!(rooms().check("calls/mod.rs", text).is_empty());
        assert!(rooms().check("process/svm/call.rs", text).is_empty());
        assert!(rooms().check("calls/queue.rs", "struct Call;\nimpl Call {\n").is_empty());
    }

    #[test]
    fn each_module_of_the_root_is_a_room() {
        assert_eq!(rooms().check("utils/x.rs", "").len(), 1);
        assert_eq!(rooms().check("utils.rs", "").len(), 1);
        assert!(rooms().check("lib.rs", "use crate::drm;").is_empty());
        assert!(rooms().check("base/tests.rs", "use crate::drm;").is_empty());
    }

    #[test]
    fn the_rooms_are_those_of_the_tree() {
        for of in &CRATES {
            let source = xtask_base::tree::root().join(of.source);
            let rooms = Rooms::new(of, &std::fs::read_to_string(source.join("lib.rs")).unwrap());
            for room in of.floors.iter().copied().flatten() {
                let (file, directory) = (source.join(format!("{room}.rs")), source.join(room));
                assert!(file.exists() || directory.join("mod.rs").exists(), "{}{room}", of.source);
            }
            // A crate without names in its root would have no users.
            assert!(rooms.names.len() > 10, "{}: {} names", of.source, rooms.names.len());
        }
    }
}
