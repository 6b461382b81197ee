//! The time stamp counter of an x86-64 processor.

use core::arch::x86_64::CpuidResult;

use super::TscSource;

/// The time stamp counter.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: the tracer stamps its records with the same instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The first leaf of a hypervisor: its highest leaf and its name.
const HYPERVISOR_BASE: u32 = 0x4000_0000;
/// Leaf with the frequencies, made up by VMware and taken over by KVM.
const HYPERVISOR_TIMING: u32 = 0x4000_0010;
/// The names of the hypervisors with this meaning of the timing leaf; under others it may differ.
const HYPERVISORS: [&[u8; 12]; 2] = [b"KVMKVMKVM\0\0\0", b"VMwareVMware"];

/// Returns true if, by the processor or the hypervisor, the counter runs at one rate in every power state.
pub(crate) fn is_invariant() -> bool {
    leaf(0x8000_0000, 0x8000_0007).is_some_and(|leaf| leaf.edx & 1 << 8 != 0)
}

/// The exact frequency in Hz, from the hypervisor or the processor, if available.
pub(crate) fn exact_hz() -> Option<(u64, TscSource)> {
    hypervisor_hz().map(|hz| (hz, TscSource::Hypervisor)).or_else(|| crystal_hz().map(|hz| (hz, TscSource::Crystal)))
}

/// The nominal frequency in Hz, rounded.
pub(crate) fn nominal_hz() -> Option<(u64, TscSource)> {
    let mhz = leaf(0, 0x16)?.eax & 0xffff;
    Some((non_zero(u64::from(mhz) * 1_000_000)?, TscSource::Nominal))
}

fn hypervisor_hz() -> Option<u64> {
    if leaf(0, 1)?.ecx & 1 << 31 == 0 {
        return None;
    }
    let base = cpuid(HYPERVISOR_BASE);
    let mut name = [0; 12];
    for (part, register) in name.chunks_exact_mut(4).zip([base.ebx, base.ecx, base.edx]) {
        part.copy_from_slice(&register.to_le_bytes());
    }
    if !HYPERVISORS.contains(&&name) {
        return None;
    }
    let khz = leaf(HYPERVISOR_BASE, HYPERVISOR_TIMING)?.eax;
    non_zero(u64::from(khz) * 1000)
}

fn crystal_hz() -> Option<u64> {
    let CpuidResult { eax: denominator, ebx: numerator, ecx: crystal_hz, .. } = leaf(0, 0x15)?;
    let scaled = u128::from(crystal_hz) * u128::from(numerator);
    non_zero(u64::try_from(scaled.checked_div(denominator.into())?).ok()?)
}

/// The processor's name for itself, in one line.
#[cfg(all(feature = "std", any(test, not(target_os = "linux"))))]
pub(crate) fn processor_name() -> Option<String> {
    const FIRST: u32 = 0x8000_0002;
    const LAST: u32 = 0x8000_0004;

    let mut bytes = Vec::new();
    for number in FIRST..=LAST {
        let CpuidResult { eax, ebx, ecx, edx } = leaf(0x8000_0000, number)?;
        bytes.extend([eax, ebx, ecx, edx].into_iter().flat_map(u32::to_le_bytes));
    }
    let text = String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next()?).replace(char::is_control, " ");
    let name = text.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Returns `leaf` if the processor has it: leaf `base` names the last of its group.
fn leaf(base: u32, leaf: u32) -> Option<CpuidResult> {
    (cpuid(base).eax >= leaf).then(|| cpuid(leaf))
}

// The intrinsic became safe to call only lately.
#[allow(unused_unsafe)]
fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: every 64-bit x86 processor has the instruction.
    unsafe { core::arch::x86_64::__cpuid(leaf) }
}

fn non_zero(hz: u64) -> Option<u64> {
    Some(hz).filter(|&hz| hz > 0)
}

#[cfg(all(test, feature = "std", target_os = "linux"))]
mod tests {
    #[test]
    fn the_name_is_that_which_linux_shows() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let shown = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        if let (Some((_, shown)), Some(name)) = (shown, super::processor_name()) {
            assert_eq!(name.split_whitespace().collect::<Vec<_>>(), shown.split_whitespace().collect::<Vec<_>>());
        }
    }
}
