// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Step 1: registering and mapping the buffer, and reading the driver's list of it.

use std::time::Instant;

use anyhow::Result;
use vkfd_client::uapi::vkfd::RANGE_VALID;
use vkfd_client::{RegisterOptions, PAGE};

use super::scene::Scene;
use crate::format::{bytes, count, counted, time};
use crate::inspect::Entries;
use crate::report::{Report, Title};

/// Whether the buffer is registered.
pub fn run(scene: &mut Scene<'_>, report: &mut Report<'_>) -> Result<bool> {
    let ranges = scene.guest.ranges.len() as u64;
    let total = scene.guest.bytes;
    let registered = report.step("register", "Registering all ranges", |step| {
        let list = scene.guest.userptr_ranges();
        let start = Instant::now();
        // SAFETY: the buffer's memory is only copied to and from, and nothing refers to it. Nothing
        // copies while the GPU works on it, except for the changes of mappings that the demo shows.
        let buffer = unsafe {
            scene.client().register_ranges(&list, &RegisterOptions { map: false, ..RegisterOptions::default() })?
        };
        let register = start.elapsed();
        let start = Instant::now();
        buffer.map(&vkfd_client::GpuSet::All)?;
        let map = start.elapsed();
        let objects = buffer.handles().len() as u64;
        let calls = match objects {
            1 => "in one call, as one object".to_owned(),
            n => format!("in {} calls, because this driver has no batch call", count(n)),
        };
        step.did(format!(
            "{} with {} registered {calls} ({}), then mapped for the GPU ({})",
            counted(ranges, "range"),
            bytes(total),
            time(register),
            time(map)
        ));
        step.took("register", register).took("map", map);
        step.number("ranges", ranges).number("bytes", total).number("objects", objects);
        let va = buffer.gpu_va();
        step.number("gpu_va", va.to_string());
        step.note(format!("the GPU sees one contiguous range, {va} to {}", va.offset(total)));
        let length = buffer.len();
        step.check(format!("the range is {} long", bytes(total)), length == total, || bytes(length));
        scene.buffer = Some(buffer);
        Ok(())
    })?;
    if !registered || scene.buffer.is_none() {
        return Ok(false);
    }
    if !scene.client().caps().snapshot {
        report.skip(
            "driver-view",
            "The driver's own view of the ranges",
            "this driver does not show it (it is not vkfd)",
        )?;
        return Ok(true);
    }
    let title = Title::new("Looking at the driver's list of the ranges", "Looked at the driver's list of the ranges");
    report.step("driver-view", title, |step| {
        let Some(bo) = scene.bo()? else {
            step.skip("they were registered one by one");
            return Ok(());
        };
        let list = scene.range_states()?.unwrap_or_default();
        let expected = scene.guest.userptr_ranges();
        let va = scene.buffer()?.gpu_va();
        let wrong = list
            .iter()
            .zip(expected.iter().zip(&scene.guest.ranges))
            .filter(|(seen, (want, range))| {
                (seen.cpu_start, seen.size, seen.gpu_va) != (want.start, want.size, va.offset(range.at).0)
            })
            .count() as u64
            + (list.len() as u64).abs_diff(ranges);
        step.check("each range is at its place in the GPU range", wrong == 0, || format!("{} are not", count(wrong)));
        let valid = list.iter().filter(|range| range.state == RANGE_VALID).count() as u64;
        step.check("all are valid", valid == ranges, || format!("{} of {}", count(valid), count(ranges)));
        step.number("windows", bo.windows).number("driver_bytes", bo.driver_bytes);
        step.note(format!(
            "{} (intervals of CPU addresses that the driver watches for changes); {} of driver memory for the object",
            counted(bo.windows, "notifier window"),
            bytes(bo.driver_bytes)
        ));
        Ok(())
    })?;
    let title = Title::new("Walking the GPU's page table", "Walked the GPU's page table over the range");
    report.step("page-table", title, |step| {
        let va = scene.buffer()?.gpu_va();
        for engine in &scene.engines {
            let entries = Entries::of(&scene.client().ptes(engine.gpu, va, usize::try_from(total / PAGE)?)?, va);
            let what = super::scene::on_gpu("every page has an entry", engine, scene.session);
            step.check(what, entries.pages == total / PAGE, || {
                format!("{} of {}", count(entries.pages), count(total / PAGE))
            });
            step.number("pages", entries.pages).number("fragments", entries.fragments);
            step.note(format!(
                "{} of 4 KiB in {} (neighbouring pages that the GPU translates as one), the largest {}",
                counted(entries.pages, "page"),
                counted(entries.fragments, "fragment"),
                bytes(entries.largest * PAGE)
            ));
        }
        Ok(())
    })?;
    Ok(true)
}
