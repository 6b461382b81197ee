//! Functions that do nothing but call a hook, each kind of hook as programs call it: what a recorded call costs is measured with them.
//!
//! Not here: the measuring (`rftrace-frontend`).

use std::arch::naked_asm;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use rftrace_format::cost::HookKind;

unsafe extern "C" {
    fn mcount();
    fn rftrace_patched_mcount();
    fn rftrace_entry();
}

/// True if functions with the hooks are here.
pub(crate) const ARE_KNOWN: bool = true;

/// Returns a loop that calls a function of a kind so many times; `None` for one without a hook.
pub(crate) fn calls(kind: Option<HookKind>) -> impl Fn(u64) {
    let words =
        [branched_rest as *const () as usize, branched as *const () as usize, rftrace_entry as *const () as usize, 1];
    for (word, value) in BRANCH.iter().zip(words) {
        word.store(value, Relaxed);
    }
    let function: unsafe extern "C" fn() = match kind {
        None => plain,
        Some(HookKind::Call) => called,
        Some(HookKind::Patched) => patched,
        Some(HookKind::Branch) => branched,
    };
    // SAFETY: the function takes nothing, returns nothing and keeps what belongs to its caller.
    move |n_calls| unsafe { call(n_calls, function) }
}

/// Calls `function` so many times, at least once.
#[unsafe(naked)]
unsafe extern "C" fn call(n_calls: u64, function: unsafe extern "C" fn()) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "mov rbx, rdi",
        "mov r12, rsi",
        "2:",
        "call r12",
        "sub rbx, 1",
        "ja 2b",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    );
}

#[unsafe(naked)]
unsafe extern "C" fn plain() {
    naked_asm!("push rbp", "mov rbp, rsp", "pop rbp", "ret");
}

/// As compilers have it.
#[unsafe(naked)]
unsafe extern "C" fn called() {
    naked_asm!("push rbp", "mov rbp, rsp", "call {hook}", "pop rbp", "ret", hook = sym mcount);
}

/// With its stub.
#[unsafe(naked)]
unsafe extern "C" fn patched() {
    naked_asm!(
        "push rbp", "mov rbp, rsp", "jmp 3f",
        "2:", "pop rbp", "ret",
        "3:", "lea r11, [rip + 2b]", "jmp {hook}",
        hook = sym rftrace_patched_mcount,
    );
}

/// Where it goes on, its name, the hook, and that it is switched on: what its stub has beside it.
static BRANCH: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// With its stub.
#[unsafe(naked)]
unsafe extern "C" fn branched() {
    naked_asm!(
        "jmp 3f",
        "3:", "cmp byte ptr [rip + {words} + 24], 0", "jne 4f", "int3",
        "4:", "push [rip + {words}]", "push [rip + {words} + 8]", "jmp [rip + {words} + 16]",
        words = sym BRANCH,
    );
}

#[unsafe(naked)]
unsafe extern "C" fn branched_rest() {
    naked_asm!("push rbp", "mov rbp, rsp", "pop rbp", "ret");
}
