// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The whole driver against flat models.

use vkfd_hunt::cases::check;
use vkfd_hunt::model::{run, steps, Shape};

#[test]
fn simulated_small_ranges() {
    let shape = Shape::default();
    check(3000, &steps(shape), |steps| run(shape, steps));
}

#[test]
fn simulated_one_notifier_a_range() {
    let shape = Shape { per_range: true, ..Shape::default() };
    check(1000, &steps(shape), |steps| run(shape, steps));
}

#[test]
fn simulated_huge_pages() {
    let shape = Shape::huge();
    check(300, &steps(shape), |steps| run(shape, steps));
}

#[test]
fn simulated_ranges_longer_than_a_chunk() {
    let shape = Shape::long();
    check(20, &steps(shape), |steps| run(shape, steps));
}
