// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM in `vkfd inspect`: how memory moved, the ranges, and where their pages are.

use anyhow::Result;
use serde_json::{json, Map, Value};
use vkfd_client::uapi::svm::{SVM_LOCATION_SYSMEM, SVM_LOCATION_UNDEFINED};
use vkfd_client::{Client, SvmInfo, SvmRangeInfo, PAGE};

use super::{lines, Detail, FIRST};
use crate::format::{bytes, count, Align, Table};
use crate::report::Output;

/// Prints it, if there is any.
pub(super) fn print(output: &Output, client: &Client, detail: &Detail) -> Result<()> {
    if !client.caps().svm {
        return Ok(());
    }
    let info = client.svm()?;
    if info.ranges == 0 {
        return Ok(());
    }
    output.heading("SVM")?;
    for (name, value) in counters(&info) {
        output.line(&format!("  {:<44} {}", name.replace('_', " "), count(value)))?;
    }
    let all = client.svm_ranges()?;
    let shown = if detail.all { all.len() } else { all.len().min(FIRST) };
    output.heading("SVM ranges")?;
    lines(output, &ranges(client, &all[..shown]))?;
    if shown < all.len() {
        output.line(&format!("... and {} more (inspect --all)", count((all.len() - shown) as u64)))?;
    }
    Ok(())
}

/// The same as JSON; null where the driver does not tell.
pub(super) fn json_of(client: &Client) -> Result<Value> {
    if !client.caps().svm {
        return Ok(Value::Null);
    }
    let info = client.svm()?;
    let mut map: Map<String, Value> =
        counters(&info).into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let all = client.svm_ranges()?;
    let ranges = all.iter().map(|range| {
        json!({
            "start": range.start, "size": range.size, "preferred": range.preferred, "prefetch": range.prefetch,
            "flags": range.flags, "granularity": range.granularity, "access": range.access, "in_place": range.in_place,
            "vram_pages": range.vram_pages, "on_gpus": range.on_gpus,
        })
    });
    map.insert("list".to_owned(), ranges.collect());
    Ok(map.into())
}

fn counters(info: &SvmInfo) -> Vec<(&'static str, u64)> {
    macro_rules! named {
        ($($field:ident)+) => { vec![$((stringify!($field), info.$field)),+] };
    }
    named!(ranges notifiers vram_pages migrations_in pages_in migrations_out pages_out evictions pages_refused bounces damped
        faults unregistered dropped vram_used)
}

fn ranges(client: &Client, list: &[SvmRangeInfo]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("address", Right),
        ("size", Right),
        ("preferred", Left),
        ("prefetched", Left),
        ("flags", Right),
        ("granularity", Right),
        ("access", Left),
        ("in place", Left),
        ("in VRAM", Right),
        ("of GPUs", Left),
    ]);
    let location = |at: u32| match at {
        SVM_LOCATION_SYSMEM => "system".to_owned(),
        SVM_LOCATION_UNDEFINED => "-".to_owned(),
        gpu_id => format!("{gpu_id:#x}"),
    };
    let gpus = |bits: u32| {
        let names = (0_u32..).zip(client.gpus()).filter(|(i, _)| bits >> i & 1 != 0).map(|(_, gpu)| gpu.id.to_string());
        let names: Vec<_> = names.collect();
        if names.is_empty() {
            "-".to_owned()
        } else {
            names.join(" ")
        }
    };
    for range in list {
        table.row(vec![
            format!("{:#x}", range.start),
            bytes(range.size),
            location(range.preferred),
            location(range.prefetch),
            format!("{:#x}", range.flags),
            bytes(PAGE << range.granularity.min(50)),
            gpus(range.access),
            gpus(range.in_place),
            bytes(range.vram_pages * PAGE),
            gpus(range.on_gpus),
        ]);
    }
    table
}
