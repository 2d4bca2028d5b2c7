// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What this system lets the host do: the same questions that it asks when it makes a machine,
//! answered for people (`vkfd doctor`).

use crate::populate;
use crate::source::Capabilities;
use crate::uffd::Uffd;
use crate::{mapping_count, migrate};

/// The answers. What cannot be had has the reason in words.
#[derive(Clone, Debug)]
pub struct System {
    /// What is announced through userfaultfd.
    pub userfaultfd: Result<Capabilities, String>,
    /// Whether memory can move to GPUs; and then, whether system calls wait for memory that is just
    /// moving (otherwise they fail with EFAULT there, as if it were not mapped).
    pub moving: Result<bool, String>,
    /// Whether the page tables can be asked (PAGEMAP_SCAN, PROCMAP_QUERY), so that registering
    /// touches no page that is there.
    pub page_tables: bool,
    /// Mappings that a process may have.
    pub max_map_count: Option<u64>,
}

/// Asks. Opens descriptors and closes them again; nothing stays.
pub fn system() -> System {
    let words = |error: std::io::Error| error.to_string();
    let userfaultfd = Uffd::open().map_err(words).map(|uffd| {
        // Everyone's forks only with privilege.
        Capabilities { fork: uffd.sees_forks(), ..uffd.capabilities() }
    });
    System {
        userfaultfd,
        moving: migrate::can_move().map_err(words),
        page_tables: populate::asks_page_tables(),
        max_map_count: mapping_count::max_map_count(),
    }
}

#[cfg(test)]
mod tests {
    use super::system;

    #[test]
    fn the_answers_are_those_of_the_host_itself() {
        let system = system();
        let opened = std::fs::read_dir("/proc/self/fd").map(Iterator::count).ok();
        let again = super::system();
        assert_eq!(std::fs::read_dir("/proc/self/fd").map(Iterator::count).ok(), opened, "no descriptor stays");
        assert_eq!(
            (system.userfaultfd.is_ok(), system.moving.is_ok()),
            (again.userfaultfd.is_ok(), again.moving.is_ok())
        );
        assert!(system.max_map_count.is_some_and(|mappings| mappings > 0));
    }
}
