// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests in a process of their own, in which a seccomp filter refuses what container runtimes or
//! settings refuse.
#![allow(dead_code, missing_docs)] // each test file uses a part

const CHILD: &str = "VKFD_TEST_CHILD";

/// What is refused, with EPERM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refuse {
    /// The system call.
    Userfaultfd,
    /// The system call, but for user mode's faults only.
    KernelFaults,
}

/// Runs `test` in a child process, with all of `refuse` refused.
pub fn alone(name: &str, refuse: &[Refuse], test: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(name) {
        refuse.iter().copied().for_each(filter);
        return test();
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, name).env_remove("VKFD_NOTIFY");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}{errors}", output.status);
    errors.lines().filter(|line| line.starts_with("SKIPPED")).for_each(|line| eprintln!("{line}"));
}

/// A BPF program: EPERM for refused calls, everything else allowed.
fn filter(refuse: Refuse) {
    let code = |c: u32| u16::try_from(c).unwrap();
    let number = u32::try_from(libc::SYS_userfaultfd).unwrap();
    let errno = u32::try_from(libc::EPERM).unwrap();
    let jump = |condition: u32, k, jt, jf| libc::sock_filter {
        code: code(libc::BPF_JMP | condition | libc::BPF_K),
        jt,
        jf,
        k,
    };
    let load = |k| libc::sock_filter { code: code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), jt: 0, jf: 0, k };
    let end = |k| libc::sock_filter { code: code(libc::BPF_RET | libc::BPF_K), jt: 0, jf: 0, k };
    // The system call's number is the first word of the data, the first argument the fifth.
    // UFFD_USER_MODE_ONLY is 1.
    let mut filter = [
        load(0),
        jump(libc::BPF_JEQ, number, 0, 3),
        load(16),
        jump(libc::BPF_JSET, if refuse == Refuse::KernelFaults { 1 } else { 0 }, 1, 0),
        end(libc::SECCOMP_RET_ERRNO | errno),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 6, filter: filter.as_mut_ptr() };
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        assert_eq!(libc::syscall(libc::SYS_userfaultfd, 0), -1, "control: the filter works");
        let user_mode_only = libc::syscall(libc::SYS_userfaultfd, 1);
        assert_eq!(user_mode_only >= 0, refuse == Refuse::KernelFaults, "control: and filters no more than it should");
    }
}
