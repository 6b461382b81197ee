//! Stubs for the sites of a module, on aarch64: none for calls, one within reach for entries.

use std::io;
use std::ops::Range;

use super::code::Shape;
use super::entry_stubs::Area;
use super::poke::{Barrier, Pages};
use super::sites::Call;

/// Makes the stubs of a module's sites, all of them calls, or all entries.
pub(super) fn shapes(module: &Range<usize>, sites: &[Call]) -> io::Result<Vec<Shape>> {
    if !sites.iter().any(|site| site.form.is_entry()) {
        let shape = |site: &Call| Shape { form: site.form, original: site.original, on: site.original };
        return Ok(sites.iter().map(shape).collect());
    }
    let mapped: Vec<_> = Pages::all()?.into_iter().map(|pages| pages.range).collect();
    let area = Area::new(module, sites, &mapped)?;
    // Before any branch leads there.
    Barrier::prepare().pass();
    let shape = |(idx, site): (usize, &Call)| Shape {
        form: site.form,
        original: site.original,
        on: area.branch(idx, site.address).to_le_bytes(),
    };
    Ok(sites.iter().enumerate().map(shape).collect())
}
