//! The events of all threads in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use rftrace_format::resources::{Action, Kind, LOW, Resource, pool};
use rftrace_read::{Error, Result};

use crate::blocks::{self, Block};
use crate::recording::Recording;

/// An allocation, a release or another call of a recorded function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time in ticks since the recording began.
    pub ticks: u64,
    /// The kind of the event, which tells the function.
    pub kind: Kind,
    /// The resource.
    pub resource: Resource,
    /// The effect of the function.
    pub action: Action,
    /// The function's name.
    pub function: &'static str,
    /// The address, descriptor or thread.
    pub address: u64,
    /// The requested number of bytes, 1 for a resource without size; 0 for a release. The release of a range has the
    /// range's last number here.
    pub bytes: u64,
    /// The time at which the call began, as far as it is known.
    pub began: u64,
    /// The path of a file.
    pub detail: Option<Rc<str>>,
    /// The argument or result of the function, and its arguments as text, if they were recorded.
    pub told: Option<(u64, Rc<str>)>,
    /// The number of the caller's stack; 0 if it is unknown.
    pub stack: u32,
    /// The process, by its number in the recording.
    pub process: u32,
    /// The thread.
    pub tid: u32,
}

/// A block of which not all events have been told.
struct Open {
    events: std::vec::IntoIter<Event>,
}

impl Recording {
    /// Calls `each` with the events in order of time, until it returns false.
    ///
    /// Only blocks that threads wrote to at the same time are in memory.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or its blocks overlap in time in an impossible way.
    pub fn events(&self, mut each: impl FnMut(&Event) -> bool) -> Result<()> {
        /// Threads may have left some to the recorder that it has not taken.
        const MOST: usize = 2 * pool::CHUNKS;

        let mut waiting = self.all.iter().peekable();
        let mut open: Vec<Option<Open>> = Vec::new();
        let mut free: Vec<usize> = Vec::new();
        // The next event of each open block.
        let mut next: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut heads: Vec<Option<Event>> = Vec::new();
        loop {
            let first = next.peek().map(|Reverse((ticks, _))| *ticks);
            if let Some(block) = waiting.peek().filter(|block| first.is_none_or(|first| block.head.taken <= first)) {
                let mut events = self.events_of(block)?.into_iter();
                waiting.next();
                let Some(event) = events.next() else { continue };
                let place = free.pop().unwrap_or_else(|| {
                    open.push(None);
                    heads.push(None);
                    open.len() - 1
                });
                if place >= MOST {
                    let reason = format!("more than {MOST} threads at the same time: the file is damaged");
                    return Err(Error::malformed(&self.blocks.path, 0, reason));
                }
                next.push(Reverse((event.ticks, place)));
                heads[place] = Some(event);
                open[place] = Some(Open { events });
                continue;
            }
            let Some(Reverse((_, place))) = next.pop() else { return Ok(()) };
            if let Some(event) = heads[place].take()
                && !each(&event)
            {
                return Ok(());
            }
            match open[place].as_mut().and_then(|open| open.events.next()) {
                Some(event) => {
                    next.push(Reverse((event.ticks, place)));
                    heads[place] = Some(event);
                }
                None => {
                    open[place] = None;
                    free.push(place);
                }
            }
        }
    }

    /// The resource, action and name of a function.
    fn role(&self, item: &blocks::Item<'_>) -> Option<(Resource, Action, &'static str)> {
        if let Some((resource, action)) = item.kind.role() {
            return Some((resource, action, item.kind.function()));
        }
        let (action, &[[_, number], ..]) = (item.kind.action()?, item.more) else { return None };
        // Above the number of the stack.
        let (resource, function) = self.specified(number >> 32)?;
        Some((resource, action, function))
    }

    fn events_of(&self, block: &Block) -> Result<Vec<Event>> {
        let (process, tid) = (block.head.process, block.head.tid);
        let units = self.blocks.read(block)?;
        let event = |item: blocks::Item<'_>| {
            let (resource, action, function) = self.role(&item)?;
            let (bytes, number) = match (action, item.more) {
                (Action::Release, []) => (0, 0),
                (_, &[[bytes, number], ..]) => (bytes & LOW, number as u32),
                _ => return None,
            };
            let (began, detail) = match item.more {
                &[_, [began, n_bytes], ref text @ ..] => (began & LOW, blocks::text(text, n_bytes)),
                _ => (item.ticks, None),
            };
            // Behind that, or the text of an allocation.
            let behind = match (action, item.more) {
                // Of specified functions there is nothing.
                _ if item.kind.role().is_none() => usize::MAX,
                (Action::Allocation, &[_, [_, n_bytes], ..]) => (n_bytes as usize).div_ceil(8).saturating_add(2),
                (Action::Allocation, _) => usize::MAX,
                _ => 1,
            };
            let told = match item.more.get(behind..) {
                Some(&[[n_bytes, value], ref text @ ..]) => {
                    blocks::text(text, n_bytes & LOW).map(|text| (value, String::from_utf8_lossy(&text).into()))
                }
                _ => None,
            };
            let detail = detail.filter(|text| !text.is_empty()).map(|text| String::from_utf8_lossy(&text).into());
            let stack = if number == 0 { 0 } else { self.stack_of(process, number) };
            let (ticks, kind, address) = (item.ticks, item.kind, item.word);
            Some(Event {
                ticks,
                kind,
                resource,
                action,
                function,
                address,
                bytes,
                began,
                detail,
                told,
                stack,
                process,
                tid,
            })
        };
        let mut events: Vec<Event> = blocks::items(&units).filter_map(event).collect();
        // A handler's events may lie before those that it has interrupted.
        events.sort_by_key(|event| event.ticks);
        Ok(events)
    }
}
