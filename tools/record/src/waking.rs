//! The kernel's event of a waking, `sched:sched_waking`: its number, and its data.

use std::collections::HashMap;

use perf_event::events::Tracepoint;
use rftrace_format::perf::Waking;
use rftrace_kernel::format::{Field, Format};

use crate::processes::has_own_numbers;
use crate::tracefs;

/// The event's file in tracefs.
const FORMAT: &str = "events/sched/sched_waking/format";

/// Flags of an event from an interrupt: of a device or timer, of the work that it left behind, or not maskable.
const IN_INTERRUPT: u64 = 0x08 | 0x10 | 0x40;

/// A second waking within this time ends no wait that anybody asks for. Some kernels tell of a waking in both threads.
const SAME_NS: u64 = 10_000;

/// The maximum number of threads in mind.
const MAX_THREADS: usize = 1 << 12;

/// The event, with the places of its data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WakingEvent {
    id: u16,
    flags: Field,
    woken: Field,
}

impl WakingEvent {
    /// Finds the event; `None` if this user may not see it, or its numbers of threads differ from those of the program.
    pub(crate) fn find() -> Option<Self> {
        if has_own_numbers() {
            return None;
        }
        Self::parse(&tracefs::read(FORMAT)?)
    }

    fn parse(format: &str) -> Option<Self> {
        let format = Format::parse(format)?;
        Some(Self { id: format.id, flags: format.field("common_flags")?, woken: format.field("pid")? })
    }

    /// The event for the kernel.
    pub(crate) fn tracepoint(self) -> Tracepoint {
        Tracepoint::with_id(self.id.into())
    }

    /// Decodes a sample: process, thread, time, and the data with their size. `None` if it is too short, or if an interrupt
    /// woke the thread: it has nothing to do with the thread that ran.
    fn decode(self, sample: &[u8]) -> Option<Waking> {
        let (ids, rest) = sample.split_first_chunk::<16>()?;
        let (size, data) = rest.split_first_chunk()?;
        let data = data.get(..u32::from_le_bytes(*size) as usize)?;
        let [_, _, _, _, a, b, c, d, time @ ..] = *ids;
        let tid = self.woken.value(data)? as u32;
        let waking = Waking { time_ns: u64::from_le_bytes(time), tid, by: u32::from_le_bytes([a, b, c, d]) };
        (self.flags.value(data)? & IN_INTERRUPT == 0).then_some(waking)
    }
}

/// The wakings of a processor, each once.
#[derive(Debug)]
pub(crate) struct Wakings {
    event: WakingEvent,
    /// The last waking of each thread.
    last_ns: HashMap<u32, u64>,
}

impl Wakings {
    pub(crate) fn new(event: WakingEvent) -> Self {
        Self { event, last_ns: HashMap::new() }
    }

    /// Returns the waking of a sample. `None` for one that is known, and for a sample without.
    pub(crate) fn next(&mut self, sample: &[u8]) -> Option<Waking> {
        let waking = self.event.decode(sample)?;
        if self.last_ns.len() >= MAX_THREADS {
            self.last_ns.clear();
        }
        let last_ns = self.last_ns.insert(waking.tid, waking.time_ns);
        last_ns.is_none_or(|last_ns| waking.time_ns.saturating_sub(last_ns) >= SAME_NS).then_some(waking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data that differ from those of this machine's kernel.
    const FORMAT: &str = "name: sched_waking\nID: 375\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:char comm[16];\toffset:4;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t pid;\toffset:20;\tsize:4;\tsigned:1;\n";

    fn sample(by: u32, time_ns: u64, flags: u8, woken: u32) -> Vec<u8> {
        let mut data = [0; 28];
        data[2] = flags;
        data[20..24].copy_from_slice(&woken.to_le_bytes());
        [&5_u32.to_le_bytes()[..], &by.to_le_bytes(), &time_ns.to_le_bytes(), &28_u32.to_le_bytes(), &data].concat()
    }

    #[test]
    fn a_sample_is_a_waking() {
        let event = WakingEvent::parse(FORMAT).expect("a format");
        // Interrupts off, and a softer one masked: the thread's own work.
        for flags in [0, 0x81] {
            let waking = Waking { time_ns: 9, tid: 7, by: 8 };
            assert_eq!(event.decode(&sample(8, 9, flags, 7)), Some(waking), "{flags}");
        }
        for interrupt in [0x08, 0x11, 0x40] {
            assert_eq!(event.decode(&sample(8, 9, interrupt, 7)), None, "{interrupt}");
        }
        for wrong in ["", "name: x\nID: 3\n", &FORMAT.replace("pid_t pid", "pid_t other")] {
            assert!(WakingEvent::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn an_incomplete_sample_is_none() {
        let event = WakingEvent::parse(FORMAT).expect("a format");
        let whole = sample(8, 9, 0, 7);
        assert!((0..whole.len()).all(|length| event.decode(&whole[..length]).is_none()));
        // The data claim to be shorter than their fields, or longer than the sample.
        for size in [0, 2, 23, 29, u32::MAX] {
            let mut wrong = whole.clone();
            wrong[16..20].copy_from_slice(&size.to_le_bytes());
            assert_eq!(event.decode(&wrong), None, "{size}");
        }
    }

    #[test]
    fn a_waking_counts_once() {
        let mut wakings = Wakings::new(WakingEvent::parse(FORMAT).expect("a format"));
        let mut kept = |time_ns, woken| wakings.next(&sample(8, time_ns, 0, woken)).is_some();
        assert!(kept(1_000_000, 7) && !kept(1_000_700, 7) && kept(1_001_000, 6));
        assert!(!kept(1_010_000, 7), "the one before was nearer than that");
        assert!(kept(1_020_000, 7));
        assert!((100..100 + MAX_THREADS as u32 * 2).all(|woken| kept(2_000_000, woken)));
    }
}
