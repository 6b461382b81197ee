//! KVM's events as a feed.

use std::collections::HashMap;

use rftrace_format::clock::TscClock;
use rftrace_read::Result;

use super::kvm::{KvmEvent, KvmEvents};
use super::stage::{Function, Lane, Output, Stage, in_order};

/// KVM's events, as slices from entry to exit and from exit to entry where the output has such.
pub(super) struct KvmFeed {
    events: KvmEvents,
    lane_of_tid: HashMap<u32, Lane>,
    states: HashMap<Lane, InGuest>,
    reference: TscClock,
    /// When the first event of all is.
    first_ns: u64,
    last_ns: u64,
    head: Option<KvmHead>,
}

/// The state of a thread: in the guest or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InGuest {
    Unknown,
    Yes,
    No,
}

struct KvmHead {
    lane: Lane,
    kind: KvmKind,
    name: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KvmKind {
    Entry,
    Exit,
    Other,
}

impl KvmFeed {
    /// Threads that have no lane are left out. `first_ns` is when the first event of all is.
    pub(super) fn new(events: KvmEvents, lane_of_tid: HashMap<u32, Lane>, reference: TscClock, first_ns: u64) -> Self {
        Self { events, lane_of_tid, states: HashMap::new(), reference, first_ns, last_ns: 0, head: None }
    }

    /// Goes on to the next event. Returns its time.
    pub(super) fn advance(&mut self) -> Result<Option<u64>> {
        loop {
            let Some(event) = self.events.next()? else { return Ok(None) };
            // A file that has grown since it was looked at has more threads.
            let Some(&lane) = self.lane_of_tid.get(&event.tid) else { continue };
            let (kind, name) = kind_and_name(&event);
            let time_ns = self.reference.nanos(event.tsc);
            self.head = Some(KvmHead { lane, kind, name });
            return Ok(Some(*in_order(&mut self.last_ns, time_ns)));
        }
    }

    /// Passes the event on that [`KvmFeed::advance`] went to.
    pub(super) fn pass<O: Output>(&mut self, stage: &mut Stage<'_, O>) -> Result<()> {
        let Some(KvmHead { lane, kind, name }) = self.head.take() else { return Ok(()) };
        let time_ns = self.last_ns;
        let state = self.states.entry(lane).or_insert(InGuest::Unknown);
        if !O::HAS_SLICES || kind == KvmKind::Other {
            return stage.instant(lane, time_ns, &name);
        }
        if kind == KvmKind::Exit && *state == InGuest::Unknown {
            // It was in the guest before the first event.
            stage.enter(lane, self.first_ns, || Function::without_record(GUEST))?;
        }
        while stage.depth(lane) > 0 {
            stage.exit(lane, time_ns, None)?;
        }
        if kind == KvmKind::Entry {
            *state = InGuest::Yes;
            stage.enter(lane, time_ns, || Function::without_record(GUEST))
        } else {
            *state = InGuest::No;
            stage.enter(lane, time_ns, || Function::without_record(name))
        }
    }
    /// Ends what is open, at the last event.
    pub(super) fn finish<O: Output>(&self, stage: &mut Stage<'_, O>) -> Result<()> {
        for &lane in self.states.keys() {
            stage.close_at(lane, self.last_ns)?;
        }
        Ok(())
    }
}

/// The name of the time from a `kvm_entry` to the `kvm_exit` after it.
const GUEST: &str = "kvm:guest";

fn kind_and_name(event: &KvmEvent<'_>) -> (KvmKind, String) {
    let kind = match event.name {
        "kvm_entry" => KvmKind::Entry,
        "kvm_exit" => KvmKind::Exit,
        _ => KvmKind::Other,
    };
    match event.reason() {
        Some(reason) if kind == KvmKind::Exit => {
            (kind, format!("kvm:kvm_exit_{}", reason.replace(|c: char| !c.is_ascii_alphanumeric(), "_")))
        }
        _ => (kind, format!("kvm:{}", event.name)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::stage::Range;
    use super::super::stage::testing::Lines;
    use super::*;

    /// The output for a text of events on one lane, that of thread 8: half a nanosecond a tick.
    fn run<const SLICES: bool>(text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kvm.txt");
        fs::write(&path, text).unwrap();
        let reference = TscClock { tsc: 0, nanos: 0, nanos_per_2_32_ticks: 1 << 31 };
        let mut feed = KvmFeed::new(KvmEvents::open(&path).unwrap(), HashMap::from([(8, 0)]), reference, 50);
        let mut stage = Stage::new(Lines::<SLICES>::default(), Range::ALL, 1);
        while feed.advance().unwrap().is_some() {
            feed.pass(&mut stage).unwrap();
        }
        feed.finish(&mut stage).unwrap();
        stage.out.0
    }

    const EVENTS: &str = "cpu0-8 [000] d.... 200: kvm_exit: vcpu 0 reason EPT-VIOLATION rip 0x0\n\
                          cpu0-8 [000] d.... 220: kvm_page_fault: address 0\n\
                          other-9 [000] d.... 230: kvm_exit: vcpu 0 reason HLT rip 0x0\n\
                          cpu0-8 [000] d.... 240: kvm_entry: vcpu 0, rip 0x0\n\
                          cpu0-8 [000] d.... 210: kvm_fpu: unload\n";

    #[test]
    fn times_in_and_out_of_the_guest_are_slices() {
        let expected = [
            // It was in the guest since the first event of all.
            "0 50 > kvm:guest",
            "0 100 <",
            "0 100 > kvm:kvm_exit_EPT_VIOLATION",
            "0 110 kvm:kvm_page_fault",
            "0 120 <",
            "0 120 > kvm:guest",
            // Its time went back.
            "0 120 kvm:kvm_fpu",
            "0 120 <",
        ];
        assert_eq!(run::<true>(EVENTS), expected);
    }

    #[test]
    fn without_slices_all_are_moments() {
        let expected = [
            "0 100 kvm:kvm_exit_EPT_VIOLATION",
            "0 110 kvm:kvm_page_fault",
            "0 120 kvm:kvm_entry",
            "0 120 kvm:kvm_fpu",
        ];
        assert_eq!(run::<false>(EVENTS), expected);
    }
}
