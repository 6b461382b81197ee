//! A first pass over KVM's events: the offsets in them, and the threads that ran the guest.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rftrace_read::{Error, Result};

use super::kvm::KvmEvents;
use super::offsets::{OffsetEvents, Offsets};

/// Threads that KVM events are told apart by.
const MAX_KVM_THREADS: usize = 4096;

/// A thread in which KVM ran a guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KvmThread {
    pub(super) comm: String,
    vcpu: Option<u32>,
}

impl KvmThread {
    /// The name of a function that stands for the thread.
    pub(super) fn function_name(&self) -> String {
        self.vcpu.map_or("kvm".to_owned(), |vcpu| format!("kvm_vcpu_{vcpu}"))
    }

    pub(super) fn name(&self) -> String {
        match self.vcpu {
            Some(vcpu) => format!("KVM vcpu {vcpu} ({})", self.comm),
            None => format!("KVM ({})", self.comm),
        }
    }
}

/// The results of a first look at KVM's events.
#[derive(Debug)]
pub(super) struct KvmScan {
    /// The guest's, with what is to be said of them; where several guests have different ones, the list of these.
    pub(super) offsets: std::result::Result<Option<(Offsets, Option<String>)>, String>,
    pub(super) threads: BTreeMap<u32, KvmThread>,
    /// When the first event was, in ticks.
    pub(super) first: Option<u64>,
}

impl KvmScan {
    pub(super) fn read(paths: &[PathBuf], notes: &mut Vec<String>) -> Result<Self> {
        let (mut offsets, mut threads) = (OffsetEvents::default(), BTreeMap::new());
        let mut first = None;
        for path in paths {
            let mut events = KvmEvents::open(path)?;
            let mut n_events = 0_u64;
            while let Some(event) = events.next()? {
                n_events += 1;
                first = Some(first.map_or(event.tsc, |first: u64| first.min(event.tsc)));
                if event.name == "kvm_write_tsc_offset" && !offsets.add(&event) {
                    notes.push(format!(
                        "{}: an event kvm_write_tsc_offset has no offsets: {}",
                        path.display(),
                        event.fields
                    ));
                }
                if threads.len() == MAX_KVM_THREADS && !threads.contains_key(&event.tid) {
                    let reason = format!("{}: the events have more than {MAX_KVM_THREADS} threads", path.display());
                    return Err(Error::Unaligned { reason });
                }
                let thread =
                    threads.entry(event.tid).or_insert_with(|| KvmThread { comm: event.comm.to_owned(), vcpu: None });
                if matches!(event.name, "kvm_entry" | "kvm_exit") {
                    thread.vcpu = thread.vcpu.or(event.vcpu());
                }
            }
            if events.lost > 0 {
                notes.push(format!("{}: the recording has lost {} events", path.display(), events.lost));
            }
            if n_events == 0 {
                notes.push(format!("{}: the file has no events", path.display()));
            }
        }
        Ok(Self { offsets: offsets.finish(), threads, first })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn scan(text: &str) -> (Result<KvmScan>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kvm.txt");
        fs::write(&path, text).unwrap();
        let mut notes = Vec::new();
        (KvmScan::read(&[path], &mut notes), notes)
    }

    #[test]
    fn threads_offsets_and_the_first_event() {
        let (found, notes) = scan(
            "vmm-7 [000] d.... 300: kvm_write_tsc_offset: vcpu=0 prev=0 next=18446744073709551611\n\
             cpu0-8 [000] d.... 200: kvm_entry: vcpu 0, rip 0x0\n\
             cpu1-9 [001] d.... 250: kvm_exit: vcpu 1 reason HLT rip 0x0\n\
             cpu1-9 [001] d.... 260: kvm_entry: vcpu 2, rip 0x0\n",
        );
        let found = found.unwrap();
        assert_eq!(found.first, Some(200));
        let names: Vec<_> = found.threads.iter().map(|(tid, thread)| (*tid, thread.name())).collect();
        let expected =
            [(7, "KVM (vmm)".to_owned()), (8, "KVM vcpu 0 (cpu0)".to_owned()), (9, "KVM vcpu 1 (cpu1)".to_owned())];
        assert_eq!(names, expected, "the first virtual CPU counts");
        assert_eq!(found.threads[&8].function_name(), "kvm_vcpu_0");
        assert_eq!(found.threads[&7].function_name(), "kvm");
        assert_eq!(found.offsets.unwrap().unwrap().0.last(), -5);
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn what_is_odd_is_noted() {
        let (found, notes) = scan("# tracer: nop\n");
        assert!(found.unwrap().threads.is_empty());
        assert!(notes[0].ends_with("the file has no events"), "{notes:?}");
        let (found, notes) = scan("vmm-7 [000] d.... 300: kvm_write_tsc_offset: nothing\n");
        assert_eq!(found.unwrap().offsets, Ok(None));
        assert!(notes[0].contains("has no offsets: nothing"), "{notes:?}");
    }

    #[test]
    fn threads_are_no_more_than_there_is_memory_for() {
        let text: String =
            (0..=MAX_KVM_THREADS).map(|tid| format!("a-{tid} [000] d.... 1: kvm_exit: reason HLT\n")).collect();
        let error = scan(&text).0.unwrap_err().to_string();
        assert!(error.contains("more than 4096 threads"), "{error}");
    }
}
