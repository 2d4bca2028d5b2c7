// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A run in Markdown (`--summary`), for people who read the results of a job: what ran, how near it
//! is to hardware, what went wrong.

use std::fmt::Write;

use vkfd_gpu::Report;
use vkfd_host::description::Description;
use vkfd_host::size;

use super::timeline::Sums;

/// Kernels that have a row of their own; those that took most of the time.
const KERNELS: usize = 20;

/// The text.
pub(super) fn text(program: &str, machine: &Description, report: &Report, sums: &Sums) -> String {
    let mut text = String::new();
    // A string takes all that is written to it.
    let _ = write(&mut text, program, machine, report, sums);
    text
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('`', "'")
}

fn write(
    text: &mut String,
    program: &str,
    machine: &Description,
    report: &Report,
    sums: &Sums,
) -> Result<(), std::fmt::Error> {
    let gpus = if machine.gpus == 1 { "one GPU".to_owned() } else { format!("{} GPUs", machine.gpus) };
    writeln!(text, "## `{}` on vkfd\n", cell(program))?;
    writeln!(text, "{gpus} of target {}, with {} of memory.\n", machine.target, size::show(machine.vram))?;

    writeln!(text, "### Kernels\n")?;
    let mut kernels: Vec<_> = report.kernels.iter().collect();
    kernels.sort_by_key(|(_, cost)| std::cmp::Reverse(cost.nanoseconds));
    if kernels.is_empty() {
        writeln!(text, "None ran.\n")?;
    } else {
        writeln!(text, "| kernel | launches | ms | instructions |\n| --- | ---: | ---: | ---: |")?;
        for (name, cost) in kernels.iter().take(KERNELS) {
            let ms = cost.nanoseconds / 1_000_000;
            writeln!(text, "| `{}` | {} | {ms} | {} |", cell(name), cost.launches, cost.instructions)?;
        }
        if kernels.len() > KERNELS {
            writeln!(text, "\n{} others took less time.", kernels.len() - KERNELS)?;
        }
        writeln!(text)?;
    }

    writeln!(text, "### Fidelity\n")?;
    if report.approximate.is_empty() && report.missing.is_empty() {
        writeln!(text, "All instructions gave hardware's results.\n")?;
    }
    for (op, (times, why)) in &report.approximate {
        writeln!(text, "- `{op}` approximates hardware's ({}); executed {times} times.", cell(why))?;
    }
    for (op, times) in &report.missing {
        writeln!(text, "- **`{op}` is missing**: it ended {times} launches.")?;
    }
    if !(report.approximate.is_empty() && report.missing.is_empty()) {
        writeln!(text)?;
    }

    writeln!(text, "### Memory\n")?;
    writeln!(text, "| event | count |\n| --- | ---: |")?;
    for (event, count) in [
        ("faults that ended a queue", sums.faults),
        ("page faults served", sums.faults_served),
        ("migrations", sums.migrations),
        ("pages migrated", sums.pages_migrated),
        ("evictions", sums.evictions),
        ("restores", sums.restores),
        ("invalidations of SVM ranges", sums.invalidations),
        ("copies", sums.copies),
        ("bytes copied", sums.bytes_copied),
    ] {
        writeln!(text, "| {event} | {count} |")?;
    }
    if sums.left_out != 0 {
        writeln!(text, "\n{} later events found no room and are not counted.", sums.left_out)?;
    }
    writeln!(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_gpu::KernelCost;

    #[test]
    fn a_summary_is_markdown() {
        let mut report = Report::default();
        for index in 0..KERNELS as u64 + 3 {
            let cost = KernelCost { launches: 1, nanoseconds: index * 1_000_000, ..KernelCost::default() };
            report.kernels.insert(format!("k{index}<a|b>"), cost);
        }
        report.missing.insert("image_sample".into(), 2);
        let sums = Sums { evictions: 4, left_out: 9, ..Sums::default() };
        let text = text("./a|b", &Description::default(), &report, &sums);
        assert!(
            text.starts_with("## `./a\\|b` on vkfd\n\none GPU of target gfx900, with 1 GiB of memory.\n"),
            "{text}"
        );
        assert!(text.contains("| `k22<a\\|b>` | 1 | 22 | 0 |\n") && !text.contains("`k0<"), "{text}");
        assert!(text.contains("\n3 others took less time.\n"), "{text}");
        assert!(text.contains("**`image_sample` is missing**: it ended 2 launches."), "{text}");
        assert!(text.contains("| evictions | 4 |") && text.contains("9 later events found no room"), "{text}");
    }
}
