// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Step 4: what registration costs, by one batch, by one call per range, and for memory that is not
//! scattered.
//!
//! The three are done in turn, round by round, so that what else the computer does hits them alike.
//! Of each, the round with the median total is shown. A round before the first is not counted: it
//! makes page tables and bookkeeping that stay.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{json, Value};
use vkfd_client::{Buffer, GpuSet, RegisterOptions, Strategy, UserptrRange};

use super::scene::Scene;
use crate::format::{bytes, count, counted, milliseconds, Align, Table};
use crate::memory::Mapping;
use crate::report::{Report, Title};

/// Times of one round.
#[derive(Clone, Copy, Default)]
struct Times {
    register: Duration,
    map: Duration,
    free: Duration,
}

impl Times {
    fn total(&self) -> Duration {
        self.register + self.map + self.free
    }
}

struct Way {
    name: &'static str,
    words: &'static str,
    strategy: Strategy,
    list: Vec<UserptrRange>,
    rounds: Vec<Times>,
}

/// Measures; the values for JSON.
pub fn run(scene: &Scene<'_>, report: &mut Report<'_>, rounds: u32) -> Result<Value> {
    let mut value = Value::Null;
    let output = report.output();
    let title = Title::new(
        "Registering the same memory in three ways",
        "Registered, mapped and freed the same memory in three ways",
    );
    report.step("cost", title, |step| {
        let bytes_all = scene.guest.bytes;
        let plain = Mapping::anonymous(bytes_all)?;
        scene.guest.fill_mapping(&plain, 0, 0, bytes_all, 0);
        let one = vec![UserptrRange { start: plain.start().0, size: bytes_all }];
        let caps = scene.client().caps();
        let way = |name, words, strategy, list| Way { name, words, strategy, list, rounds: Vec::new() };
        let mut ways = vec![
            way("per-range", "one call for each range", Strategy::PerRange, scene.guest.userptr_ranges()),
            way("contiguous", "one range that is not scattered", Strategy::PerRange, one),
        ];
        if caps.batch || caps.batch_flag {
            ways.insert(0, way("batch", "one call for all ranges", Strategy::Auto, scene.guest.userptr_ranges()));
        }
        let progress = output.progress("measuring", (u64::from(rounds) + 1) * ways.len() as u64);
        for round in 0..=rounds {
            for way in &mut ways {
                let times = once(scene, way)?;
                if round != 0 {
                    way.rounds.push(times);
                }
                progress.advance(1);
            }
        }
        drop(progress);
        step.did(format!(
            "Registered, mapped and freed {} in {} ways, {} in turn; of each way the round with the median total is shown",
            bytes(bytes_all),
            ways.len(),
            counted(rounds.into(), "round")
        ));
        value = json!({ "rounds": rounds, "ways": ways.iter().map(Way::json).collect::<Vec<_>>() });
        for line in table(&ways).lines() {
            step.line(line);
        }
        Ok(())
    })?;
    Ok(value)
}

fn once(scene: &Scene<'_>, way: &Way) -> Result<Times> {
    let options = RegisterOptions { map: false, strategy: way.strategy, ..RegisterOptions::default() };
    let start = Instant::now();
    // SAFETY: no work of a GPU touches the memory.
    let buffer = unsafe { scene.client().register_ranges(&way.list, &options)? };
    let register = start.elapsed();
    let start = Instant::now();
    buffer.map(&GpuSet::All)?;
    let map = start.elapsed();
    let start = Instant::now();
    Buffer::free(buffer)?;
    Ok(Times { register, map, free: start.elapsed() })
}

impl Way {
    /// The round with the median total.
    fn median(&self) -> Times {
        let mut rounds = self.rounds.clone();
        rounds.sort_by_key(Times::total);
        rounds.get(rounds.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }

    fn json(&self) -> Value {
        let parts = |t: &Times| {
            json!({
                "register_ms": milliseconds(t.register), "map_ms": milliseconds(t.map), "free_ms": milliseconds(t.free),
                "total_ms": milliseconds(t.total()),
            })
        };
        json!({
            "way": self.name, "ranges": self.list.len(), "median_round": parts(&self.median()),
            "rounds": self.rounds.iter().map(parts).collect::<Vec<_>>(),
        })
    }
}

fn table(ways: &[Way]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("milliseconds", Left),
        ("ranges", Right),
        ("register", Right),
        ("map", Right),
        ("unmap+free", Right),
        ("total", Right),
        ("ratio to the first", Right),
    ]);
    let first = ways.first().map_or(Duration::ZERO, |way| way.median().total());
    let ms = |t: Duration| format!("{:.2}", t.as_secs_f64() * 1e3);
    for way in ways {
        let times = way.median();
        table.row(vec![
            way.words.to_owned(),
            count(way.list.len() as u64),
            ms(times.register),
            ms(times.map),
            ms(times.free),
            ms(times.total()),
            if first.is_zero() {
                "-".to_owned()
            } else {
                format!("{:.2}", times.total().as_secs_f64() / first.as_secs_f64())
            },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_in_the_middle_is_taken_as_a_whole() {
        let round = |register, free| Times {
            register: Duration::from_millis(register),
            map: Duration::ZERO,
            free: Duration::from_millis(free),
        };
        let way = |rounds: &[Times]| Way {
            name: "w",
            words: "w",
            strategy: Strategy::Auto,
            list: Vec::new(),
            rounds: rounds.to_vec(),
        };
        let middle = way(&[round(9, 9), round(1, 1), round(1, 6)]).median();
        assert_eq!((middle.register, middle.free), (Duration::from_millis(1), Duration::from_millis(6)));
        assert_eq!(way(&[round(9, 9), round(1, 1)]).median().total(), Duration::from_millis(2));
        assert_eq!(way(&[]).median().total(), Duration::ZERO);
        let lines = table(&[way(&[round(2, 2)]), way(&[round(5, 5)])]).lines();
        assert!(lines[1].ends_with("1.00") && lines[2].ends_with("2.50"), "{lines:?}");
    }
}
