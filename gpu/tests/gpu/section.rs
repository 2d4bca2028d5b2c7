// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An access allocates nothing: the event reader waits for it, and malloc's lock may be held by a
//! thread that waits for the event reader. All tests here run with an allocator that checks it.

use crate::rig::*;
use std::os::unix::process::ExitStatusExt;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

/// Set for the process that does what is refused.
const VARIABLE: &str = "VKFD_TEST_ALLOCATES";

/// The check's own control.
#[test]
#[cfg(debug_assertions)]
fn an_access_that_allocates_ends_the_process_and_says_where() {
    if std::env::var_os(VARIABLE).is_some() {
        let rig = Rig::new();
        rig.gpu.sabotage().turn(Switch::AllocateInAccess, true);
        let mut queue = rig.queue(QueueKind::Sdma);
        queue.submit(&[0]);
        queue.wait();
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--nocapture", "section::an_access_that_allocates_ends_the_process_and_says_where"]);
    let ended = child.env(VARIABLE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{said}");
    assert!(said.contains("an allocation inside a GPU's access, which the event reader waits for"), "{said}");
    assert!(said.contains("access::Port"), "the backtrace says where: {said}");
}
