// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd disasm` on the client library's code objects, whole, damaged, cut short, and on files that
//! are none.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::json;
use serde_json::Value;
use vkfd_isa::Target;

fn code(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/code").join(target).with_extension("co")
}

fn disasm(file: &Path, more: &[&str]) -> Output {
    common::command(&["disasm"]).arg(file).args(more).output().unwrap()
}

/// What it says of `bytes`, which it has to refuse: one line that names the file.
fn refusal(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("strange.co");
    fs::write(&file, bytes).unwrap();
    let run = disasm(&file, &[]);
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(2), "{said}");
    assert!(said.contains("strange.co") && !said.contains("panicked"), "{said}");
    said
}

fn functions(document: &Value) -> &Vec<Value> {
    document["objects"][0]["functions"].as_array().unwrap()
}

#[test]
fn every_kernel_of_every_target_is_read_to_its_end() {
    for target in Target::ALL.map(Target::name) {
        let run = disasm(&code(target), &["--json"]);
        let document = json(&run);
        assert_eq!(run.status.code(), Some(0), "{target}");
        assert_eq!(document["objects"][0]["target"], target);
        // These files have no table of symbols but the dynamic one.
        let kernels = functions(&document);
        let names: Vec<&str> = kernels.iter().map(|kernel| kernel["name"].as_str().unwrap()).collect();
        for name in ["fill64", "iota64", "copy64", "sum64", "saxpy", "matmul", "crc32_begin", "crc32_add"] {
            assert!(names.contains(&name), "{target}: {names:?}");
        }
        for kernel in kernels {
            let name = &kernel["name"];
            let entry = format!("{:#x}", kernel["address"].as_u64().unwrap());
            assert_eq!(kernel["descriptor"]["fields"]["entry"], Value::String(entry), "{target} {name}");
            let instructions = kernel["instructions"].as_array().unwrap();
            let bytes: usize = instructions.iter().map(|line| 4 * line["words"].as_array().unwrap().len()).sum();
            assert_eq!(kernel["bytes"], bytes, "{target} {name}");
            assert!(instructions.iter().any(|line| line["operation"] == "s_endpgm"), "{target} {name}");
            // A branch goes to an instruction of the same kernel.
            let addresses: Vec<u64> = instructions.iter().map(|line| line["address"].as_u64().unwrap()).collect();
            for to in instructions.iter().filter_map(|line| line["branch"].as_u64()) {
                assert!(addresses.contains(&to), "{target} {name}: a branch to {to:#x}");
            }
        }
    }
}

#[test]
fn text_has_descriptors_labels_and_addresses() {
    let run = disasm(&code("gfx90a"), &["--symbol", "fill64"]);
    let text = String::from_utf8(run.stdout).unwrap();
    assert_eq!(run.status.code(), Some(0), "{text}");
    for part in ["code object of gfx90a", "kernel fill64: 0x", "kernarg_size", "L0:", " -> L0", "s_endpgm"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains("matmul"));
}

#[test]
fn a_symbol_that_no_object_has_is_an_error() {
    let run = disasm(&code("gfx90a"), &["--symbol", "no_such_kernel"]);
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!((run.status.code(), run.stdout.is_empty()), (Some(2), true), "{said}");
    assert!(said.contains("no function whose name contains no_such_kernel"), "{said}");
}

#[test]
fn a_word_that_is_no_instruction_is_named_with_its_place_in_the_file() {
    for target in Target::ALL.map(Target::name) {
        let mut bytes = fs::read(code(target)).unwrap();
        let document = json(&disasm(&code(target), &["--json", "--symbol", "fill64"]));
        let fill = &functions(&document)[0];
        let words: Vec<u8> = fill["instructions"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|line| line["words"].as_array().unwrap())
            .flat_map(|word| u32::try_from(word.as_u64().unwrap()).unwrap().to_le_bytes())
            .collect();
        // The code of the kernel, found by its words and not by the offset in the output.
        let at = bytes.windows(words.len()).position(|window| window == words).unwrap();
        let first = 4 * fill["instructions"][0]["words"].as_array().unwrap().len();
        bytes[at + first..at + first + 4].fill(0xff);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("damaged.co");
        fs::write(&file, &bytes).unwrap();
        let run = disasm(&file, &["--symbol", "fill64"]);
        assert_eq!(run.status.code(), Some(1), "{target}");
        let (said, text) = (String::from_utf8(run.stderr).unwrap(), String::from_utf8(run.stdout).unwrap());
        let place = format!("byte {:#x}", at + first);
        for part in ["damaged.co", &place, &format!("fill64 + {first:#x}"), "0xffffffff", target] {
            assert!(said.contains(part), "{target}: no {part:?} in {said}");
        }
        assert!(text.contains(".long 0xffffffff") && text.contains(&place), "{text}");
        assert!(text.contains("s_endpgm"), "what follows is shown, too: {text}");
    }
}

#[test]
fn an_object_that_is_cut_short_is_refused_or_read_as_far_as_it_is_whole() {
    let whole = fs::read(code("gfx1100")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("short.co");
    // Every length of the header, then some of each part.
    for length in (0..80).step_by(7).chain((80..whole.len()).step_by(whole.len() / 40)) {
        fs::write(&file, &whole[..length]).unwrap();
        let run = disasm(&file, &[]);
        let said = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(2), "{length} bytes: {said}");
        assert!(said.contains("short.co") && !said.contains("panicked"), "{length} bytes: {said}");
    }
}

#[test]
fn files_that_are_no_code_objects_are_refused_by_name() {
    assert!(refusal(b"").contains("neither a code object"));
    assert!(refusal(b"kernel void f() {}\n").contains("neither a code object"));
    let own = fs::read(env!("CARGO_BIN_EXE_vkfd")).unwrap();
    // A program of the host, without its data.
    assert!(refusal(&own[..64]).contains("neither a code object"));
    assert!(refusal(b"CCOB\x02\0\0\0").contains("compressed"));
    assert!(refusal(b"__CLANG_OFFLOAD_BUNDLE__\xff\xff\xff\xff\xff\xff\xff\x7f").contains("byte 0x0"));
    let mut bundle = [&[0; 100][..], b"__CLANG_OFFLOAD_BUNDLE__", &1u64.to_le_bytes(), &56u64.to_le_bytes()].concat();
    bundle.extend(20u64.to_le_bytes());
    bundle.extend(0u64.to_le_bytes());
    bundle.extend(b"\x7fELF0123456789abcdef");
    // The bundle is at byte 100, its object 56 bytes into it.
    assert!(refusal(&bundle).contains("byte 0x9c"), "{}", refusal(&bundle));
    // An object for another machine, one of an unknown runtime, and one whose symbols are gone.
    let mut other = fs::read(code("gfx900")).unwrap();
    other[7] = 3;
    assert!(refusal(&other).contains("OS ABI 3"));
    let mut stripped = fs::read(code("gfx900")).unwrap();
    stripped[40..48].fill(0);
    stripped[60..64].fill(0);
    assert!(refusal(&stripped).contains("no symbol"), "{}", refusal(&stripped));
    let missing = disasm(Path::new("/nonexistent.co"), &[]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8(missing.stderr).unwrap().contains("/nonexistent.co"));
}
