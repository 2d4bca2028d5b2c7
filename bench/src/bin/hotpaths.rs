// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs one hot path a fixed number of times, to count its instructions:
//!
//! ```text
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*hotpath::measured*' hotpaths PATH [PASSES]
//! ```
//!
//! Without arguments it lists the paths. A path's objects are made before, outside of the counted
//! part.

use std::process::ExitCode;

use anyhow::{Context, Result};
use vkfd_bench::hotpath;

fn main() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let Some(name) = args.next() else {
        hotpath::NAMES.iter().for_each(|name| println!("{name}"));
        return Ok(ExitCode::SUCCESS);
    };
    let passes: u32 = args.next().map_or(Ok(1), |text| text.parse()).context("the number of passes")?;
    let mut path = hotpath::prepare(&name)?;
    for _ in 0..passes {
        hotpath::measured(&mut path);
    }
    Ok(ExitCode::SUCCESS)
}
