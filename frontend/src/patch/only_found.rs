//! Calls of the hook are found, for filters, and stay unchanged: on riscv64 a call has two instructions, or one in a
//! word with others, and no source permits changes while other cores execute them.

use super::finding::find_calls;
use super::module::{Image, with_modules};
use super::outcome::PatchedSites;
use super::sites::Site;

/// Refuses.
pub(crate) fn install() -> PatchedSites {
    PatchedSites { refusal: Some("rftrace does not patch call sites on riscv64".to_owned()), ..PatchedSites::default() }
}

/// Nothing was changed.
pub(crate) fn undo() {}

/// Nothing was changed.
pub(crate) fn abandon() {}

/// Nothing is changed.
pub(crate) fn select(_selection: impl Fn(&Site) -> bool + Send + 'static) {}

/// A fork waits for nothing.
pub(crate) fn register_fork_handlers() {}

/// None is patched.
pub(crate) fn counts() -> PatchedSites {
    PatchedSites::default()
}

/// Returns all present sites, by address within a module.
pub(crate) fn sites() -> Vec<Site> {
    // SAFETY: asks for a number.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    let mut sites = Vec::new();
    with_modules(|info| {
        // SAFETY: in the callback, and not used behind it.
        let image = unsafe { Image::new(info) }.filter(|image| !image.contains(vdso))?;
        sites.extend(find_calls(&image).calls.into_iter().map(|call| call.site(image.start())));
        None::<()>
    });
    sites
}
