//! Contents that a process may have written into its bank: untrusted by the recorder, like the spool that it finds later, or that a peer sends.

#![no_main]

use std::fs::{self, File};
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rftrace_frontend::bank::{Banks, Collected, Dump, Extent, Life, Options, Symbols, spools};

/// Where slots begin, what is where in them, and how large each is: `frontend/src/bank/file.rs`, for the options below.
const SLOT_AT: u64 = 64 << 10;
const OPEN_AT: u64 = 4 << 10;
const TEXT_AT: u64 = 16 << 10;
const THREADS_AT: u64 = 1 << 20;
const CHUNKS_AT: u64 = THREADS_AT + (24 << 20);
const BUFFER_BYTES: u64 = 64 << 10;
const SLOT_BYTES: u64 = CHUNKS_AT + BUFFER_BYTES;
/// As many as there are of these bytes.
const CHUNK_BYTES: u64 = 1 << 10;
const IN_USE: u64 = 2;
const PID: u32 = 0x7fff_ffff;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    slots: [Slot<'a>; 2],
    /// The recorder is killed before the processes end.
    is_killed: bool,
    is_ring: bool,
    /// A dump is made: for when, of which thread, and of how much before its end and after.
    dump: Option<(u64, Option<u8>, u16, u16)>,
    /// Bytes of files that were left that are changed.
    changes: Vec<(bool, u16, u8)>,
    /// So much is cut off them.
    n_cut: u8,
    /// The checksums of these files are as they were.
    is_damaged: bool,
    /// Another machine has sent the files, with the symbols of a module.
    symbols: Option<&'a [u8]>,
}

#[derive(Arbitrary, Debug)]
struct Slot<'a> {
    /// At a multiple of eight bytes behind the slot's begin.
    words: Vec<(u8, u64)>,
    open: Vec<u64>,
    texts: Vec<&'a [u8]>,
    n_text_bytes: u16,
    threads: Vec<(u8, u64)>,
    chunks: Vec<Chunk>,
}

#[derive(Arbitrary, Debug)]
struct Chunk {
    place: u8,
    state: u8,
    index: u8,
    prev_index: u8,
    depth: u16,
    n_adopted: u8,
    n_resumed: u8,
    tid: u8,
    taken_tsc: u8,
    /// When, and a word.
    records: Vec<(u16, Word)>,
}

#[derive(Arbitrary, Debug)]
enum Word {
    Of { address: u16, bits: u16 },
    Any(u64),
}

impl Slot<'_> {
    fn write(&self, bank: &File, number: u64) {
        let start = SLOT_AT + number * SLOT_BYTES;
        let put = |offset: u64, bytes: &[u8]| bank.write_all_at(bytes, start + offset).expect("memory");
        let mut texts = Vec::new();
        for text in &self.texts {
            texts.extend((text.len() as u32).to_le_bytes());
            texts.extend_from_slice(text);
        }
        texts.truncate((THREADS_AT - TEXT_AT) as usize);
        put(TEXT_AT, &texts);
        for (place, &word) in (0..500).zip(&self.open) {
            put(OPEN_AT + 8 * place, &word.to_le_bytes());
        }
        for &(place, word) in &self.threads {
            put(THREADS_AT + 8 * u64::from(place), &word.to_le_bytes());
        }
        for chunk in &self.chunks {
            chunk.write(|offset, bytes| put(CHUNKS_AT + offset, bytes));
        }
        for &(place, word) in self.words.iter().filter(|(place, _)| (8..48).contains(place)) {
            put(8 * u64::from(place), &word.to_le_bytes());
        }
        // No process has this number.
        put(0, &(IN_USE | u64::from(PID) << 32).to_le_bytes());
        // `text_bytes`, behind the bank, which has lines of its own.
        put(64 + 64 + 12, &u32::from(self.n_text_bytes).to_le_bytes());
    }
}

impl Chunk {
    fn write(&self, put: impl Fn(u64, &[u8])) {
        let start = u64::from(self.place) % (BUFFER_BYTES / CHUNK_BYTES) * CHUNK_BYTES;
        let header: [u64; 6] = [
            u64::from(self.index) << 3 | u64::from(self.state % 8),
            self.prev_index.into(),
            self.depth.into(),
            u64::from(self.n_adopted) | u64::from(self.tid) << 32,
            self.taken_tsc.into(),
            u64::from(self.n_resumed) << 32,
        ];
        let records = self.records.iter().take(60).flat_map(|(tsc, word)| {
            let word = match *word {
                Word::Of { address, bits } => u64::from(address) << 16 | u64::from(bits),
                Word::Any(word) => word,
            };
            [u64::from(self.taken_tsc) + u64::from(*tsc), word]
        });
        let bytes: Vec<u8> = header.into_iter().chain([0; 2]).chain(records).flat_map(u64::to_le_bytes).collect();
        put(start, &bytes);
    }
}

fn memory() -> File {
    // SAFETY: a name, and no pointer besides; the descriptor is new.
    unsafe {
        let fd = libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0, "no memory");
        File::from_raw_fd(fd)
    }
}

fn save(all: impl IntoIterator<Item = Collected>, input: &Input<'_>, folder: &Path) {
    let dir = rftrace_fuzz::folder().join("trace");
    let symbols = input.symbols.map(|_| Symbols::received(folder).expect("a readable folder"));
    let mut symbols = symbols.unwrap_or_default();
    for collected in all {
        let _ = fs::remove_dir_all(&dir);
        if collected.write_directory(&dir, &mut symbols).is_ok() {
            rftrace_fuzz::read_directory(&dir);
        }
        let _ = collected.discard();
    }
}

/// Changes bytes of a file.
fn change(path: &Path, is_about: bool, input: &Input<'_>) {
    let Ok(mut bytes) = fs::read(path) else { return };
    for &(_, place, byte) in input.changes.iter().filter(|change| change.0 == is_about) {
        if let Some(changed) = bytes.get_mut(usize::from(place)) {
            *changed ^= byte;
        }
    }
    bytes.truncate(bytes.len().saturating_sub(input.n_cut.into()));
    if is_about && !input.is_damaged {
        rftrace_fuzz::seal_about(&mut bytes);
    }
    let _ = fs::write(path, bytes);
}

fuzz_target!(|input: Input<'_>| {
    let folder = rftrace_fuzz::folder().join("spools");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a writable folder");
    let bank = memory();
    let options = Options {
        buffer_bytes: BUFFER_BYTES as usize,
        n_slots: 2,
        patience: Duration::ZERO,
        most_bytes: 1 << 30,
        is_ring: input.is_ring,
        dumped_bytes: 1 << 30,
    };
    let mut banks = Banks::new(bank.try_clone().expect("a descriptor"), &folder, options).expect("memory");
    if let Some(symbols) = input.symbols {
        banks.describe_for_others();
        let names = b"# symbols: 1\n# path name: /a\n# build-id: ab\n";
        fs::write(folder.join("symbols-0"), [names, symbols].concat()).expect("a writable folder");
    }
    for (number, slot) in (0..).zip(&input.slots) {
        slot.write(&bank, number);
    }
    banks.poll(|_| Life::Running);
    if let Some((tsc, thread, last, after)) = input.dump {
        let dump = Dump {
            tsc: Some(tsc),
            thread: thread.map(u32::from),
            is_of_thread: true,
            last: (last > 0).then(|| Duration::from_nanos(last.into())),
            after: Duration::from_nanos(after.into()),
            ..Dump::default()
        };
        let _ = banks.dump(PID, dump);
    }
    if input.is_killed {
        drop(banks);
        for spool in spools(&folder).expect("a readable folder") {
            change(&spool, false, &input);
            change(&spool.with_extension("about"), true, &input);
            let extent = if input.symbols.is_some() { Extent::Received } else { Extent::All };
            save(Collected::read(&spool, extent), &input, &folder);
        }
    } else {
        save(banks.snapshots(), &input, &folder);
        save(banks.finish_all(|_| Life::Running), &input, &folder);
    }
});
