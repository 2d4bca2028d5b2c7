// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The README's example is the one that is compiled, to the letter.

#[test]
fn the_readme_shows_the_example_that_is_built() {
    let readme = include_str!("../../README.md");
    let example = include_str!("../examples/batch.rs");
    let body = example.split_once("use std::alloc").expect("the example's first line of code").1;
    assert!(readme.contains(body), "README.md and client/examples/batch.rs differ");
}
