// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The users' shares of a GPU's few VMIDs, queues and event files.
//!
//! KFD runs more processes than there are VMIDs, and more queues than there are hardware queues, in
//! turns. Here each process has a VMID of its own, and nothing takes turns. One user must not keep
//! all the others out. So the last quarter is only for users that have none; another user gets more
//! as long as more than a quarter is left. One user alone gets three quarters; of a small number,
//! each user gets at least one.

/// Whether a user that has `own` of `all` may have one more, with `free` left.
pub const fn allows(all: usize, free: usize, own: usize) -> bool {
    free > 0 && (own == 0 || free > all / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_quarter_is_for_those_who_have_none() {
        let take_all = |all| (0..).take_while(|own| allows(all, all - own, *own)).count();
        assert_eq!((take_all(15), take_all(7), take_all(256), take_all(64)), (12, 6, 192, 48));
        assert!(allows(15, 1, 0) && !allows(15, 0, 0) && !allows(15, 3, 1) && allows(15, 4, 1));
        // With hardly anything to share it goes to the user that comes first.
        assert_eq!((take_all(1), take_all(3)), (1, 3));
    }
}
