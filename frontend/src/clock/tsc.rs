//! The processor's time stamp counter or its substitute: the virtual counter on aarch64, the clock on riscv64.

#[cfg_attr(target_arch = "x86_64", path = "tsc_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "tsc_aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "tsc_riscv64.rs")]
mod processor;

#[cfg(all(feature = "std", not(target_os = "linux")))]
pub(crate) use self::processor::processor_name;
pub(crate) use self::processor::{exact_hz, is_invariant, nominal_hz, ticks};

/// The source of the TSC's frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(all(feature = "std", target_os = "linux"), derive(serde::Serialize, serde::Deserialize))]
#[allow(dead_code, reason = "each processor has its own")]
pub(crate) enum TscSource {
    /// The hypervisor says it, CPUID leaf 0x40000010.
    Hypervisor,
    /// CPUID leaf 0x15: crystal frequency and ratio.
    Crystal,
    /// The kernel measured it: Linux says so in `/sys/devices/system/cpu/cpu0/tsc_freq_khz`.
    Kernel,
    /// CPUID leaf 0x16: the nominal frequency of the CPU in MHz, near that of the TSC but rounded.
    Nominal,
    /// CNTFRQ_EL0 of aarch64, set by the firmware.
    Register,
}

impl TscSource {
    /// Returns its name in the trace's metadata.
    #[cfg(any(feature = "std", all(feature = "import", target_os = "linux")))]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hypervisor => "hypervisor",
            Self::Crystal => "cpuid-0x15",
            Self::Kernel => "kernel",
            Self::Nominal => "cpuid-0x16",
            Self::Register => "cntfrq_el0",
        }
    }

    /// Its number in an image, from 1.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Kernel => 1,
            Self::Hypervisor => 2,
            Self::Crystal => 3,
            Self::Nominal => 4,
            Self::Register => 5,
        }
    }

    /// The source with this number.
    #[cfg(all(feature = "import", target_os = "linux"))]
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        let all = [Self::Kernel, Self::Hypervisor, Self::Crystal, Self::Nominal, Self::Register];
        all.into_iter().find(|source| source.number() == number)
    }
}
