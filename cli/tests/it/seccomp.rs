// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where a container's seccomp filter refuses userfaultfd: the demo still holds, and says what it
//! cannot show.

use crate::common;

use common::{json, step};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Output;

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// Refuses the system call with EPERM for this process and what it runs, as container runtimes do.
fn refuse(call: libc::c_long) -> io::Result<()> {
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let eperm = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap_or(1);
    // The call's number is the first word of `struct seccomp_data`.
    let mut filter = [
        op(LOAD, 0, 0, 0),
        op(EQUAL, 0, 1, u32::try_from(call).unwrap_or(u32::MAX)),
        op(RETURN, 0, 0, eperm),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: both calls only affect this process; the program outlives the call, which copies it.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn confined(arguments: &[&str]) -> Output {
    let mut command = common::command(arguments);
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(|| refuse(libc::SYS_userfaultfd)) };
    command.output().unwrap()
}

#[test]
fn without_userfaultfd_the_demo_holds_and_names_what_it_skips() {
    let run = confined(&["demo", "--list", "fresh-64M", "--rounds", "0", "--json"]);
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    assert_eq!(document["kfd"]["notifications"]["source"], "interpose");
    let skipped = step(&document, "discard-past-libc");
    assert_eq!(skipped["outcome"], "skipped");
    assert!(skipped["reason"].as_str().unwrap().contains("userfaultfd"), "{skipped:#}");
    for name in ["unmap", "fault", "map-again", "replace", "move", "discard", "protect"] {
        assert_eq!(step(&document, name)["outcome"], "ok", "{name}");
    }
}

#[test]
fn people_are_told_too() {
    let run = confined(&["demo", "--list", "fresh-64M", "--rounds", "0"]);
    let text = String::from_utf8(run.stdout).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(run.status.code(), Some(0), "{text}");
    assert!(text.contains("userfaultfd is refused here") && text.contains("skipped"), "{text}");
}

#[test]
fn without_any_notification_too() {
    let run = common::command(&["demo", "--list", "fresh-64M", "--rounds", "0", "--json"])
        .env("VKFD_NOTIFY", "none")
        .output()
        .unwrap();
    let document = json(&run);
    assert_eq!(run.status.code(), Some(0), "{document:#}");
    for name in ["unmap", "replace", "move", "discard", "discard-past-libc", "protect"] {
        let step = step(&document, name);
        assert_eq!(step["outcome"], "skipped", "{name}");
        assert!(!step["reason"].as_str().unwrap().is_empty(), "{name}");
    }
    for name in ["register", "sum64", "crc32", "copy", "saxpy"] {
        assert_eq!(step(&document, name)["outcome"], "ok", "{name}");
    }
}
