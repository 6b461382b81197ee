//! Functions that the compiler adds to a program, and that tell nothing of it: left out unless the user asks for them.
//!
//! Not here: the rules' effect (`rftrace-frontend`). Calls in these functions are recorded.

use std::ffi::OsString;

/// Their names, as globs. Allocations themselves, such as `__rustc::__rust_alloc`, take time and stay.
///
/// A mangled name has the type of a method in front (`<u32>::unchecked_add::precondition_check`), or its module (legacy).
const FUNCTIONS: [&str; 8] = [
    // Each allocation calls it once; its code is empty.
    "*__rust_no_alloc_shim_is_unstable*",
    // Debug builds check the conditions of unsafe functions.
    "core::*::precondition_check",
    "alloc::*::precondition_check",
    "std::*::precondition_check",
    "<*>::*::precondition_check",
    "core::ub_checks::*",
    "<?const ()>::is_aligned_to",
    "core::ptr::*::is_aligned_to",
];

/// The option of `rftrace record` that leaves them out.
pub(super) fn left_out() -> OsString {
    let rules: Vec<String> = FUNCTIONS.iter().map(|function| format!("exclude={function}")).collect();
    format!("--rules={}", rules.join(";")).into()
}

#[cfg(test)]
mod tests {
    use rftrace_read::Pattern;

    use super::*;

    #[test]
    fn names_of_both_manglings() {
        let is_left_out = |name: &str| FUNCTIONS.iter().any(|glob| Pattern::new(glob).unwrap().matches(name));
        for name in [
            "__rustc::__rust_no_alloc_shim_is_unstable_v2",
            "core::char::convert::from_u32_unchecked::precondition_check",
            "<*const _>::offset_from_unsigned::precondition_check",
            "<usize as core::slice::index::SliceIndex<[_]>>::get_unchecked::precondition_check",
            "core::ptr::const_ptr::<impl *const T>::offset_from_unsigned::precondition_check",
            "alloc::vec::Vec<T,A>::set_len::precondition_check",
            "core::ub_checks::maybe_is_nonoverlapping::runtime",
            "<*const ()>::is_aligned_to",
            "core::ptr::const_ptr::<impl *const T>::is_aligned_to",
        ] {
            assert!(is_left_out(name), "{name}");
        }
        for name in [
            "app::precondition_check",
            "app::is_aligned_to",
            "<app::Order>::precondition_check",
            "<app::Order as app::Check>::precondition_check",
            "__rustc::__rust_alloc",
            "core::ptr::copy_nonoverlapping",
            "main",
        ] {
            assert!(!is_left_out(name), "{name}");
        }
    }
}
