//! Functions of a program whose first instruction becomes a jump to the tracer: its own `mcount`, if no slot leads
//! there.
//!
//! **Invariant**: code is changed only while all threads are stopped, and none stands within the bytes of a jump, nor
//! comes back to there.
//!
//! **Invariant**: the original bytes are written down in the process before there is a jump. So a later recorder can
//! take it away.

use std::mem::offset_of;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::libc::{pid_t, user_regs_struct};
use rftrace::abi::{JUMP_BYTES, Jump, MOST_JUMPS, Outside};

use super::borrowed::Borrowed;
use super::image::Image;
use super::process::{Map, Process};
use super::sys::words;
use super::world::World;

/// The part of a stack to look at.
const STACK_BYTES: u64 = 64 << 20;
/// The longest wait for a thread without a processor, and for a signal's handler that may come back.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two passes, at first, and at the most.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// `jmp rel32`.
const JUMP: u8 = 0xe9;
const RET: u8 = 0xc3;

/// A function of the program, called at the beginning of others.
#[derive(Clone, Debug)]
pub(crate) struct Hooked {
    /// Its code.
    pub(crate) range: Range<u64>,
    /// The function of the tracer for it.
    pub(crate) hook: &'static str,
    /// The bytes of its file.
    displaced: [u8; 8],
}

impl Hooked {
    /// The addresses at which no thread may be when its jump is written: within the replaced bytes.
    pub(crate) fn inside(&self) -> Range<u64> {
        self.range.start + 1..self.range.start + JUMP_BYTES as u64
    }
}

/// The functions of a process called at functions' beginnings.
///
/// # Errors
///
/// There is no room for a jump in one, or its bytes differ from its file's.
pub(crate) fn hooked(process: &Process, maps: &[Map]) -> Result<Vec<Hooked>> {
    /// A name that means the program has the tracer.
    const OWN: &str = "rftrace_backend_enable";
    const NAMES: [(&str, &str); 4] =
        [("mcount", "mcount"), ("_mcount", "mcount"), ("__fentry__", "__fentry__"), (OWN, OWN)];

    let mut found = Vec::new();
    for module in process.modules(maps) {
        let named = module.named(NAMES);
        if named.iter().any(|&(hook, _)| hook == OWN) {
            bail!("cannot attach to process {}: it contains rftrace and records itself", process.pid);
        }
        for (hook, range) in named {
            let displaced: Option<[u8; 8]> = module.bytes_at(range.start, 8).and_then(|bytes| bytes.try_into().ok());
            let displaced =
                displaced.with_context(|| format!("cannot read the function {hook} of process {}", process.pid))?;
            let end = match range.end - range.start {
                0 if displaced[0] == RET => range.start + 1,
                0 => range.start + JUMP_BYTES as u64,
                n_bytes => range.start + n_bytes,
            };
            let jump = range.start..range.start + JUMP_BYTES as u64;
            let is_padding =
                |byte: &u8| [0x90, 0xcc, 0x00, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x44, 0x40, 0x80].contains(byte);
            let behind = displaced[..JUMP_BYTES].get((end - range.start) as usize..).unwrap_or_default();
            if !behind.iter().all(is_padding) || module.has_symbol_in(&(jump.start + 1..jump.end)) {
                bail!(
                    "the function {hook} of process {} is too short for a jump of {JUMP_BYTES} bytes: put .p2align 4 behind it",
                    process.pid
                );
            }
            if process.bytes(range.start, JUMP_BYTES as u64) != displaced[..JUMP_BYTES] {
                bail!("another program has changed the function {hook} of process {}", process.pid);
            }
            found.push(Hooked { range, hook, displaced });
        }
    }
    if found.len() > MOST_JUMPS {
        bail!("process {} has more than {MOST_JUMPS} hook functions (mcount, __fentry__)", process.pid);
    }
    Ok(found)
}

/// Writes the jumps; `check` looks at the registers of all threads before.
pub(crate) fn write(
    process: &Process,
    thread: &Borrowed<'_>,
    image: &Image,
    hooked: &[Hooked],
    late: &mut Vec<pid_t>,
    check: impl Fn(pid_t, &user_regs_struct) -> Result<()>,
) -> Result<()> {
    let mut jumps = Vec::new();
    for (place, it) in hooked.iter().enumerate() {
        let from = it.range.start + JUMP_BYTES as u64;
        let distance = image.function(it.hook)?.wrapping_sub(from).cast_signed();
        let distance = i32::try_from(distance).with_context(|| {
            format!("the tracer is more than 2 GiB away from the function {} of process {}", it.hook, process.pid)
        })?;
        let mut bytes = vec![JUMP];
        bytes.extend(distance.to_le_bytes());
        let at = offset_of!(Outside, jumps) + place * size_of::<Jump>();
        image.tell(process, at + offset_of!(Jump, displaced), u64::from_le_bytes(it.displaced))?;
        image.tell(process, at + offset_of!(Jump, function), it.range.start)?;
        jumps.push((it.range.start, bytes));
    }
    let within = |address: u64| hooked.iter().any(|it| it.inside().contains(&address));
    let (begun, [mut pause, longest]) = (Instant::now(), PAUSES);
    while begun.elapsed() < PATIENCE {
        let world = World::whole(process, thread.thread, late)?;
        let mut is_blocked = false;
        let maps = process.maps()?;
        for (id, registers) in registers_of(&world, thread)? {
            check(id, &registers)?;
            let map = maps.iter().find(|map| map.range.contains(&registers.rsp));
            let n_bytes = map.map_or(0, |map| (map.range.end - registers.rsp).min(STACK_BYTES));
            is_blocked |= within(registers.rip) || words(&process.bytes(registers.rsp, n_bytes)).any(within);
        }
        if !is_blocked {
            for (n_done, (address, bytes)) in jumps.iter().enumerate() {
                if let Err(error) = process.write(*address, bytes) {
                    for (it, _) in hooked.iter().zip(0..n_done) {
                        process.write(it.range.start, &it.displaced[..JUMP_BYTES])?;
                    }
                    let problem = format!("cannot change the code of process {}", process.pid);
                    return Err(anyhow::Error::from(error).context(problem));
                }
            }
            return Ok(());
        }
        drop(world);
        thread::sleep(pause);
        pause = longest.min(pause * 2);
    }
    bail!(
        "cannot change mcount of process {}: a thread was in its first instructions at each attempt; try again",
        process.pid
    );
}

/// All threads with their registers.
fn registers_of(world: &World, thread: &Borrowed<'_>) -> Result<Vec<(pid_t, user_regs_struct)>> {
    let mut all: Vec<_> = world.threads.iter().copied().zip(world.registers()?).collect();
    all.push((thread.thread, thread.registers));
    Ok(all)
}

/// The existing jumps, with the bytes they replace.
fn there(process: &Process, image: &Image) -> Result<Vec<(u64, [u8; JUMP_BYTES])>> {
    let targets = [image.function("mcount")?, image.function("__fentry__")?];
    let mut found = Vec::new();
    for place in 0..MOST_JUMPS {
        let at = offset_of!(Outside, jumps) + place * size_of::<Jump>();
        let function = image.outside(process, at + offset_of!(Jump, function));
        let displaced = image.outside(process, at + offset_of!(Jump, displaced)).to_le_bytes();
        let bytes: Option<[u8; JUMP_BYTES]> = process.bytes(function, JUMP_BYTES as u64).try_into().ok();
        let Some([JUMP, distance @ ..]) = bytes.filter(|_| function != 0) else { continue };
        let from = function + JUMP_BYTES as u64;
        let target = from.wrapping_add_signed(i32::from_le_bytes(distance).into());
        if targets.contains(&target)
            && let Some(&displaced) = displaced.first_chunk()
        {
            found.push((function, displaced));
        }
    }
    Ok(found)
}

/// True if there are any.
pub(crate) fn are_there(process: &Process, image: &Image) -> Result<bool> {
    Ok(!there(process, image)?.is_empty())
}

/// Takes them away, all threads being stopped. A thread may stand at the beginning of one.
pub(crate) fn take_away(process: &Process, image: &Image) -> Result<()> {
    for (function, displaced) in there(process, image)? {
        process
            .write(function, &displaced)
            .with_context(|| format!("cannot restore the code of process {}", process.pid))?;
    }
    Ok(())
}
