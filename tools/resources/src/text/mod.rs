//! Recordings as the text of functracer and of its successor, sp-rtrace: a line for each call, followed by its callers.
//!
//! - [`functracer`] and [`sp_rtrace`] write the text; this file has their common part, the line of a call.
//! - `read` reads both forms, and [`postproc`] shortens the text.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rftrace_format::recording::{RESOURCES, SPECIFIED, TRACER};
use rftrace_format::resources::{Action, Kind, Resource};
use rftrace_format::text::{Shown, base_name, is_unseen};
use rftrace_read::Result;

use crate::merge::Event;
use crate::own::Own;
use crate::recording::Recording;

mod functracer;
mod postproc;
mod read;
mod sp_rtrace;

pub use functracer::{FunctracerText, Section, functracer_header};
pub use postproc::{Order, Postprocessor};
pub use sp_rtrace::write_sp_rtrace;

/// A call as a line.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) ticks: u64,
    pub(crate) name: &'static str,
    /// How much was taken; `None` where something was given back.
    pub(crate) size: Option<u64>,
    pub(crate) id: u64,
    /// Arguments, in words.
    pub(crate) details: Option<Rc<str>>,
    /// The callers, if they are to be told.
    pub(crate) stack: Option<u32>,
    pub(crate) process: u32,
    /// True if the next call has the same number.
    pub(crate) shares_index: bool,
}

impl Call {
    fn of(event: &Event) -> Self {
        let shown = |text: Rc<str>| Shown::new(&text).text().into();
        let (told, details) = event.told.clone().map_or((None, None), |(told, text)| (Some(told), Some(text)));
        Self {
            ticks: event.ticks,
            name: event.function,
            size: None,
            id: told.unwrap_or(event.address),
            details: details.or_else(|| specified(event)).filter(|text| !text.is_empty()).map(shown),
            stack: Some(event.stack),
            process: event.process,
            shares_index: false,
        }
    }
}

/// The arguments of a specified function.
fn specified(event: &Event) -> Option<Rc<str>> {
    event.detail.clone().filter(|_| matches!(event.resource, Resource::Specified(_)))
}

/// All calls of a resource, or of each, by some processes, between two times; if `is_odd`, as functracer tells them.
pub(crate) fn calls(
    recording: &Recording,
    (resource, is_odd): (Option<Resource>, bool),
    processes: &BTreeSet<u32>,
    (from, until): (u64, u64),
) -> Result<Vec<Call>> {
    let mut events: Vec<Option<Event>> = Vec::new();
    let mut own = Own::of(recording);
    // Those that were noted of each thread and that no other one has called, as far as is known.
    let mut noted: HashMap<(u32, u32), Vec<usize>> = HashMap::new();
    recording.events(|event| {
        let is_own = own.has(event);
        if !is_own
            && resource.is_none_or(|resource| event.resource == resource)
            && processes.contains(&event.process)
            && (from..=until).contains(&event.ticks)
        {
            if is_odd && event.kind == Kind::SpecifiedNote {
                let noted = noted.entry((event.process, event.tid)).or_default();
                // Of calls within each other functracer tells the outermost, which ends last.
                while let Some(inner) = noted.pop_if(|&mut inner| {
                    events[inner]
                        .as_ref()
                        .is_some_and(|inner| inner.resource == event.resource && inner.began >= event.began)
                }) {
                    events[inner] = None;
                }
                noted.push(events.len());
            }
            events.push(Some(event.clone()));
        }
        event.ticks <= until
    })?;
    let mut calls = Vec::new();
    for at in 0..events.len() {
        let Some(event) = events[at].take() else { continue };
        let is_pair = matches!(event.kind, Kind::Pipe | Kind::Pipe2 | Kind::Socketpair);
        if !is_odd && is_pair {
            calls.push(Call { size: Some(1), id: event.address, ..Call::of(&event) });
            continue;
        }
        if !is_pair {
            add(&event, &mut calls);
            continue;
        }
        // Both ends are one call's. Other threads' calls may lie between them.
        let is_other = |other: &Event| {
            (other.kind, other.process, other.tid, other.began) == (event.kind, event.process, event.tid, event.began)
        };
        let place = (at + 1..events.len()).find(|&place| events[place].as_ref().is_some_and(is_other));
        let other = place.and_then(|place| events[place].take());
        let n_calls = calls.len();
        add(&event, &mut calls);
        if let Some(other) = other {
            let first = &mut calls[n_calls];
            (first.shares_index, first.stack) = (true, None);
            add(&other, &mut calls);
        }
    }
    Ok(calls)
}

/// Adds the lines of an event.
fn add(event: &Event, calls: &mut Vec<Call>) {
    let call = Call::of(event);
    let release = Call { size: None, details: None, ..call.clone() };
    match event.kind {
        // A function of the C library has both names.
        Kind::AlignedAlloc => calls.push(Call { name: "memalign", size: Some(event.bytes), ..call }),
        // The descriptors stand where sizes do, and the result where ids do.
        Kind::Pipe | Kind::Pipe2 => calls.push(Call { size: Some(event.address), id: 0, ..call }),
        Kind::Dup2 | Kind::Dup3 => {
            calls.push(Call { stack: None, id: event.address, ..release });
            calls.push(Call { size: Some(1), ..call });
        }
        Kind::Fdopen => calls.push(Call { size: Some(1), ..call }),
        // The function goes on to take something.
        Kind::ReallocFree | Kind::FreopenClose | Kind::FdopenClose => calls.push(Call { stack: None, ..release }),
        _ if event.action == Action::Allocation || event.kind == Kind::SpecifiedNote => {
            let has_size = !matches!(event.resource, Resource::File | Resource::Thread | Resource::Library);
            calls.push(Call { size: Some(if has_size { event.bytes } else { 1 }), ..call });
        }
        _ => calls.push(release),
    }
}

/// The time of day here.
pub(crate) fn local_time(recording: &Recording, ticks: u64, zone: &TimeZone, form: &str) -> String {
    let nanos = recording.unix_nanos(ticks).unwrap_or_else(|| recording.nanos(ticks));
    time_of_day(nanos, zone, form)
}

/// The same of nanoseconds since 1970.
fn time_of_day(nanos: u64, zone: &TimeZone, form: &str) -> String {
    let time = Timestamp::from_nanosecond(nanos.into()).unwrap_or_default();
    time.to_zoned(zone.clone()).strftime(form).to_string()
}

/// Only paths of files, which the vDSO has none of, and none of what records.
pub(crate) fn is_told(path: &str) -> bool {
    path.starts_with('/') && !path.contains(is_unseen) && ![RESOURCES, SPECIFIED, TRACER].contains(&base_name(path))
}
