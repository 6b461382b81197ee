//! The conversion from a guest's ticks to the host's, with the offsets that KVM has written.

use std::fmt;

use super::kvm::KvmEvent;

/// Offsets of the virtual CPUs of one machine are taken for one if they differ by less than this, in ticks.
const SAME: u64 = 10_000;

/// Guest's ticks = host's ticks + offset, with the offset that was in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offsets {
    /// Since when, in ticks of the host, and what. Never empty; in order of time.
    pieces: Vec<(u64, i64)>,
}

impl Offsets {
    /// One offset, always.
    pub(super) fn constant(offset: i64) -> Self {
        Self { pieces: vec![(0, offset)] }
    }

    /// The tick of the host at which the guest's counter was `guest`. Where an offset that was changed makes it several, the
    /// last one.
    pub(super) fn host_ticks(&self, guest: u64) -> u64 {
        let host = |offset: i64| i128::from(guest) - i128::from(offset);
        let in_force = self.pieces.iter().rev().find(|&&(since, offset)| host(offset) >= i128::from(since));
        let &(_, offset) = in_force.unwrap_or(&self.pieces[0]);
        u64::try_from(host(offset).max(0)).unwrap_or(u64::MAX)
    }

    /// The last one.
    pub(super) fn last(&self) -> i64 {
        self.pieces.last().map_or(0, |&(_, offset)| offset)
    }
}

/// The offsets of a virtual CPU, over time.
#[derive(Debug)]
struct Vcpu {
    number: u32,
    /// The thread that wrote it first.
    tid: u32,
    comm: String,
    pieces: Vec<(u64, i64)>,
}

impl Vcpu {
    fn last(&self) -> i64 {
        self.pieces.last().map_or(0, |&(_, offset)| offset)
    }
}

impl fmt::Display for Vcpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} ({}) vcpu {}: offset {}", self.tid, self.comm, self.number, self.last())
    }
}

/// Collects `kvm_write_tsc_offset` events.
#[derive(Debug, Default)]
pub(super) struct OffsetEvents {
    vcpus: Vec<Vcpu>,
}

impl OffsetEvents {
    /// Virtual CPUs that are told apart.
    const MAX_VCPUS: usize = 65536;

    /// Takes an event. Returns whether it makes sense.
    ///
    /// A write belongs to the virtual CPU of its number whose offset is what the event says it was before: so machines are told
    /// apart whatever threads do the writing.
    pub(super) fn add(&mut self, event: &KvmEvent<'_>) -> bool {
        let (Some(number), Some((previous, next))) = (event.vcpu(), event.offsets()) else { return false };
        let is_full = self.vcpus.len() == Self::MAX_VCPUS;
        let known = self.vcpus.iter_mut().rev().find(|vcpu| vcpu.number == number && vcpu.last() == previous);
        match known {
            Some(vcpu) if vcpu.last() == next => {}
            Some(vcpu) => vcpu.pieces.push((event.tsc, next)),
            None if is_full => return false,
            None => {
                // Before the first write the counter had no other offset that anyone knows of.
                let pieces = vec![(0, next)];
                self.vcpus.push(Vcpu { number, tid: event.tid, comm: event.comm.to_owned(), pieces });
            }
        }
        true
    }

    /// The offsets of the one machine that there is, and what should be said of them; `None` without any event.
    ///
    /// # Errors
    ///
    /// There are several machines. The text names them.
    pub(super) fn finish(self) -> std::result::Result<Option<(Offsets, Option<String>)>, String> {
        let Some(first) = self.vcpus.first() else { return Ok(None) };
        let difference = |vcpu: &Vcpu| vcpu.last().abs_diff(first.last());
        let widest = self.vcpus.iter().map(difference).max().unwrap_or(0);
        let has_twin = |vcpu: &&Vcpu| vcpu.number == first.number;
        if self.vcpus.iter().filter(has_twin).count() > 1 && widest >= SAME {
            let list: Vec<String> = self.vcpus.iter().take(16).map(Vcpu::to_string).collect();
            return Err(list.join("\n  "));
        }
        let note = (widest > 0).then(|| {
            format!(
                "the offsets of the {} virtual CPUs differ by up to {widest} ticks; rftrace takes that of vcpu {}",
                self.vcpus.len(),
                first.number
            )
        });
        Ok(Some((Offsets { pieces: first.pieces.clone() }, note)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(events: &[(u32, u64, u32, i64, i64)]) -> std::result::Result<Option<(Offsets, Option<String>)>, String> {
        let mut collected = OffsetEvents::default();
        for &(tid, tsc, vcpu, previous, next) in events {
            let fields = format!("vcpu={vcpu} prev={} next={}", previous.cast_unsigned(), next.cast_unsigned());
            let event = KvmEvent { comm: "qemu", tid, tsc, name: "kvm_write_tsc_offset", fields: &fields };
            assert!(collected.add(&event), "{fields}");
        }
        collected.finish()
    }

    #[test]
    fn one_offset_and_its_extremes() {
        let one = |offset| offsets(&[(1, 100, 0, 0, offset)]).unwrap().unwrap().0;
        assert_eq!(one(-1000).host_ticks(5), 1005);
        assert_eq!(one(-1000).last(), -1000);
        assert_eq!(one(10).host_ticks(5), 0);
        assert_eq!(one(i64::MIN).host_ticks(u64::MAX), u64::MAX);
        assert_eq!(one(i64::MIN).host_ticks(0), 1 << 63);
        assert_eq!(one(i64::MAX).host_ticks(u64::MAX), 1 << 63);
        assert_eq!(offsets(&[]), Ok(None));
    }

    #[test]
    fn an_offset_that_is_changed() {
        // At 2000 the guest sets its counter back to 0, at 3000 forward to 10000.
        let (offsets, note) =
            offsets(&[(1, 1000, 0, 0, -1000), (1, 2000, 0, -1000, -2000), (1, 3000, 0, -2000, 7000)]).unwrap().unwrap();
        assert_eq!(note, None);
        assert_eq!(offsets.host_ticks(10_001), 3001);
        assert_eq!(offsets.host_ticks(999), 2999);
        assert_eq!(offsets.host_ticks(0), 2000);
        assert_eq!(offsets.last(), 7000);
    }

    #[test]
    fn virtual_cpus_and_machines() {
        let (found, note) = offsets(&[(1, 10, 0, 0, -10), (2, 15, 1, 0, -15), (3, 20, 1, -15, -12)]).unwrap().unwrap();
        assert_eq!(found, Offsets::constant(-10));
        assert!(note.unwrap().contains("2 virtual CPUs differ by up to 2 ticks"));
        let error = offsets(&[(1, 10, 0, 0, -10), (2, 15, 0, 0, -1_000_000)]).unwrap_err();
        assert_eq!(error, "task 1 (qemu) vcpu 0: offset -10\n  task 2 (qemu) vcpu 0: offset -1000000");
        // The second write of one thread is known by what was before it, even if another thread does it.
        assert!(offsets(&[(1, 10, 0, 0, -10), (2, 15, 0, -10, -1_000_000)]).is_ok());
        let nonsense = KvmEvent { comm: "", tid: 1, tsc: 1, name: "", fields: "vcpu=0 prev=x next=1" };
        assert!(!OffsetEvents::default().add(&nonsense));
    }
}
