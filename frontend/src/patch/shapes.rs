//! Stubs for the sites of a module, on x86-64: within reach, and registered with unwinders and debuggers.

use std::io;
use std::ops::Range;

use super::code::Shape;
use super::debugger;
use super::poke::Pages;
use super::sites::Call;
use super::stubs::{Area, distance};
use super::unwind::{self, Reader};

/// Makes the stubs of the calls of a module at `module`.
pub(super) fn shapes(module: &Range<usize>, calls: &[Call]) -> io::Result<Vec<Shape>> {
    let mapped: Vec<_> = Pages::all()?.into_iter().map(|pages| pages.range).collect();
    let area = Area::new(module, calls, &mapped)?;
    unwind::register(&area, unwind::section(&area, Reader::Unwinder));
    debugger::register(&area.stubs(), &area.thunks(), &unwind::section(&area, Reader::Debugger).bytes);
    let shape = |(idx, call): (usize, &Call)| {
        let end = call.address + call.form.len();
        Shape {
            form: call.form,
            original: call.original,
            to_stub: distance(end, area.stub(idx)),
            to_thunk: distance(end, area.thunk(call.hook)),
        }
    };
    Ok(calls.iter().enumerate().map(shape).collect())
}
