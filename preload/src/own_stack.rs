// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Deep calls on a stack of their own: a program's thread may have one of 16 KiB, and making a
//! machine takes more. On the same thread, because the caller may have locks of the loader, for
//! which another thread would wait.
//!
//! Limit: on other machines than x86-64 it is the caller's stack.

use std::cell::Cell;
use std::mem::MaybeUninit;

use vkfd_host::sabotage;
use vkfd_sabotage::Switch;

/// Most of it is never touched.
const BYTES: usize = 1 << 20;
const GUARD: usize = 1 << 16;
/// A call of the driver takes less.
const DEEP: usize = 64 << 10;

thread_local! {
    /// This thread's stack, from its lowest address to its end; zeros until somebody asked.
    static BOUNDS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn bounds() -> (usize, usize) {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are used and destroyed only if they were filled in.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return (0, 0);
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    let low = low.expose_provenance();
    (low, low.saturating_add(bytes))
}

/// What `call` returns. It runs on a stack of its own where this thread's has not much left, or
/// where this is another than the thread's: a coroutine's, or a signal handler's.
pub(crate) fn if_needed<R>(call: impl FnOnce() -> R) -> R {
    let here = (&raw const call).addr();
    if BOUNDS.get() == (0, 0) {
        BOUNDS.set(bounds());
    }
    let (low, end) = BOUNDS.get();
    if sabotage::has(Switch::CallersStack) || here < end && here.checked_sub(low).is_some_and(|left| left >= DEEP) {
        call()
    } else {
        self::call(call)
    }
}

/// What `call` returns, called on a stack of its own; on the caller's if there is no memory for it.
pub(crate) fn call<R>(call: impl FnOnce() -> R) -> R {
    let own = cfg!(target_arch = "x86_64") && !sabotage::has(Switch::CallersStack);
    let stack = if own { Stack::new() } else { None };
    let Some(stack) = stack else { return call() };
    let mut job = Job { call: Some(call), result: None };
    // SAFETY: `run` gets its job, and nobody else uses either before it returns.
    unsafe { switch(stack.top(), run_of(&job), (&raw mut job).cast()) };
    match job.result {
        Some(result) => result,
        // `run` has come back without having called.
        None => std::process::abort(),
    }
}

struct Job<F, R> {
    call: Option<F>,
    result: Option<R>,
}

type Run = extern "C" fn(*mut libc::c_void);

fn run_of<F: FnOnce() -> R, R>(_: &Job<F, R>) -> Run {
    run::<F, R>
}

/// A panic ends the process here: there is no way past the other stack.
extern "C" fn run<F: FnOnce() -> R, R>(job: *mut libc::c_void) {
    // SAFETY: the job of the caller, which waits.
    let job = unsafe { &mut *job.cast::<Job<F, R>>() };
    job.result = job.call.take().map(|call| call());
}

/// Calls `run` with the stack pointer at `top`.
///
/// # Safety
/// Below `top` is memory enough, and `run` may be called with `job`.
#[cfg(target_arch = "x86_64")]
unsafe fn switch(top: usize, run: Run, job: *mut libc::c_void) {
    // SAFETY: the stack pointer is kept in a register that calls preserve. `top` is a multiple of
    // 16, as the call needs it.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top,
            run = in(reg) run,
            in("rdi") job,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn switch(_: usize, run: Run, job: *mut libc::c_void) {
    run(job);
}

/// A mapping whose lowest part cannot be touched.
struct Stack(usize);

impl Stack {
    fn new() -> Option<Self> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, and a part of it that nobody uses yet. By system calls: hooks are
        // for the program's.
        unsafe {
            let at = libc::syscall(libc::SYS_mmap, 0, BYTES, prot, kind, -1, 0);
            let stack = Self(usize::try_from(at).ok()?);
            (libc::syscall(libc::SYS_mprotect, stack.0, GUARD, libc::PROT_NONE) == 0).then_some(stack)
        }
    }

    fn top(&self) -> usize {
        self.0 + BYTES
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which nobody uses any more.
        unsafe { libc::syscall(libc::SYS_munmap, self.0, BYTES) };
    }
}
