//! Facts about the machine and the program in a trace, and the sections of `info` with them.

use std::time::Duration;

use rftrace_format::info::{InfoWriter, Usage, feature};

/// Facts about the machine and the program. All texts are single lines.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(all(feature = "std", target_os = "linux"), derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct SystemInfo {
    /// Path of the program, spelled as in the map.
    pub(crate) exe_name: String,
    /// Build-id of the program in hexadecimal, of any length.
    pub(crate) build_id: Option<String>,
    /// Command line, arguments separated by spaces, not escaped.
    pub(crate) command_line: String,
    /// Number of CPUs in use.
    pub(crate) cpus_online: u64,
    /// The maximum number of CPUs.
    pub(crate) cpus_possible: u64,
    /// Model of the CPU. uftrace derives the architecture from its beginning: `ARM64`, `RISCV64`, or anything else for
    /// x86.
    pub(crate) cpu_description: String,
    /// Free and total memory, such as `22.9 / 23.5 GB`.
    pub(crate) memory: String,
    /// Kernel name and release.
    pub(crate) kernel: String,
    /// Network name of the machine.
    pub(crate) hostname: String,
    /// Name of the distribution in double quotes.
    pub(crate) distribution: String,
    /// Resources used by this process.
    #[cfg_attr(all(feature = "std", target_os = "linux"), serde(skip))]
    pub(crate) usage: Usage,
    /// Load of the machine over 1, 5 and 15 minutes.
    pub(crate) load_average: [f64; 3],
    /// Local time as `ctime` writes it, without the newline.
    pub(crate) record_date: String,
    /// Unix time minus `CLOCK_MONOTONIC`, in seconds.
    pub(crate) utc_offset: i64,
}

impl SystemInfo {
    /// Returns the file `info`, for these tasks and features, of a trace of the duration `elapsed`.
    pub(crate) fn to_info(&self, features: u64, tids: &[u32], elapsed: Duration) -> Vec<u8> {
        let has_values = features & feature::ARGUMENT != 0;
        let info = InfoWriter::new()
            .exe_name(&self.exe_name)
            .build_id(self.build_id.as_deref().unwrap_or_default())
            .command_line(&self.command_line)
            .processors(self.cpus_online, self.cpus_possible, &self.cpu_description)
            .memory(&self.memory)
            .system(&self.kernel, &self.hostname, &self.distribution)
            .tasks(tids)
            .usage(&self.usage)
            .load(self.load_average);
        let info = if has_values { info.values() } else { info };
        info.date(&self.record_date, elapsed)
            .pattern_type("regex")
            .tracer(concat!("rftrace ", env!("CARGO_PKG_VERSION")))
            .utc_offset(self.utc_offset)
            .finish(features)
    }
}
