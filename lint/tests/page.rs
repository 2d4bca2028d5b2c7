// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The page has the rules.

use std::path::Path;

#[test]
fn the_page_has_the_rules() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs").join("checking.md");
    let page = std::fs::read_to_string(&place).expect("the page");
    let now = vkfd_lint::table::page(&page).expect("a place for the rules");
    assert!(page == now, "docs/checking.md is not what the rules say: cargo xtask lint --table --write");
}
