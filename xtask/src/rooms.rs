// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The rooms of the driver's source and their order: a lower room does not name what is in a higher one.
//!
//! `driver/src/lib.rs` says which module is in which room (`pub use gpuvm::{page_table, vm};`), and modules name each other as
//! `crate::vm`. Tests at the end of a file may name anything.

use std::collections::HashMap;

/// From the ground up. Rooms of one floor may name each other.
const FLOORS: [&[&str]; 11] = [
    &["base", "os"],
    &["collections"],
    &["seams"],
    &["topology"],
    &["device"],
    &["gpuvm", "queues"],
    &["userptr"],
    &["buffers"],
    &["machine"],
    &["process", "svm"],
    &["calls", "drm"],
];

/// Which module is where.
pub struct Rooms(HashMap<String, String>);

impl Rooms {
    /// As the crate's root says.
    pub fn of(root: &str) -> Self {
        let mut rooms = HashMap::new();
        for name in FLOORS.iter().copied().flatten() {
            rooms.insert((*name).into(), (*name).into());
        }
        for line in root.lines() {
            let Some((room, modules)) = line.strip_prefix("pub use ").and_then(|rest| rest.split_once("::")) else {
                continue;
            };
            for module in modules.trim_end_matches(';').trim_matches(['{', '}']).split(',') {
                rooms.insert(module.trim().into(), room.into());
            }
        }
        Self(rooms)
    }

    /// The findings in a file of the driver's, `path` relative to its `src`.
    pub fn check(&self, path: &str, text: &str) -> Vec<String> {
        let Some((room, _)) = path.split_once('/') else { return Vec::new() };
        let Some(own) = floor(room) else { return vec![format!("driver/src/{path}: no room is called {room}")] };
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let mut findings = Vec::new();
        for (number, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default();
            for after in line.split("crate::").skip(1) {
                let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let Some(other) = self.0.get(&name).filter(|other| floor(other) > Some(own)) else { continue };
                findings.push(format!(
                    "driver/src/{path}:{}: {room} names {name}, which is in {other}, a higher room",
                    number + 1
                ));
            }
        }
        findings
    }
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "pub mod svm;\npub use gpuvm::{page_table, vm};\npub use calls::mmap;\n";

    #[test]
    fn a_lower_room_may_not_name_a_higher_one() {
        let rooms = Rooms::of(ROOT);
        assert!(rooms.check("svm/block.rs", "use crate::vm::Vm;\nuse crate::process::Process;\n").is_empty());
        assert_eq!(
            rooms.check("gpuvm/vm.rs", "use crate::page_table::Leaves;\n// crate::mmap\nlet x = crate::mmap::f();\n"),
            ["driver/src/gpuvm/vm.rs:3: gpuvm names mmap, which is in calls, a higher room"]
        );
        assert_eq!(rooms.check("base/addr.rs", "use crate::svm;\n").len(), 1);
        assert!(rooms.check("base/addr.rs", "\n#[cfg(test)]\nmod tests {\n    use crate::svm;\n}\n").is_empty());
    }

    #[test]
    fn each_directory_is_a_room() {
        assert_eq!(Rooms::of(ROOT).check("utils/x.rs", "").len(), 1);
    }

    #[test]
    fn the_drivers_root_names_modules_that_exist() {
        let root = crate::tree::root().join("driver/src");
        let rooms = Rooms::of(&std::fs::read_to_string(root.join("lib.rs")).unwrap());
        for (module, room) in rooms.0.iter().filter(|(module, room)| module != room) {
            assert!(root.join(format!("{room}/{module}.rs")).exists(), "{room}/{module}.rs");
        }
        assert!(rooms.0.len() > 40, "{} modules", rooms.0.len());
    }
}
