// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Requirements of scenarios that AMD's driver does not meet. On it they are skipped at once, with
//! the reason: otherwise such a scenario would fail, or wait without end.
//!
//! Scenarios ask for other requirements by themselves: options, snapshots, XNACK, several GPUs. A
//! call that only vkfd has ends a scenario in a skip as well ([`Stop::on`](crate::Stop::on)).

/// A requirement, and the scenarios that have it.
struct Requirement {
    text: &'static str,
    of: &'static [&'static str],
}

const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        text: "requires vkfd's own calls: snapshots, capabilities, errors",
        of: &[
            "shorter_and_longer_arguments_are_those_of_older_and_newer_clients",
            "argument_pointers_that_cannot_be_read_are_bad_addresses",
            "forked_child_cannot_use_the_parents_file",
            "notifiers_are_few_however_many_ranges_there_are",
            "snapshots_from_the_last_number_on_are_empty",
            "snapshots_fail_or_not_and_change_nothing",
            "coherence_closed_while_evicted",
            "coherence_protect_found_by_access",
            "coherence_registered_and_freed_in_a_storm",
            "coherence_long_range_in_a_storm",
            "kernel_ksm_merge_and_unmerge",
            "kernel_svm_beside_a_call_that_waits",
            "kernel_thp_collapse",
            "kernel_computing_thp_collapse",
            "kernel_compaction",
            "kernel_computing_compaction",
            "kernel_fork_of_a_client",
            "kernel_protect_half",
            "kernel_replace_half",
            "kernel_killed_during_restore",
            "svm_addresses_beyond_a_clients_are_refused",
        ],
    },
    Requirement {
        text: "requires many ranges in one object",
        of: &[
            "batch_command_is_known_by_its_whole_word",
            "batch_arguments_that_are_zero_are_refused",
            "batch_range_counts_above_the_limit_are_refused_before_the_list_is_read",
            "batch_over_an_svm_range_is_refused_by_name",
            "svm_over_a_batch_is_refused_also_when_it_comes_later",
            "one_to_4096_ranges_lie_in_array_order_and_both_sides_write",
            "sixty_five_thousand_ranges_in_one_call",
            "batch_of_a_hundred_fails_anywhere_and_leaves_nothing",
        ],
    },
    Requirement {
        text: "requires failures that are made on purpose",
        of: &["queues_and_events_fail_anywhere_and_leave_nothing"],
    },
    Requirement { text: "requires that the letter of a command word counts", of: &["unknown_commands_are_enotty"] },
    Requirement {
        text: "requires that ALLOC looks at addresses and flags",
        of: &[
            "single_range_checks_are_those_of_kfd",
            "gpu_addresses_are_used_once",
            "kinds_of_memory_exclude_each_other",
            "buffers_share_their_memory_as_files",
            "svm_over_single_ranges_and_back",
            "svm_and_buffers_of_every_kind_have_no_address_in_common",
        ],
    },
    Requirement { text: "requires queues of parts of objects", of: &["queues_need_what_they_use_mapped"] },
    Requirement {
        text: "requires a page for events that the driver makes",
        of: &["an_event_page_is_brought_once", "events_are_waited_for_as_kfd_does"],
    },
    Requirement { text: "requires that root may not checkpoint", of: &["settings_of_silicon_are_checked_as_kfd_does"] },
    Requirement {
        text: "requires a second client of one address space with a VM",
        of: &[
            "a_buffers_file_is_the_buffer_for_another_client",
            "coherence_two_processes",
            "kernel_opens_of_an_address_space",
            "kernel_reservation_is_one_miss",
        ],
    },
    Requirement { text: "requires registers of its own for each client", of: &["kernel_registers_of_each_client"] },
    Requirement {
        text: "requires that a process works after a page fault",
        of: &[
            "svm_unmapped_parts_disappear_and_the_rest_goes_on",
            "svm_mremap_takes_the_pages_and_leaves_no_range",
            "svm_protected_memory_is_read_only_for_gpus_too",
            "svm_memory_without_permission_is_refused_until_there_is_one",
            "kernel_device_faults_wait_for_no_thread",
        ],
    },
    Requirement {
        text: "requires that a retried fault shows what was discarded as zeros",
        of: &["svm_discarded_and_replaced_memory_is_seen_as_it_is"],
    },
    Requirement {
        text: "requires that retried faults serve registered memory",
        of: &["coherence_xnack_copy_through_a_storm", "kernel_ksm_written_by_the_gpu", "kernel_computing_ksm"],
    },
    Requirement {
        text: "requires registrations for reading alone",
        of: &["read_only_mappings_can_be_registered_for_reading_only", "read_only_use_does_not_break_copy_on_write"],
    },
    Requirement {
        text: "requires an error of its own for memory without permission",
        of: &["ranges_near_each_other_are_looked_up_one_by_one_where_pages_are_missing"],
    },
    Requirement {
        text: "requires a bound for lists of GPUs",
        of: &["a_list_of_gpus_is_no_longer_than_a_machine_can_have"],
    },
    Requirement {
        text: "requires an exception for a packet that cannot be executed",
        of: &["a_dispatch_that_cannot_run_is_an_exception"],
    },
    Requirement {
        text: "requires more memory than the guest has",
        of: &["a_range_of_one_gibibyte", "guest_buffer_of_an_aged_guest", "guest_buffer_of_random_pages"],
    },
    Requirement { text: "requires swap", of: &["kernel_thp_split"] },
    Requirement {
        text: "requires clients that come and go in less than a minute",
        of: &["kernel_killed_with_queues_at_work", "kernel_reaped"],
    },
];

/// What a scenario requires and AMD's driver, or its guest, lacks.
#[must_use]
pub fn lacks(name: &str) -> Option<&'static str> {
    REQUIREMENTS.iter().find(|requirement| requirement.of.contains(&name)).map(|requirement| requirement.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_scenarios_and_has_one_requirement() {
        let all = [crate::all(), crate::kernel()].concat();
        let names: Vec<&str> = REQUIREMENTS.iter().flat_map(|requirement| requirement.of).copied().collect();
        for name in &names {
            assert!(all.iter().any(|scenario| scenario.name == *name), "{name} is no scenario");
            assert_eq!(names.iter().filter(|other| other == &name).count(), 1, "{name} is there twice");
        }
        assert_eq!(lacks("memory_calls_before_acquire_vm_are_enodev"), None);
    }
}
