// SPDX-License-Identifier: GPL-2.0 OR MIT
extern crate std;

use super::*;
use crate::base::addr::FabricAddr;
use std::collections::BTreeMap;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;
use vkfd_targets::Target;

#[derive(Default)]
struct Files {
    at: Vec<String>,
    files: BTreeMap<String, String>,
}

impl Sink for Files {
    type Error = ();

    fn enter(&mut self, name: Name) -> Result<(), ()> {
        self.at.push(match name {
            Name::Word(word) => word.to_str().unwrap().to_string(),
            Name::Number(number) => number.to_string(),
        });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), ()> {
        self.at.pop().map(drop).ok_or(())
    }

    fn file(&mut self, name: &'static CStr, text: &dyn fmt::Display) -> Result<(), ()> {
        let path = format!("{}/{}", self.at.join("/"), name.to_str().unwrap());
        assert!(self.files.insert(path, text.to_string()).is_none());
        Ok(())
    }
}

fn properties(version: u32) -> GpuProperties {
    GpuProperties {
        gpu_id: 0x4b01,
        vram_bytes: 1 << 30,
        vram_base: FabricAddr(0),
        vmids: 16,
        gfx_target_version: version,
        model: *Model::of(version),
        xnack_capable: true,
        clock_hz: 100_000_000,
    }
}

fn rendered(versions: &[u32], coherent: bool) -> BTreeMap<String, String> {
    let properties: Vec<_> = versions.iter().map(|version| properties(*version)).collect();
    let gpus: Vec<_> = (FIRST_RENDER_MINOR..)
        .zip(&properties)
        .map(|(render_minor, properties)| Gpu { properties, render_minor })
        .collect();
    let processors = Processors { cores: 2, first_apic: 4, ram: 8 << 30 };
    let mut sink = Files::default();
    Machine { processors, gpus: &gpus, coherent, svm: true }.render(&mut sink).unwrap();
    assert!(sink.at.is_empty());
    sink.files
}

fn value(files: &BTreeMap<String, String>, path: &str, key: &str) -> u64 {
    let text = &files[&format!("topology/nodes/{path}")];
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{key} in {path}: {text}")).parse().unwrap()
}

/// A runtime reads as many entries as a count says.
#[test]
fn counts_are_those_of_the_directories() {
    for versions in [&[90_000][..], &[90_010; 4], &[100_300, 110_000]] {
        let files = rendered(versions, false);
        for node in 0..=versions.len() {
            for (key, group) in
                [("mem_banks_count", "mem_banks"), ("caches_count", "caches"), ("io_links_count", "io_links")]
            {
                let prefix = format!("topology/nodes/{node}/{group}/");
                let there = files.keys().filter(|path| path.starts_with(&prefix)).count();
                assert_eq!(value(&files, &format!("{node}/properties"), key), there as u64, "node {node} {group}");
            }
        }
    }
}

#[test]
fn every_model_has_what_runtimes_divide_by() {
    for model in Target::ALL.map(Target::model) {
        let files = rendered(&[model.version], false);
        let number = |key| value(&files, "1/properties", key);
        // Arrays may have a unit less than the fullest.
        let (room, arrays) = (number("cu_per_simd_array") * number("array_count"), number("array_count"));
        let units = number("simd_count") / number("simd_per_cu");
        assert!((room - arrays + 1..=room).contains(&units), "{units} units in {arrays} arrays");
        assert_eq!(arrays % number("simd_arrays_per_engine"), 0);
        for key in
            ["max_waves_per_simd", "wave_front_size", "caches_count", "num_sdma_engines", "max_engine_clk_fcompute"]
        {
            assert_ne!(number(key), 0, "{key} of {}", model.version);
        }
        assert_eq!(number("gfx_target_version"), model.version.into());
        assert_ne!(
            number("capability") & 1 << 27,
            0,
            "a runtime that does not see HSA_CAP_SVMAPI_SUPPORTED makes no SVM calls"
        );
        assert_eq!(number("capability") & 1 << 26 != 0, (90_010..100_000).contains(&model.version), "sramecc+");
        assert!(value(&files, "1/mem_banks/0/properties", "size_in_bytes") == 1 << 30);
        // sysfs shows at most a page.
        assert!(files.values().all(|text| text.len() < 4096));
    }
}

/// A machine of one's own has other numbers than its target's model.
#[test]
fn what_is_shown_is_the_gpus_own_model() {
    let gpu = GpuProperties {
        model: Model { clock_mhz: 1234, memory_bits: 512, memory_mhz: 777, ..Target::Gfx90a.model().with_units(20) },
        ..properties(90_010)
    };
    let processors = Processors { cores: 2, first_apic: 4, ram: 8 << 30 };
    let mut sink = Files::default();
    let gpus = [Gpu { properties: &gpu, render_minor: FIRST_RENDER_MINOR }];
    Machine { processors, gpus: &gpus, coherent: false, svm: true }.render(&mut sink).unwrap();
    let number = |key| value(&sink.files, "1/properties", key);
    let array = [number("array_count"), number("cu_per_simd_array")];
    assert_eq!((array, number("simd_count"), number("max_engine_clk_fcompute")), ([8, 3], 80, 1234));
    let bank = |key| value(&sink.files, "1/mem_banks/0/properties", key);
    assert_eq!((bank("width"), bank("mem_clk_max")), (512, 777));
    let caches = sink.files.keys().filter(|path| path.starts_with("topology/nodes/1/caches/")).count();
    // Four arrays have three units, the others two: one for each unit, two for each pair, one for
    // all.
    assert_eq!((number("caches_count"), caches), (45, 45));
}

/// The numbers are those that KFD of Linux 7.3 shows for an MI210.
#[test]
fn caches_are_shared_within_an_array() {
    let files = rendered(&[90_010], false);
    let first = value(&files, "1/properties", "simd_id_base");
    assert_eq!(value(&files, "1/properties", "caches_count"), 217);
    // Units 0, 13 (the first of the second array), pairs 0 and 7 of instructions, and all.
    for (cache, unit, kib, kind) in
        [(0, 0, 16, 9), (13, 13, 16, 9), (104, 0, 32, 10), (111, 13, 32, 10), (160, 0, 16, 9), (216, 0, 8192, 9)]
    {
        let number = |key| value(&files, &format!("1/caches/{cache}/properties"), key);
        let found = (number("processor_id_low"), number("size"), number("type"));
        assert_eq!(found, (first + unit, kib, kind), "cache {cache}");
    }
    let siblings = |cache| {
        let text = &files[&format!("topology/nodes/1/caches/{cache}/properties")];
        let map = text.lines().find_map(|line| line.strip_prefix("sibling_map ")).unwrap();
        map.split(',').map(|bit| bit.parse().unwrap()).collect::<Vec<u32>>()
    };
    // The last pair of an array of 13 units is one unit.
    assert_eq!([110, 111, 216].map(|cache| siblings(cache).iter().sum::<u32>()), [1, 2, 104]);
    assert_eq!([110, 216].map(|cache| siblings(cache).len()), [32, 256]);
}

#[test]
fn links_lead_to_every_other_node_and_back() {
    let files = rendered(&[90_010; 4], true);
    for from in 0..5_u64 {
        let to: Vec<_> =
            (0..4).map(|link| value(&files, &format!("{from}/io_links/{link}/properties"), "node_to")).collect();
        let others: Vec<_> = (0..5).filter(|node| *node != from).collect();
        assert_eq!(to, others);
        let kind = value(&files, &format!("{from}/io_links/0/properties"), "type");
        assert_eq!(kind, 11, "one coherent space is linked by XGMI");
    }
    let alone = rendered(&[90_010], false);
    assert_eq!(value(&alone, "1/io_links/0/properties", "type"), 2);
    assert_eq!((value(&alone, "1/properties", "hive_id"), value(&files, "1/properties", "hive_id")), (0, 1));
}

#[test]
fn names_are_compilers_names() {
    let files = rendered(&[90_010, 100_300, 110_000], false);
    let names: Vec<_> = (0..4).map(|node| files[&format!("topology/nodes/{node}/name")].trim()).collect();
    assert_eq!(names, ["", "gfx90a", "gfx1030", "gfx1100"]);
}
