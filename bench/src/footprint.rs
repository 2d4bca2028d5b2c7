// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the driver says that it holds for a buffer: its own bookkeeping, without the page tables,
//! which are in VRAM.

use anyhow::{Context, Result};

use crate::goal::{Goal, MEMORY};
use crate::plan::{Plan, Shape, FEW, MAIN, MANY};
use crate::report::{Footprint, Report};
use crate::rig::Rig;
use crate::spread::Spread;
use crate::subject::Subject;

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &mut Rig, plan: &Plan, report: &mut Report) -> Result<()> {
    if !rig.counts() {
        report.head.leave_out("the driver's memory", "this driver does not say what it holds for an object");
        return Ok(());
    }
    let mut shapes: Vec<Shape> = [FEW, MAIN, MANY].map(Shape::grid).to_vec();
    shapes.extend(Shape::recorded()?);
    let mut worst: Option<f64> = None;
    for shape in shapes.iter().filter(|shape| shape.memory() <= plan.budget) {
        let arena = shape.arena()?;
        let seat = rig.seat(Subject::Batch)?;
        let buffer = seat.register_and_map(&arena.ranges)?;
        let handle = buffer.handles().next().context("a buffer has a handle")?;
        let bo =
            seat.client.bos()?.into_iter().find(|bo| bo.handle == handle.0).context("the driver does not know it")?;
        let pages = shape.total / vkfd_client::PAGE;
        let allowed_bytes = 64 * shape.ranges as u64 + 16 * pages;
        let footprint = Footprint { ranges: shape.ranges, pages, driver_bytes: bo.driver_bytes, allowed_bytes };
        // A handful of ranges is no matter of cost a range: the object itself has a size.
        if shape.ranges >= 1000 {
            let part = footprint.driver_bytes as f64 / footprint.allowed_bytes as f64;
            worst = Some(worst.map_or(part, |worst| worst.max(part)));
        }
        report.footprints.push(footprint);
        buffer.free()?;
    }
    report.head.targets.push(Goal::at_most(MEMORY, 1.0, worst.and_then(|part| Spread::of([part]))));
    Ok(())
}
