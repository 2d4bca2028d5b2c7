// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The whole suite without userfaultfd: with the interposed calls instead, and with no
//! notifications at all. What is skipped then is known by name, so that a scenario cannot be
//! skipped by mistake.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Scenarios that need to be notified of a change that nothing shows when there is no notification
/// source.
const NEED_NOTIFICATION: &[&str] = &[
    "flag_a_batch_of_which_nothing_is_left",
    "flag_a_range_changes_again_while_it_is_restored",
    "flag_a_range_without_memory_does_not_take_the_others_with_it",
    "flag_copies_while_ranges_are_invalidated",
    "flag_discarded_and_replaced_ranges_are_followed",
    "flag_moved_memory_is_left_alone",
    "flag_protected_memory_does_not_stop_the_queues",
    "flag_registered_mapped_and_freed_while_ranges_are_invalidated",
    "flag_unmapped_objects_are_up_to_date_when_mapped",
    "flag_writes_while_ranges_are_invalidated",
    "coherence_unmap_one_of_many",
    "coherence_replace_in_place",
    "coherence_unmap_and_map_at_once",
    "coherence_memory_comes_back",
    "coherence_mremap_away",
    "coherence_discard",
    "coherence_warm_tlb",
    "coherence_protect",
    "coherence_fork",
    "coherence_page_out",
    "coherence_read_only",
    "coherence_only_what_is_hit",
    "coherence_gaps_and_neighbours",
    "coherence_unmapped_object",
    "coherence_freed_memory",
    "coherence_aliased_ranges",
    "coherence_per_range_windows",
    "coherence_denied_does_not_spin",
    "coherence_work_waits_while_evicted",
    "coherence_two_gpus",
    "coherence_two_processes",
    "coherence_xnack_served_on_access",
    "coherence_xnack_gone_is_reported",
    "coherence_xnack_copy_through_a_storm",
    "coherence_xnack_switched_off",
    "coherence_invalidated_while_registered",
    "coherence_deadline",
    "coherence_copies_in_a_storm",
    "coherence_mapped_in_a_storm",
    "coherence_registered_and_freed_in_a_storm",
    "coherence_long_range_in_a_storm",
    "svm_a_gpu_does_not_count_in_memory_that_it_may_not_write",
    "svm_after_a_fork_the_gpu_keeps_the_parents_memory",
    "svm_always_mapped_memory_is_restored_without_a_fault",
    "svm_and_userptr_are_restored_together",
    "svm_discarded_and_replaced_memory_is_seen_as_it_is",
    "svm_memory_in_the_place_of_other_has_no_range",
    "svm_memory_registered_beside_an_unmap_is_mapped_and_goes",
    "svm_memory_without_permission_is_refused_until_there_is_one",
    "svm_mremap_takes_the_pages_and_leaves_no_range",
    "svm_protected_memory_is_read_only_for_gpus_too",
    "svm_unmapped_parts_disappear_and_the_rest_goes_on",
];

/// Scenarios that need memory to move into a GPU's, which takes userfaultfd.
const NEED_MIGRATION: &[&str] = &[
    "svm_a_fault_moves_the_granule_to_the_gpu",
    "svm_a_kernel_goes_on_while_its_memory_moves",
    "svm_a_kernel_goes_on_while_its_memory_moves_with_xnack",
    "svm_a_process_that_ends_gets_its_memory_back",
    "svm_a_working_set_of_twice_the_vram_runs_to_the_right_result",
    "svm_buffers_make_svm_memory_give_way",
    "svm_coherent_memory_on_a_gpu_is_used_by_all_and_does_not_move",
    "svm_event_files_tell_what_moved_what_stopped_and_why",
    "svm_gpu_and_cpu_count_in_words_that_move",
    "svm_half_of_a_huge_page_on_a_gpu_is_unmapped",
    "svm_huge_pages_move_and_come_back",
    "svm_huge_pages_on_a_gpu_are_given_up",
    "svm_huge_pages_that_nobody_wrote_move_as_zeroes",
    "svm_memory_comes_and_goes_many_times",
    "svm_memory_is_unmapped_while_a_gpu_reads_it",
    "svm_memory_is_unmapped_while_it_moves",
    "svm_memory_that_comes_in_the_place_of_other_is_seen_at_once",
    "svm_memory_of_files_is_used_where_it_is",
    "svm_memory_on_a_gpu_is_copied_on_write_after_a_fork",
    "svm_memory_on_a_gpu_is_unmapped_in_parts",
    "svm_memory_that_goes_to_and_fro_is_left_in_peace",
    "svm_memory_that_is_half_back_moves_again",
    "svm_memory_that_nobody_wrote_is_zero_and_read_only_memory_is_read",
    "svm_mixed_memory_is_one_to_everybody",
    "svm_mremap_takes_memory_on_a_gpu_along",
    "svm_pages_of_every_permission_side_by_side",
    "svm_prefetch_moves_memory_there_and_back",
    "svm_prefetches_beyond_vram_evict_the_coldest",
    "svm_prefetches_fail_anywhere_and_lose_nothing",
    "svm_private_memory_comes_back_page_by_page_to_the_cpu",
    "svm_two_gpus_read_the_same_read_only_memory",
    "svm_writers_lose_nothing_while_memory_moves",
];

/// Makes userfaultfd fail with EPERM, as container runtimes do, for this process and what it
/// executes.
fn deny_userfaultfd() -> std::io::Result<()> {
    let statement =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: u16::try_from(code).unwrap_or(0), jt, jf, k };
    let number = u32::try_from(libc::SYS_userfaultfd).unwrap_or(u32::MAX);
    let errno = u32::try_from(libc::EPERM).unwrap_or(1);
    let mut filter = [
        // The system call's number is the first word of the data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its length are valid for the call, which copies them.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if failed {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Runs the suite and returns what was skipped, by name with the reason. Nothing may fail.
fn skipped(command: &mut Command) -> BTreeSet<(String, String)> {
    let output = command.args(["run", "--json"]).output().expect("the suite starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let outcomes: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect();
    let bad: Vec<_> =
        outcomes.iter().filter(|o| !["passed", "skipped"].contains(&text_of(o, "result").as_str())).collect();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(bad.is_empty() && output.status.success(), "{}: {bad:#?}\n{stderr}", output.status);
    assert_eq!(outcomes.len(), vkfd_scenarios::all().len(), "every scenario has an outcome");
    let skipped = outcomes.iter().filter(|o| text_of(o, "result") == "skipped");
    skipped.map(|o| (text_of(o, "name"), text_of(o, "reason"))).collect()
}

fn text_of(outcome: &serde_json::Value, key: &str) -> String {
    outcome[key].as_str().unwrap_or_default().to_owned()
}

fn suite() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vkfd-scenarios"));
    command.env_remove("VKFD_NOTIFY").env_remove("VKFD_DEVICE");
    command
}

#[test]
fn interposed_calls_show_all_that_the_suite_needs_where_userfaultfd_is_denied() {
    let mut command = suite();
    // SAFETY: the function only makes system calls, on data of its own stack.
    unsafe { command.pre_exec(deny_userfaultfd) };
    let skipped = skipped(&mut command);
    let names: BTreeSet<&str> = skipped.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, NEED_MIGRATION.iter().copied().collect(), "{skipped:#?}");
    for (name, reason) in &skipped {
        assert!(reason.contains("moves no memory"), "{name} was skipped for another reason: {reason}");
    }
}

#[test]
fn without_notifications_only_what_needs_them_is_skipped() {
    let skipped = skipped(suite().env("VKFD_NOTIFY", "none"));
    let names: BTreeSet<&str> = skipped.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, NEED_NOTIFICATION.iter().chain(NEED_MIGRATION).copied().collect(), "{skipped:#?}");
    for (name, reason) in &skipped {
        let expected =
            if NEED_MIGRATION.contains(&name.as_str()) { "moves no memory" } else { "notification source (none)" };
        assert!(reason.contains(expected), "{name} was skipped for another reason: {reason}");
    }
}
