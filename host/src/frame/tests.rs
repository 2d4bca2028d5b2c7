// SPDX-License-Identifier: GPL-2.0 OR MIT
use super::*;

const BASE: u64 = 0x7000_0000_0000;

fn table() -> Frames {
    Frames::with_capacity(1 << 20).unwrap()
}

fn pages(first: u64, count: u64) -> CpuSpan {
    CpuSpan::new(CpuVa(BASE + first * PAGE), count * PAGE).unwrap()
}

fn assign(frames: &Frames, span: CpuSpan) -> Vec<PhysAddr> {
    let mut got = Vec::new();
    frames.assign(&[span], |at| got.push(at)).unwrap();
    assert_eq!(got.len() as u64, span.pages());
    got
}

#[test]
fn a_page_keeps_its_frame_as_long_as_it_lives() {
    let frames = table();
    let first = assign(&frames, pages(3, 5));
    assert_eq!(assign(&frames, pages(0, 10))[3..8], first[..]);
    assert_eq!(frames.live(), 10);
    assert_eq!(frames.resolve(PhysAddr(first[2].0 + 0x123), 1), Resolved::Live(CpuVa(BASE + 5 * PAGE + 0x123), 1));
}

#[test]
fn a_whole_block_is_one_aligned_run_of_frames() {
    let frames = table();
    // In an order that is not the address order.
    for page in (0..512).rev() {
        assign(&frames, pages(page, 1));
    }
    let got = assign(&frames, pages(0, 512));
    assert_eq!(got[0].0 % HUGE, 0);
    assert!(got.windows(2).all(|w| w[1].0 == w[0].0 + PAGE));
    assert_eq!(frames.resolve(got[0], HUGE), Resolved::Live(CpuVa(BASE), HUGE));
    assert_eq!(
        frames.resolve(PhysAddr(got[511].0 + 8), 1 << 30),
        Resolved::Live(CpuVa(BASE + 511 * PAGE + 8), PAGE - 8)
    );
}

#[test]
fn runs_end_where_host_addresses_do() {
    let frames = table();
    let first = assign(&frames, pages(0, 512));
    let other = assign(&frames, pages(5 * 512, 512));
    assert_eq!(other[0].0, first[511].0 + PAGE, "consecutive groups, so only the addresses part them");
    assert_eq!(frames.resolve(first[511], 2 * PAGE), Resolved::Live(CpuVa(BASE + 511 * PAGE), PAGE));
}

#[test]
fn a_dead_frame_is_stale_and_not_reused_in_quarantine() {
    let frames = table();
    let kept = assign(&frames, pages(0, 1))[0];
    let mut dead = std::collections::HashSet::new();
    for _ in 0..1000 {
        let at = assign(&frames, pages(7, 1))[0];
        assert!(dead.insert(at.0), "{at} came back out of quarantine");
        frames.kill(pages(7, 1));
        assert_eq!(frames.resolve(at, 1), Resolved::Stale);
    }
    for at in dead {
        assert_eq!(frames.resolve(PhysAddr(at), 1), Resolved::Stale);
    }
    assert_eq!(frames.resolve(kept, 1), Resolved::Live(CpuVa(BASE), 1), "its neighbour lives on");
    assert_eq!(frames.live(), 1);
}

#[test]
fn frames_come_back_after_quarantine_so_that_they_do_not_run_out() {
    // 512 groups exist; 20,000 rounds with a neighbour alive use up far more single frames than a
    // leak would leave.
    let frames = Frames::with_capacity(1 << 18).unwrap();
    assign(&frames, pages(0, 1));
    for _ in 0..20_000 {
        assign(&frames, pages(1, 40));
        frames.kill(pages(1, 40));
    }
    assert_eq!(frames.live(), 1);
}

#[test]
fn a_block_that_died_whole_gets_a_fresh_contiguous_group() {
    let frames = table();
    let before = assign(&frames, pages(0, 512));
    frames.kill(pages(0, 512));
    let after = assign(&frames, pages(0, 512));
    assert_ne!(before[0], after[0]);
    assert_eq!(after[0].0 % HUGE, 0);
    assert!(after.windows(2).all(|w| w[1].0 == w[0].0 + PAGE));
    // Many rounds: retired groups are used again.
    for _ in 0..10_000 {
        frames.kill(pages(0, 512));
        assign(&frames, pages(0, 512));
    }
}

#[test]
fn running_out_is_enomem_and_leaves_what_was_given() {
    let frames = Frames::with_capacity(4 * 512).unwrap();
    // Group 0 is never used.
    assert_eq!(assign(&frames, pages(0, 3 * 512)).len(), 1536);
    assert_eq!(frames.assign(&[pages(3 * 512, 1)], |_| ()), Err((0, Errno::ENOMEM)));
    assert_eq!(frames.live(), 1536);
    frames.kill(pages(512, 512));
    assert_eq!(assign(&frames, pages(3 * 512, 512)).len(), 512, "in need, quarantine is cut short");
}

#[test]
fn killing_everything_skips_what_is_empty_and_spares_pinned_memory() {
    let frames = table();
    let mut pinned = PhysAddr(0);
    frames.assign_pinned(pages(1 << 20, 1), |at| pinned = at).unwrap();
    let far = assign(&frames, pages(1 << 21, 1))[0];
    let near = assign(&frames, pages(0, 1))[0];
    frames.kill(CpuSpan::between(CpuVa(0), CpuVa(u64::MAX)));
    assert_eq!(frames.resolve(far, 1), Resolved::Stale);
    assert_eq!(frames.resolve(near, 1), Resolved::Stale);
    assert!(matches!(frames.resolve(pinned, 1), Resolved::Live(..)));
    frames.release(pages(1 << 20, 1));
    assert_eq!(frames.resolve(pinned, 1), Resolved::Stale);
    assert_eq!(frames.live(), 0);
}

#[test]
fn what_never_was_a_frame_is_unknown() {
    let frames = table();
    assert_eq!(frames.resolve(PhysAddr(0), 1), Resolved::Unknown);
    assert_eq!(frames.resolve(PhysAddr(77 << PAGE_SHIFT), 1), Resolved::Unknown);
    assert_eq!(frames.resolve(PhysAddr(u64::MAX), 1), Resolved::Unknown);
    let high = CpuSpan::new(CpuVa(1 << 47), PAGE).unwrap();
    assert_eq!(frames.assign(&[pages(1, 1), high], |_| ()), Err((1, Errno::EFAULT)));
}
