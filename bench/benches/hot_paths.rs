// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The hot paths under criterion: `cargo bench -p vkfd-bench`.
#![allow(missing_docs)] // criterion's macro makes a public function

use criterion::{criterion_group, criterion_main, Criterion};
use vkfd_bench::hotpath;

fn paths(criterion: &mut Criterion) {
    for name in hotpath::NAMES {
        match hotpath::prepare(name) {
            Ok(mut path) => {
                criterion.bench_function(name, |bencher| bencher.iter(|| hotpath::measured(&mut path)));
            }
            Err(error) => eprintln!("{name}: {error:#}"),
        }
    }
}

criterion_group!(benches, paths);
criterion_main!(benches);
