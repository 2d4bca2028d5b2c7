// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What only a kernel can show: pages that are swapped, moved, merged, collapsed and split behind
//! the process's back, and processes that are killed.
//!
//! | module | what happens |
//! | --- | --- |
//! | `swap` | memory pressure; half of the registered memory fits |
//! | `numa`, `ksm`, `huge`, `compaction` | the kernel moves pages, merges them, makes them huge and small |
//! | `fork`, `change` | fork, mprotect, munmap, mremap with 4,096 ranges and the GPU at work |
//! | `hostile` | clients without rights, and their forbidden requests |
//! | `kill` | a client is killed, by a signal or for want of memory |
//! | `device_pages`, `device_users`, `device_children`, `device_svm`, `device_rdma` | pages are in a GPU's memory |
//! | `mapping` | a client's mapping of VRAM fails |
//! | `nodes` | programs look for a GPU's nodes |
//! | `listed` | monitors look for programs |
//! | `user_faults` | a thread of the process serves page faults |
//! | `pressure` | two processes for a minute |
//! | `unload` | the module is to be unloaded |
//! | [`stage`], [`device_stage`], [`pages`], [`cgroup`], [`client_process`], [`rdma_link`], [`rdma_verbs`] | what these are made with |
//!
//! Each scenario first shows that the kernel has done its part; a page in swap or on another node
//! cannot be pinned. Then it shows that GPU and CPU see the same, byte by byte and both ways. They
//! need root and a KFD that `VKFD_DEVICE` names, and are no part of the runs without.

mod cgroup;
mod change;
mod client_process;
mod compaction;
mod device_children;
mod device_pages;
mod device_rdma;
mod device_stage;
mod device_svm;
mod device_users;
mod fork;
mod hostile;
mod huge;
mod kill;
mod ksm;
mod listed;
mod mapping;
mod nodes;
mod numa;
mod opens;
mod pages;
mod pressure;
mod rdma_link;
mod rdma_verbs;
mod stage;
mod swap;
mod unload;
mod user_faults;

pub use client_process::run_role;
use client_process::Role;
use stage::Work;

use crate::verdict::Stop;
use crate::world::{World, WorldSpec};
use crate::Scenario;

/// An ordinary world, if it is a kernel's and this process is root's.
fn world_spec() -> Result<WorldSpec, Stop> {
    if std::env::var_os("VKFD_DEVICE").is_none() {
        return Err(Stop::Skip("only a kernel can show it: set VKFD_DEVICE to its device".into()));
    }
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Stop::Skip("needs root".into()));
    }
    Ok(WorldSpec::default())
}

fn world() -> Result<World, Stop> {
    World::new(world_spec()?)
}

/// What client processes can be, by name.
const ROLES: &[(&str, Role)] = &[
    ("under_pressure", |scenario| swap::under_pressure_role(scenario, Work::Copies)),
    ("computing_under_pressure", |scenario| swap::under_pressure_role(scenario, Work::Kernel)),
    ("half_fits", swap::half_fits_role),
    ("half_fits_in_turns", swap::half_fits_in_turns_role),
    ("fork_of_a_parent", fork::of_a_parent_role),
    ("registering", kill::registering_role),
    ("restoring", kill::restoring_role),
    ("working", kill::working_role),
    ("out_of_memory", kill::out_of_memory_role),
    ("device_under_pressure", device_users::under_pressure_role),
    ("device_owner", device_users::owner_role),
    ("device_parent", device_children::parent_role),
    ("device_parent_closing", device_children::closing_parent_role),
    ("pressure", pressure::client_role),
    ("hostile_svm", hostile::svm_role),
    ("hostile_reservation", hostile::reservation_role),
    ("hostile_registration", hostile::registration_role),
    ("hostile_snapshot", hostile::snapshot_role),
    ("hostile_vmids", hostile::vmids_role),
    ("hostile_other_user", hostile::other_user_role),
    ("hostile_gtt", hostile::gtt_role),
    ("hostile_registers_writer", hostile::registers_writer_role),
    ("hostile_registers_reader", hostile::registers_reader_role),
    ("opens_elsewhere", opens::elsewhere_role),
    ("listed", listed::while_it_is_open_role),
    ("listed_restless", listed::restless_role),
];

macro_rules! scenarios {
    ($($name:ident: $run:expr, $about:literal;)+) => {
        /// The scenarios.
        pub(crate) const SCENARIOS: &[Scenario] =
            &[$(Scenario { name: concat!("kernel_", stringify!($name)), about: $about, run: $run }),+];
    };
}

scenarios! {
    swap_under_pressure: || swap::under_pressure("under_pressure"),
        "memory pressure while the GPU works on 4,096 ranges: registered pages go to swap and come back, data intact";
    half_fits_at_once: swap::half_fits,
        "half of what is registered fits, XNACK on: registration and GPU work complete, the rest is in swap";
    half_fits_in_turns: swap::half_fits_in_turns,
        "half of what is registered fits, XNACK off: four batches are mapped and used in turn, the rest is in swap";
    numa_migration: || numa::move_pages(Work::Copies),
        "pages move between NUMA nodes while the GPU works on them";
    ksm_merge_and_unmerge: ksm::merge_and_unmerge,
        "equal pages of a read-only registration become one page and several again";
    ksm_written_by_the_gpu: ksm::written_by_the_gpu,
        "what the GPU writes to a page that was merged, its twin does not get";
    thp_collapse: || huge::collapse(Work::Copies),
        "small pages are collapsed into huge ones while the GPU works on them";
    thp_split: huge::split,
        "huge pages are split: a hole, half of one paged out, and by the kernel's own means";
    compaction: || compaction::compaction(Work::Copies),
        "compaction moves registered pages while the GPU works on them";
    computing_under_pressure: || swap::under_pressure("computing_under_pressure"),
        "a kernel reads and writes 4,096 ranges while they go to swap and come back: no step of it is lost";
    computing_numa_migration: || numa::move_pages(Work::Kernel),
        "a kernel reads and writes pages that move between NUMA nodes: no step of it is lost";
    computing_thp_collapse: || huge::collapse(Work::Kernel),
        "a kernel reads and writes small pages that are collapsed into huge ones: no step of it is lost";
    computing_compaction: || compaction::compaction(Work::Kernel),
        "a kernel reads and writes pages that compaction moves: no step of it is lost";
    computing_ksm: ksm::computing,
        "a kernel reads and writes pages that are merged with their twins again and again: each has its own steps";
    fork_of_a_client: fork::of_a_client,
        "parent, child and GPU write after a fork: each sees its own";
    fork_while_the_gpu_writes: fork::while_the_gpu_writes,
        "what a child was given at the fork the parent's GPU does not change";
    fork_of_a_parent: fork::of_a_parent,
        "a child registers memory that it shares with its parent: the GPU's writes are the child's";
    nodes_of_one_device: nodes::of_one_device,
        "the primary and the render node of a GPU belong to one device, by which libdrm tells GPUs apart";
    nodes_tell_memory: nodes::fdinfo_grows,
        "a render node's lines in /proc/PID/fdinfo have the memory that its process has in VRAM";
    listed_while_it_is_open: listed::while_it_is_open,
        "a program is in /sys/class/kfd/kfd/proc with its memory and its queues, as long as it has the device open";
    listed_until_it_is_killed: listed::until_it_is_killed,
        "programs are killed while their files in /sys/class/kfd/kfd/proc are read: they go, and readers do not hang";
    protect_half: change::protect,
        "2,048 of 4,096 ranges are made read-only and writable again; a registration for reading goes on";
    replace_half: change::replace,
        "2,048 of 4,096 ranges are unmapped and mapped in place while the GPU works on the others";
    remap_half: change::remap,
        "2,048 of 4,096 ranges are moved away by mremap: the GPU does not follow them";
    killed_during_registration: kill::during_registration,
        "a client is killed while it registers: nothing is left";
    killed_during_restore: kill::during_restore,
        "a client is killed while it is restored: nothing is left";
    killed_with_queues_at_work: kill::with_queues_at_work,
        "a client is killed while its queues write: its pages are the next owner's at once";
    reaped: kill::reaped,
        "pages are taken from a client that is being killed, by invalidations that may not sleep";
    out_of_memory: kill::out_of_memory,
        "a client is killed for want of memory with its queues at work";
    device_in_place: device_pages::in_place,
        "pages in the GPU's memory: CPU and GPU read and write them there, and nothing moves";
    device_private: device_pages::private,
        "pages in the GPU's memory out of the CPU's reach: what it touches comes back, page by page";
    device_untouched: device_pages::untouched,
        "memory that nobody has touched is zeroes in the GPU's memory, also where others' data has been";
    device_files: device_pages::of_files,
        "pages of files and shared memory do not move, a process's own copies of them do";
    device_unmapped_in_part: device_pages::unmapped_in_part,
        "munmap and MADV_DONTNEED give back the GPU's memory page by page, mremap keeps it";
    device_huge: device_pages::huge,
        "half of a huge page moves to the GPU's memory and back";
    device_fork: device_users::forked,
        "pages in the GPU's memory at a fork: parent, child and GPU write, and each sees its own";
    device_left_to_a_child: device_children::left_to_a_child,
        "what only a forked child still has in the GPU's memory gives way when that is needed, and the child has its data";
    device_orphaned: device_children::orphaned,
        "the same with a parent that has ended";
    device_direct_io: device_users::direct_io,
        "a disk reads and writes the GPU's memory in place, by direct I/O";
    device_other_processes: device_users::other_processes,
        "process_vm_readv and process_vm_writev use the GPU's memory in place";
    device_held_by_a_pipe: device_users::held_by_a_pipe,
        "pages that a pipe holds (vmsplice) stay in the GPU's memory until it has been read";
    device_pinned_for_long: device_users::pinned_for_long,
        "who pins pages for long gets them in system memory";
    device_rdma_on_demand: device_rdma::on_demand,
        "an RDMA device with page faults reads, writes and adds in the GPU's memory in place, and follows it when it moves";
    device_rdma_on_demand_private: device_rdma::on_demand_private,
        "private pages come back to an RDMA device with page faults as they do to a processor";
    device_rdma_pinned: device_rdma::pinned,
        "an RDMA device without page faults has its pages in system memory as long as they are registered";
    device_swapped: device_users::swapped,
        "pages in swap do not move to the GPU's memory, and are not lost";
    device_under_pressure: device_users::under_pressure,
        "under memory pressure the pages in the GPU's memory stay there while the GPU works on them";
    device_killed: device_users::killed,
        "a client with pages in the GPU's memory is killed: nothing of them is left";
    device_unloaded: device_users::unloaded,
        "the driver is unloaded: what a process had in the GPU's memory it has in system memory, intact";
    device_unbound: device_users::unbound,
        "a GPU is taken away from the driver: what a client had in its memory it has in system memory, intact";
    device_failing: device_users::failing,
        "whatever allocation fails while pages move to the GPU's memory or back: each is here or there, whole";
    device_failing_huge: device_users::failing_huge,
        "the same with a part of a huge page";
    device_to_and_fro: device_users::to_and_fro,
        "pages move to and fro under two writers and a GPU at work: no write is lost";
    device_peer: device_users::peer,
        "what is in one GPU's memory another GPU reads and writes there";
    device_prefetched: device_svm::prefetched,
        "an SVM range is prefetched to the GPU, used there by both sides, and prefetched back";
    device_hugetlbfs: device_svm::hugetlbfs,
        "the GPU uses pages of hugetlbfs where they are, and a prefetch moves none";
    device_private_beside_missing: device_svm::beside_missing,
        "pages that are missing are faulted in, and private pages beside them stay in the GPU's memory";
    device_faulted: device_svm::faulted,
        "the GPU faults on an SVM range that prefers its memory, and has it there";
    device_too_large: device_svm::too_large,
        "an SVM range of twice the free VRAM: the GPU works on all of it, with eviction, and nothing is lost";
    device_mappings_are_no_memory: device_svm::mappings_of_the_device,
        "what a client has mapped of the device is no SVM memory";
    device_served_by_a_thread: user_faults::of_a_call,
        "memory whose page faults a thread of the process serves is registered, is SVM memory, and moves to the GPU's memory";
    device_faults_wait_for_no_thread: user_faults::of_the_gpu,
        "the GPU's own fault does not wait for a thread that serves page faults, and uses what the CPU has had served";
    svm_beside_a_call_that_waits: user_faults::beside_a_call_that_waits,
        "an SVM call waits for a page that a thread serves, memory beside it is unmapped, and other memory of the same 2 MiB is registered for good";
    killed_in_an_svm_call: hostile::svm,
        "SIGKILL ends a client whose SVM call is about terabytes";
    killed_in_registrations: hostile::registration,
        "SIGKILL ends a client that registers as much as it may, one page again and again";
    killed_in_snapshots: hostile::snapshot,
        "SIGKILL ends a client that looks at as many entries as it may";
    reservation_is_one_miss: hostile::reservation,
        "an SVM call about 8 GiB that nothing may access is short; with XNACK off they would be charged";
    vmids_for_other_users: hostile::vmids,
        "one user takes all VMIDs that it gets, and another one still gets one";
    gtt_in_the_memory_cgroup: hostile::gtt,
        "system memory of a client's is charged to its memory cgroup, also in pieces of 2 MiB";
    registers_of_each_client: hostile::registers,
        "a page of registers that one user writes to is not another user's";
    opens_of_an_address_space: opens::of_an_address_space,
        "the files of one address space are one process, until the last of them is closed or one asks for its own";
    mapping_fails_half_way: mapping::fails_half_way,
        "a mapping of VRAM in several pieces fails at each of them: nothing is left of it";
    pressure_on_two_processes: pressure::two_processes,
        "two processes with 4,096 ranges each under pressure for a minute, XNACK off and on";
    unloading_with_clients: unload::with_clients,
        "the module is not unloaded while a file is open or a page mapped, goes on meanwhile, and is unloaded afterwards";
}
