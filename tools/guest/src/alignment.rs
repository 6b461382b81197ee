//! The relation between the clocks of a guest and its hosts: the guest's offset, and the clock of the timeline.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use rftrace_format::clock::{ClockFile, TscClock};
use rftrace_format::files::CLOCK;
use rftrace_format::text::NANOS_PER_SECOND;
use rftrace_read::{Error, Result, read_clock};

use super::offsets::Offsets;

/// A trace directory, and its clock if it has one.
#[derive(Debug)]
pub(super) struct ClockOf {
    dir: PathBuf,
    pub(super) file: Option<ClockFile>,
}

impl ClockOf {
    pub(super) fn read(dir: &Path) -> Result<Self> {
        Ok(Self { dir: dir.to_owned(), file: read_clock(dir)? })
    }

    fn dir(&self) -> std::path::Display<'_> {
        self.dir.display()
    }
}

/// The guest's offset: as KVM's events say, or else by the wall clocks.
pub(super) fn offsets(
    guest: &ClockOf,
    hosts: &[ClockOf],
    of_kvm: &std::result::Result<Option<(Offsets, Option<String>)>, String>,
    has_kvm: bool,
    notes: &mut Vec<String>,
) -> Result<Offsets> {
    match of_kvm {
        Err(list) => Err(Error::Unaligned {
            reason: format!(
                "KVM's events have several guests with different TSC offsets; choose one with --tsc-offset N:\n  {list}"
            ),
        }),
        Ok(Some((offsets, note))) => {
            notes.push(format!("guest's ticks = host's ticks + {}, from KVM's events", offsets.last()));
            notes.extend(note.clone());
            Ok(offsets.clone())
        }
        Ok(None) => {
            let offset = offset_of_wall_clocks(guest, hosts, has_kvm, notes)?;
            Ok(Offsets::constant(offset))
        }
    }
}

fn offset_of_wall_clocks(guest: &ClockOf, hosts: &[ClockOf], has_kvm: bool, notes: &mut Vec<String>) -> Result<i64> {
    let why = if has_kvm { "KVM's events do not have it" } else { "no KVM events are given" };
    let unaligned = |lack: String| Error::Unaligned {
        reason: format!(
            "the guest's TSC offset is unknown: {why}, and {lack}; record KVM's events while the guest starts \
             (tools/setup_kvm_tracing.sh run …) and give them with --kvm, or give --tsc-offset N (guest's ticks - host's ticks; 0 \
             where the guest reads the host's counter)"
        ),
    };
    let wall = |of: &ClockOf| {
        let file = of.file.as_ref()?;
        Some((file.clock, file.unix_nanos?))
    };
    let Some((guest_clock, guest_unix)) = wall(guest) else {
        return Err(unaligned(format!("{} has no wall clock", guest.dir())));
    };
    let Some((host_clock, host_unix)) = hosts.iter().find_map(wall) else {
        return Err(unaligned("no host directory has a wall clock".to_owned()));
    };
    // The moment of the guest's first tick, on the host's clock.
    let nanos = i128::from(host_clock.nanos) + i128::from(guest_unix) - i128::from(host_unix);
    let Ok(nanos) = u64::try_from(nanos) else {
        return Err(unaligned("the guest's wall clock is earlier than the host's boot".to_owned()));
    };
    let offset = i128::from(guest_clock.tsc) - i128::from(host_clock.ticks(nanos));
    let is_coarse = guest_unix % NANOS_PER_SECOND == 0;
    notes.push(format!(
        "guest's ticks = host's ticks + {offset} from both wall clocks, {}; for an accuracy of ticks, record KVM's events (--kvm)",
        if is_coarse { "accurate to a second, as the guest's clock has no fractions of a second" } else {
            "usually accurate to milliseconds"
        }
    ));
    i64::try_from(offset).map_err(|_| unaligned("the wall clocks are too far apart".to_owned()))
}

/// The clock of the timeline.
pub(super) fn reference(
    guest: &ClockOf,
    hosts: &[ClockOf],
    offsets: &Offsets,
    tsc_khz: Option<u64>,
    notes: &mut Vec<String>,
) -> Result<TscClock> {
    let option_hz = tsc_khz.map(|khz| khz.saturating_mul(1000));
    // The one that looked at both clocks for the longest time knows the rate best.
    let best = hosts
        .iter()
        .filter_map(|host| Some((&host.dir, host.file.as_ref()?)))
        .max_by_key(|&(dir, file)| (file.last_tsc.saturating_sub(file.clock.tsc), Reverse(dir)))
        .map(|(_, file)| file);
    for of in hosts.iter().chain([guest]) {
        if of.file.as_ref().is_some_and(|file| !file.is_exact) {
            notes.push(format!(
                "{}: an older rftrace has rounded the rate in this file: times may be wrong by some billionths of the duration",
                of.dir.join(CLOCK).display()
            ));
        }
    }
    let base = match (best, &guest.file) {
        (Some(file), _) => file.clock,
        (None, _) if !hosts.is_empty() => {
            return Err(Error::Unaligned {
                reason: format!(
                    "{}: no clock.txt, so the relation of the trace's clock to the time stamp counter is unknown; record the host's \
                     program with rftrace",
                    hosts[0].dir()
                ),
            });
        }
        (None, Some(file)) => {
            // The guest's own clock, in ticks of the host.
            TscClock { tsc: offsets.host_ticks(file.clock.tsc), ..file.clock }
        }
        (None, None) => TscClock::at_rate(0, 0, option_hz.unwrap_or(NANOS_PER_SECOND)),
    };
    if guest.file.is_none() && option_hz.is_none() && best.is_none() {
        return Err(Error::Unaligned {
            reason: format!(
                "{}: no clock.txt; if its times are ticks (rftrace up to 0.3.2), give the frequency of the time stamp counter: \
                 --tsc-khz N, or --tsc-khz auto on the machine of the recording",
                guest.dir()
            ),
        });
    }
    if guest.file.is_none() {
        notes.push(format!("{}: no clock.txt: times count as ticks", guest.dir()));
    }
    Ok(option_hz.map_or(base, |hz| TscClock::at_rate(base.tsc, base.nanos, hz)))
}

/// A guest whose counter runs at another rate than the host's is not brought to the host's by an offset.
pub(super) fn warn_of_rates(guest: &ClockOf, reference: &TscClock, notes: &mut Vec<String>) {
    let Some(file) = &guest.file else { return };
    let (guest_hz, host_hz) = (file.clock.hz(), reference.hz());
    // Kernels that measure it are wrong by less.
    if guest_hz.abs_diff(host_hz) > host_hz / 50 {
        notes.push(format!(
            "the guest's counter had {guest_hz} ticks a second, the host's {host_hz}: the guest has a TSC rate of its own \
             and wrong times, or one measurement is wrong"
        ));
    }
}

/// Traces that have no moment in common hint at a wrong offset.
pub(super) fn warn_of_distance(guest: &ClockOf, hosts: &[ClockOf], offsets: &Offsets, notes: &mut Vec<String>) {
    let Some(file) = &guest.file else { return };
    let (start, end) = (offsets.host_ticks(file.clock.tsc), offsets.host_ticks(file.last_tsc));
    let mut files = hosts.iter().filter_map(|host| host.file.as_ref()).peekable();
    let has_hosts = files.peek().is_some();
    if has_hosts && files.all(|host| host.last_tsc < start || host.clock.tsc > end) {
        notes.push(format!(
            "the guest's trace (ticks {start} to {end} of the host) overlaps no host's trace; is the offset that of this \
             guest?"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock of so many ticks a nanosecond, from `tsc` at `nanos`, for a million ticks.
    fn clock(dir: &str, tsc: u64, nanos: u64, ticks_per_nano: u64, unix_nanos: Option<u64>) -> ClockOf {
        let rate = (1_u64 << 32) / ticks_per_nano;
        let mut text = format!(
            "first_tsc={tsc}\nfirst_nanos={nanos}\nlast_tsc={}\ntsc_hz=1\nnanos_per_2_32_ticks={rate}\n",
            tsc + 1_000_000
        );
        if let Some(unix_nanos) = unix_nanos {
            text += &format!("first_unix_nanos={unix_nanos}\n");
        }
        ClockOf { dir: dir.into(), file: Some(ClockFile::parse(text.as_bytes()).unwrap()) }
    }

    fn without(dir: &str) -> ClockOf {
        ClockOf { dir: dir.into(), file: None }
    }

    const UNIX: u64 = 1_700_000_000_000_000_123;

    #[test]
    fn an_offset_by_the_wall_clocks() {
        // The guest's tick 70 is at the moment that is the host's 5000 + 400 ns, its tick 1000 + 800.
        let guest = clock("guest", 70, 9, 1, Some(UNIX + 400));
        let hosts = [without("old"), clock("host", 1000, 5000, 2, Some(UNIX))];
        let mut notes = Vec::new();
        let found = offsets(&guest, &hosts, &Ok(None), false, &mut notes).unwrap();
        assert_eq!(found.last(), 70 - 1800);
        assert!(notes[0].contains("-1730 from both wall clocks") && notes[0].contains("milliseconds"), "{notes:?}");
        let whole_second = clock("guest", 70, 9, 1, Some(UNIX - 123));
        offsets(&whole_second, &hosts, &Ok(None), false, &mut notes).unwrap();
        assert!(notes[1].contains("accurate to a second"), "{notes:?}");
    }

    #[test]
    fn kvm_goes_before_the_wall_clocks() {
        let (guest, host) = (without("guest"), without("host"));
        let mut notes = Vec::new();
        let of_kvm = Ok(Some((Offsets::constant(-5), Some("it was changed".to_owned()))));
        assert_eq!(offsets(&guest, &[host], &of_kvm, true, &mut notes).unwrap().last(), -5);
        assert_eq!(notes[1], "it was changed");
        let error = offsets(&guest, &[], &Err("7: -5".to_owned()), true, &mut notes).unwrap_err().to_string();
        assert!(error.contains("several guests") && error.contains("7: -5"), "{error}");
    }

    #[test]
    fn what_is_missing_for_an_offset_is_told() {
        let timed = |dir| clock(dir, 0, 0, 1, Some(UNIX));
        let why = |guest: &ClockOf, hosts: &[ClockOf], has_kvm| {
            offsets(guest, hosts, &Ok(None), has_kvm, &mut Vec::new()).unwrap_err().to_string()
        };
        let error = why(&clock("guest", 0, 0, 1, None), &[timed("host")], false);
        assert!(error.contains("no KVM events are given, and guest has no wall clock"), "{error}");
        let error = why(&timed("guest"), &[clock("host", 0, 0, 1, None)], true);
        assert!(error.contains("KVM's events do not have it, and no host directory has"), "{error}");
        let error = why(&clock("guest", 0, 0, 1, Some(1)), &[timed("host")], false);
        assert!(error.contains("earlier than the host's boot"), "{error}");
    }

    #[test]
    fn the_host_that_looked_longest_has_the_clock() {
        let long = clock("long", 500, 7, 2, None);
        let mut short = clock("short", 900, 8, 3, None);
        short.file.as_mut().unwrap().last_tsc = 901;
        let (guest, offsets) = (clock("guest", 0, 0, 1, None), Offsets::constant(0));
        let hosts = [short, long];
        let mut notes = Vec::new();
        let found = reference(&guest, &hosts, &offsets, None, &mut notes).unwrap();
        assert_eq!(found, hosts[1].file.as_ref().unwrap().clock);
        // A rate that is given replaces that of the clock, through the same moment.
        let given = reference(&guest, &hosts, &offsets, Some(1_000_000), &mut notes).unwrap();
        assert_eq!((given.tsc, given.nanos, given.hz()), (500, 7, NANOS_PER_SECOND));
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn a_guest_alone_has_its_own_clock_in_the_hosts_ticks() {
        let guest = clock("guest", 100, 7, 1, None);
        let found = reference(&guest, &[], &Offsets::constant(-40), None, &mut Vec::new()).unwrap();
        assert_eq!((found.tsc, found.nanos), (140, 7));
        let error = reference(&guest, &[without("host")], &Offsets::constant(0), None, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with("host: no clock.txt"), "{error}");
        let error = reference(&without("guest"), &[], &Offsets::constant(0), None, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("give the frequency"), "{error}");
        let mut notes = Vec::new();
        let found = reference(&without("guest"), &[], &Offsets::constant(0), Some(2000), &mut notes).unwrap();
        assert_eq!((found.tsc, found.nanos, found.hz()), (0, 0, 2_000_000));
        assert!(notes[0].contains("count as ticks"), "{notes:?}");
    }

    #[test]
    fn odd_rates_and_distances_are_noted() {
        let (guest, host) = (clock("guest", 0, 0, 1, None), clock("host", 0, 0, 2, None));
        let mut notes = Vec::new();
        warn_of_rates(&guest, &guest.file.as_ref().unwrap().clock, &mut notes);
        warn_of_distance(&guest, &[], &Offsets::constant(0), &mut notes);
        warn_of_distance(&guest, std::slice::from_ref(&host), &Offsets::constant(-1_000_000), &mut notes);
        assert!(notes.is_empty(), "{notes:?}");
        warn_of_rates(&guest, &host.file.as_ref().unwrap().clock, &mut notes);
        warn_of_distance(&guest, &[host], &Offsets::constant(-1_000_001), &mut notes);
        assert!(
            notes[0].contains("a TSC rate of its own") && notes[1].contains("overlaps no host's trace"),
            "{notes:?}"
        );
    }
}
