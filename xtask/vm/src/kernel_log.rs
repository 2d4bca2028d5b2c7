// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What in a kernel's log means that something is wrong.
//!
//! Mechanism: a list of the messages of the kernel's own checks. Each has a word or two that
//! nothing else writes, which the tests below hold against logs of healthy boots; the few
//! exceptions are listed with their reason.

/// Words, and what they mean.
const SIGNS: [(&str, &str); 35] = [
    ("Kernel panic", "panic"),
    ("BUG: ", "bug"),
    ("kernel BUG at", "bug"),
    ("Oops: ", "oops"),
    ("Unable to handle kernel", "oops"),
    ("general protection fault", "oops"),
    ("double fault", "oops"),
    ("stack-protector", "stack overrun"),
    ("rust_kernel: panicked", "panic in Rust"),
    ("WARNING: ", "warning"),
    ("------------[ cut here ]------------", "warning"),
    ("KASAN: ", "KASAN report"),
    ("KFENCE: ", "KFENCE report"),
    ("UBSAN: ", "UBSAN report"),
    ("KCSAN: ", "KCSAN report"),
    ("possible circular locking", "lockdep report"),
    ("possible recursive locking", "lockdep report"),
    ("possible irq lock inversion", "lockdep report"),
    ("inconsistent lock state", "lockdep report"),
    ("lock held when returning to user space", "lockdep report"),
    ("bad unlock balance", "lockdep report"),
    ("held lock freed", "lockdep report"),
    ("INFO: trying to register non-static key", "lockdep report"),
    ("INFO: lockdep is turned off", "lockdep report"),
    ("safe -> unsafe lock order detected", "lockdep report"),
    ("Invalid wait context", "lockdep report"),
    ("suspicious RCU usage", "RCU report"),
    ("detected stalls", "RCU stall"),
    ("self-detected stall", "RCU stall"),
    ("soft lockup", "lockup"),
    ("blocked for more than", "hung task"),
    ("page allocation failure", "allocation failure"),
    ("allocated at module unload", "leak"),
    ("Objects remaining", "leak"),
    ("new suspected memory leaks", "leak"),
];

/// Lines that have such words and mean nothing.
const HARMLESS: [(&str, &str); 1] = [
    // Said at boot by a kernel that was built without mitigations, on purpose.
    ("WARNING: Spectre", "mitigations are configured out"),
];

/// What the module's own lines begin with.
const MODULE: &str = "vkfd: ";

/// The module's message that a GPU does not work any more, and the cases that are no trouble here.
/// The driver was unloaded, or the process that the GPUs share has ended; that process's log says
/// more.
const LOST: (&str, [&str; 2]) = ("device lost", ["the driver has ended it", "its process has ended"]);

/// A line that should not be there.
#[derive(Debug, PartialEq, Eq)]
pub struct Sign {
    /// From 1.
    pub line: usize,
    pub meaning: &'static str,
    pub text: String,
}

/// What is wrong in `log`, at most one sign a line.
pub fn signs(log: &str) -> Vec<Sign> {
    let lines = (1..).zip(log.lines());
    let found =
        lines.filter_map(|(line, text)| meaning(text).map(|meaning| Sign { line, meaning, text: text.trim().into() }));
    found.collect()
}

fn meaning(line: &str) -> Option<&'static str> {
    if HARMLESS.iter().any(|(words, _)| line.contains(words)) {
        return None;
    }
    if line.contains(MODULE) && line.contains("leak") {
        return Some("leak");
    }
    if line.contains(MODULE) && line.contains(LOST.0) && !LOST.1.iter().any(|why| line.contains(why)) {
        return Some("lost GPU");
    }
    SIGNS.iter().find(|(words, _)| line.contains(words)).map(|&(_, meaning)| meaning)
}

/// Whether `log` begins like a kernel's log at all: nothing follows from the silence of an empty
/// one.
pub fn is_log(log: &str) -> bool {
    log.contains("Linux version ")
}

/// `sign` with the lines behind it, which usually have the backtrace.
pub fn excerpt(log: &str, sign: &Sign, lines: usize) -> String {
    let shown: Vec<&str> = log.lines().skip(sign.line - 1).take(lines).map(str::trim_end).collect();
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: &str = "[    0.000000] Linux version 7.3.4-vkfd (vkfd@vkfd) (gcc) #1 SMP PREEMPT\n\
        [    0.000000] Command line: console=ttyS0 panic=-1\n\
        [    0.010000] Spectre V2 : WARNING: Spectre-v2 mitigation is off\n\
        [    0.100000] kasan: KernelAddressSanitizer initialized\n\
        [    0.100000] Lock dependency validator: Copyright (c) 2006 Red Hat, Inc., Ingo Molnar\n\
        [    0.200000] rcu: RCU debug extended QS entry/exit.\n\
        [    2.000000] vkfd: gpu 0x4b01: device lost: the driver has ended it. Its queues have stopped, memory stays\n\
        [    2.500000] sh[70]: segfault at 0 ip 0000 sp 0000 error 4\n\
        [    3.000000] reboot: Power down\n";

    #[test]
    fn a_healthy_log_has_no_signs() {
        assert!(is_log(HEALTHY));
        assert_eq!(signs(HEALTHY), []);
    }

    #[test]
    fn silence_is_not_health() {
        assert!(!is_log("") && !is_log("SeaBIOS (version 1.16)\n"));
    }

    /// Each as a kernel writes it.
    const REPORTS: [(&str, &str); 21] = [
        (
            "[    1.0] vkfd: gpu 0x4b01: device lost: it does not answer. Its queues have stopped, memory stays",
            "lost GPU",
        ),
        ("[    1.0] WARNING: vkfd_probe.rs:44 at init_module+0x8d/0xff0 [vkfd_probe], CPU#0: vkfd-init/1", "warning"),
        ("[    1.0] ------------[ cut here ]------------", "warning"),
        ("[    1.0] BUG: kernel NULL pointer dereference, address: 0000000000000008", "bug"),
        ("[    1.0] BUG: sleeping function called from invalid context at kernel/locking/mutex.c:283", "bug"),
        ("[    1.0] BUG: Bad page state in process vkfd-scenarios  pfn:03a41", "bug"),
        ("[    1.0] Oops: Oops: 0000 [#1] SMP PTI", "oops"),
        ("[    1.0] Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP", "oops"),
        ("[    1.0] Kernel panic - not syncing: Fatal exception", "panic"),
        ("[    1.0] rust_kernel: panicked at vkfd_probe.rs:50:18:", "panic in Rust"),
        ("[    1.0] BUG: KASAN: slab-use-after-free in use_after_free+0x10/0x20 [vkfd_probe]", "bug"),
        ("[    1.0] WARNING: possible circular locking dependency detected", "warning"),
        ("[    1.0] WARNING: suspicious RCU usage", "warning"),
        ("[    1.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "RCU stall"),
        ("[    1.0] INFO: task vkfd-scenarios:77 blocked for more than 122 seconds.", "hung task"),
        (
            "[    1.0] vkfd-scenarios: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL), nodemask=(null)",
            "allocation failure",
        ),
        ("[    1.0] helpers.c:12 module vkfd func:vkfd_new has 64 allocated at module unload", "leak"),
        ("[    1.0] BUG vkfd_range (Not tainted): Objects remaining on __kmem_cache_shutdown()", "leak"),
        ("[    1.0] vkfd: leak: 3 buffer objects of process 77", "leak"),
        ("[    1.0] kmemleak: 2 new suspected memory leaks (see /sys/kernel/debug/kmemleak)", "leak"),
        ("[    1.0] INFO: lockdep is turned off.", "lockdep report"),
    ];

    #[test]
    fn each_report_in_a_healthy_log_is_found_at_its_line() {
        for (report, meaning) in REPORTS {
            let log = HEALTHY.replace("[    2.500000]", &format!("{report}\n[    2.500000]"));
            assert_eq!(signs(&log), [Sign { line: 8, meaning, text: report.into() }]);
        }
    }

    #[test]
    fn an_excerpt_begins_with_the_sign() {
        let log = "a\nBUG: b\nc\nd\n";
        assert_eq!(excerpt(log, &signs(log)[0], 2), "BUG: b\nc");
    }
}
