//! `rftrace import`: images as a kernel sends them, put together here by `docs/image-format.md`, and a kernel's ELF file with a
//! part in the lower and one in the upper half of the address space.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rftrace_tests::tools;
use tempfile::TempDir;

/// A section: its tag, its words, and the checksum of both.
fn section(tag: &[u8; 4], words: &[u64]) -> Vec<u8> {
    let first = u64::from(u32::from_le_bytes(*tag)) | (8 * words.len() as u64) << 32;
    let all = [&[first], words].concat();
    let sum = all.iter().fold(0_u64, |sum, &word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    all.iter().chain([&sum]).flat_map(|word| word.to_le_bytes()).collect()
}

/// An image of one thread with these records: time, address and whether it is an exit. 2 GHz.
pub(crate) fn image(load_address: u64, tsc_hz: u64, records: &[(u64, u64, bool)]) -> Vec<u8> {
    let source = if tsc_hz > 0 { 1 } else { 0 };
    let head = [
        0x0807_0605_0403_0201,
        4096,
        16,
        1,
        load_address,
        1_000,
        90_000,
        1_700_000_000_000_000_000,
        tsc_hz,
        source,
        8, // the counter's rate is constant
        0,
        0,
        0,
        95_000,
        8,
        u64::from_le_bytes(*b"mykernel"),
    ];
    // Index and state, index before, depth and fill, further threads and thread, when it was taken.
    let mut chunk = vec![1 << 3 | 1, 0, 0, 1 << 32, 1_000, 0, 0, 0];
    chunk.extend(records.iter().flat_map(|&(tsc, address, is_exit)| [tsc, address << 16 | u64::from(is_exit)]));
    let start = b"\x93RFT\r\n\x1a\n\x01\0\0\0\x05\0\0\0".to_vec();
    [start, section(b"HEAD", &head), section(b"CHNK", &chunk), section(b"END\n", &[0, 1])].concat()
}

pub(crate) struct Kernel {
    pub(crate) folder: TempDir,
    /// Addresses for which the functions were linked.
    pub(crate) functions: HashMap<String, u64>,
}

impl Kernel {
    /// `None` where there is no compiler.
    pub(crate) fn build() -> Option<Self> {
        let source = "__attribute__((section(\".boot\"))) void boot(void) { __asm__ volatile(\"\"); }\n\
                      void leaf(void) { __asm__ volatile(\"\"); }\n\
                      void branch(void) { leaf(); }\n\
                      void _start(void) { branch(); }\n";
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("kernel.c"), source).expect("a writable folder");
        let mut gcc = Command::new("gcc");
        gcc.current_dir(&folder).args("-O0 -nostdlib -static -no-pie -fno-pie -mcmodel=kernel".split(' '));
        gcc.args(["-fno-asynchronous-unwind-tables", "-Wl,-Ttext-segment=0xffffffff80000000", "-Wl,--build-id=sha1"]);
        gcc.args(["-Wl,--section-start=.boot=0x100000", "-o", "kernel.elf", "kernel.c"]);
        let text = text(&mut gcc).and_then(|_| text(Command::new("nm").arg(folder.path().join("kernel.elf"))))?;
        let symbol = |line: &str| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[2].to_owned(), u64::from_str_radix(fields[0], 16).expect("an address"))
        };
        Some(Self { functions: text.lines().map(symbol).collect(), folder })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Every function calls the next one, moved by `slide`.
    pub(crate) fn records(&self, slide: u64) -> Vec<(u64, u64, bool)> {
        let calls = ["boot", "_start", "branch", "leaf"].map(|name| self.functions[name] + slide);
        let levels = || [0, 1, 2, 3].into_iter().zip(calls);
        let entries = levels().map(|(level, address)| (2_000 + 2_000 * level, address, false));
        let exits = levels().rev().map(|(level, address)| (20_000 - 2_000 * level, address, true));
        entries.chain(exits).collect()
    }

    fn write_image(&self, bytes: &[u8]) -> String {
        let path = self.path("image");
        fs::write(&path, bytes).expect("a writable folder");
        utf8(&path).to_owned()
    }

    /// The output of `rftrace import` with these arguments, and whether it succeeds.
    pub(crate) fn import(&self, bytes: &[u8], arguments: &[&str]) -> (bool, String) {
        let image = self.write_image(bytes);
        let mut rftrace = Command::new(env!("CARGO_BIN_EXE_rftrace"));
        rftrace.args(["import", &image, "-o", utf8(&self.path("trace"))]).args(arguments);
        let output = rftrace.output().expect("the command starts");
        assert!(output.stdout.is_empty());
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub(crate) fn replay(&self) -> String {
        let mut rftrace = Command::new(env!("CARGO_BIN_EXE_rftrace"));
        let output =
            rftrace.args(["replay", "--builtin", utf8(&self.path("trace"))]).output().expect("the command starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let is_nameless = said.starts_with("rftrace: some functions have no names: ") && said.lines().count() == 1;
        assert!(output.status.success() && (said.is_empty() || is_nameless), "{said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

pub(crate) fn utf8(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// How a program ended, and what it printed; `None` if it is not installed, where no test of it can do more than say so.
pub(crate) fn output(command: &mut Command) -> Option<Output> {
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            tools::missing(&command.get_program().to_string_lossy());
            None
        }
        output => Some(output.expect("the command starts")),
    }
}

/// The output of a program; `None` if it is not installed.
pub(crate) fn text(command: &mut Command) -> Option<String> {
    let output = output(command)?;
    let [out, errors] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {}\n{out}{errors}", output.status);
    Some(out)
}

pub(crate) const REPLAY: &str = "\
# DURATION     TID     FUNCTION
            [     1] | boot() {
            [     1] |   _start() {
            [     1] |     branch() {
   3.000 us [     1] |       leaf();
   5.000 us [     1] |     } /* branch */
   7.000 us [     1] |   } /* _start */
   9.000 us [     1] | } /* boot */
";

#[test]
fn functions_of_a_kernel_in_both_halves() {
    let Some(kernel) = Kernel::build() else { return };
    let elf = kernel.path("kernel.elf");
    // As linked, said in two ways, and moved.
    for (load_address, slide) in [(0, 0), (0xff000, 0), (0x2ff000, 0x20_0000)] {
        let bytes = image(load_address, 2_000_000_000, &kernel.records(slide));
        let (is_success, said) = kernel.import(&bytes, &["--binary", utf8(&elf)]);
        assert!(is_success && said.lines().count() == 1 && said.contains("8 events of 1 threads"), "{said}");
        assert_eq!(kernel.replay(), REPLAY);
    }
    let trace = kernel.path("trace");
    let clock = fs::read_to_string(trace.join("clock.txt")).expect("a file");
    for line in ["tsc_hz=2000000000", "tsc_hz_source=kernel", "first_tsc=1000", "first_unix_nanos=1700000000000000000"]
    {
        assert!(clock.lines().any(|found| found == line), "{line}: {clock}");
    }
    let uftrace = |arguments: &[&str]| text(Command::new("uftrace").args(arguments).arg("-d").arg(&trace));
    let Some(replay) = uftrace(&["replay", "--no-pager", "--color=no"]) else { return };
    assert_eq!(replay, REPLAY);
    let report = uftrace(&["report", "--no-pager"]).unwrap_or_default();
    assert!(["boot", "_start", "branch", "leaf"].iter().all(|name| report.contains(name)), "{report}");
    assert!(uftrace(&["dump"]).is_some_and(|dump| dump.contains("[entry] leaf(")));
    assert!(uftrace(&["info"]).is_some_and(|info| info.contains("mykernel")));
    assert!(uftrace(&["dump", "--chrome"]).is_some_and(|dump| dump.contains("\"name\":\"leaf\"")));
}

#[test]
fn without_names() {
    let Some(kernel) = Kernel::build() else { return };
    let bytes = image(0, 2_000_000_000, &kernel.records(0));
    let (is_success, said) = kernel.import(&bytes, &[]);
    assert!(is_success && said.contains("no binary is given (--binary): functions appear as addresses"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(kernel.replay().contains(&format!("{:x}", kernel.functions["leaf"] & 0xffff_ffff_ffff)));
    let uftrace = text(Command::new("uftrace").args(["replay", "--no-pager", "-d"]).arg(kernel.path("trace")));
    assert!(uftrace.is_none_or(|replay| replay.contains("3.000 us")));

    let stripped = kernel.path("stripped.elf");
    if text(Command::new("strip").arg("-o").arg(&stripped).arg(kernel.path("kernel.elf"))).is_some() {
        let (is_success, said) = kernel.import(&bytes, &["--binary", utf8(&stripped)]);
        assert!(is_success && said.contains("stripped.elf has no symbols"), "{said}");
    }
    let (is_success, said) =
        kernel.import(&bytes, &["--binary", utf8(&kernel.path("kernel.elf")), "--load-address", "0x500000"]);
    assert!(is_success && said.contains("only 0 of 4") && said.contains("at 0x500000"), "{said}");
}

#[test]
fn an_unknown_frequency() {
    let Some(kernel) = Kernel::build() else { return };
    let bytes = image(0, 0, &kernel.records(0));
    let elf = kernel.path("kernel.elf");
    let (is_success, said) = kernel.import(&bytes, &["--binary", utf8(&elf)]);
    assert!(is_success && said.contains("give --tsc-hz"), "{said}");
    assert!(kernel.replay().contains("6.000 us [     1] |       leaf();"), "a tick is a nanosecond");
    let (is_success, said) = kernel.import(&bytes, &["--binary", utf8(&elf), "--tsc-hz", "2000000000"]);
    assert!(is_success && said.lines().count() == 1, "{said}");
    assert_eq!(kernel.replay(), REPLAY);
}

#[test]
fn what_cannot_be_imported() {
    let Some(kernel) = Kernel::build() else { return };
    let bytes = image(0, 2_000_000_000, &kernel.records(0));
    let refused = |bytes: &[u8], arguments: &[&str], parts: &[&str]| {
        let (is_success, said) = kernel.import(bytes, arguments);
        assert!(!is_success && said.lines().count() == 1, "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(!kernel.path("trace").exists(), "nothing is written");
    };
    let mut damaged = bytes.clone();
    damaged[200] ^= 4;
    refused(&damaged, &[], &["/image: byte 168: ", "checksum", "send it again"]);
    refused(&bytes[..100], &[], &["/image: byte 100: ", "ends within the image's header"]);
    refused(b"log\r\n", &[], &["/image: byte 0: ", "the file has no image"]);
    refused(&image(0, 1, &[]), &[], &["0 events"]);
    refused(
        &bytes,
        &["--binary", "/nonexistent/kernel"],
        &["cannot read /nonexistent/kernel: No such file or directory (os error 2)\n"],
    );
    refused(&bytes, &["--binary", utf8(&kernel.path("kernel.c"))], &["kernel.c", "give a 64-bit ELF file"]);

    // Without its end it is imported.
    let (is_success, said) = kernel.import(&bytes[..bytes.len() - 60], &[]);
    assert!(is_success && said.contains("the image ends early") && said.contains("1 of 1 chunks"), "{said}");
    assert!(kernel.path("trace").exists());
}

/// Raw records of two threads as `dump_trace` writes them; `is_old`: as that of 0.3 does, ticks and no depths.
fn raw(kernel: &Kernel, slide: u64, is_old: bool) -> Vec<u8> {
    let mut depth = 0;
    let mut record = |(tsc, address, is_exit): (u64, u64, bool)| {
        depth -= u64::from(is_exit);
        let (time, shown_depth) = if is_old { (tsc, 0) } else { (tsc / 2, depth) };
        depth += u64::from(!is_exit);
        [time, address << 16 | shown_depth << 6 | 5 << 3 | u64::from(is_exit)]
    };
    let words: Vec<u64> = kernel.records(slide).into_iter().flat_map(&mut record).collect();
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn raw_records_of_both_versions() {
    let Some(kernel) = Kernel::build() else { return };
    let elf = kernel.path("kernel.elf");
    for slide in [0, 0x20_0000] {
        for is_old in [false, true] {
            let hz: &[&str] = if is_old { &["--tsc-hz", "2000000000"] } else { &[] };
            let (is_success, said) =
                kernel.import(&raw(&kernel, slide, is_old), &[&["--binary", utf8(&elf)], hz].concat());
            assert!(is_success && said.lines().count() == 1 && said.contains("8 events of 1 threads"), "{said}");
            assert_eq!(kernel.replay(), REPLAY);
        }
    }
    let (is_success, said) = kernel.import(&raw(&kernel, 0, true), &["--binary", utf8(&elf)]);
    assert!(is_success && said.contains("times are ticks") && said.contains("--tsc-hz"), "{said}");
    let mut damaged = raw(&kernel, 0, false);
    damaged[16 * 3 + 8] ^= 8;
    let (is_success, said) = kernel.import(&damaged, &[]);
    assert!(!is_success && said.contains("/image: byte 48: this place has no record of `dump_trace`"), "{said}");
}
