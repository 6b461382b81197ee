//! A thread that works for this process for a while.
//!
//! A function is called on a stack of our own and returns to the frame of a signal handler (`frame`); a system call is
//! such a call of the two instructions `syscall; ret`, present in every C library. Meanwhile all signals are blocked,
//! with two exceptions. SIGSEGV and SIGTRAP would be this process's fault. Signals of clocks of processor time would
//! end another thread's wait if this one, which uses some time for us, blocked them. No handler of the program runs on
//! it: an unblocked signal is sent again at the end.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::libc::{self, c_int, pid_t, user_regs_struct};

use super::call;
use super::confined;
use super::frame::{FRAME_BYTES, extended, frame};
use super::needs::Needs;
use super::owner::Owner;
use super::place::Places;
use super::process::{Map, Module, Process};
use super::refusal;
use super::status::{CLOCKS, Status, bit};
use super::stop::{Stopped, stop};
use super::sys::{self, Stop};
use super::world::let_late_go;

/// Bytes of the stack for calls.
const STACK_BYTES: u64 = 1 << 20;
/// And of the memory for the functions' arguments, behind it.
const TEXT_BYTES: u64 = 64 << 10;
/// Most bytes of a frame on a thread's own stack.
const OWN_STACK_BYTES: u64 = 64 << 10;
/// Bytes below the stack pointer for leaf functions.
const RED_ZONE_BYTES: u64 = 128;
/// The longest time for any request to the thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// Instructions of the C library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gadgets {
    /// `syscall; ret`; without a restorer only the first.
    pub(crate) syscall: u64,
    /// `mov rax, 15; syscall`: the return address of signal handlers. 0 if there is none: then only system calls can be
    /// made, without a frame.
    pub(crate) restorer: u64,
    /// The place of the C library's word for the distance from a thread's control block to its `errno`. 0 if it is
    /// unknown.
    pub(crate) errno: u64,
}

/// Their bytes.
const SYSCALL: [u8; 3] = [0x0f, 0x05, 0xc3];
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];

impl Gadgets {
    pub(crate) fn find(process: &Process, libc: &Module) -> Result<Self> {
        let find = |bytes: &[u8]| {
            libc.find(process, bytes).with_context(|| {
                format!(
                    "the C library of process {} lacks the instructions of a system call: rftrace supports the GNU C library",
                    process.pid
                )
            })
        };
        let errno = errno_offset(process, libc.function("__errno_location")?).unwrap_or(0);
        Ok(Self { syscall: find(&SYSCALL)?, restorer: find(&RESTORER)?, errno })
    }

    /// Gadgets from anywhere in a program's code, which may have no known library.
    pub(crate) fn anywhere(process: &Process, maps: &[Map]) -> Result<Self> {
        let texts = || maps.iter().filter(|map| map.is_executable && map.path != "[vsyscall]");
        let find = |wanted: &[u8]| texts().find_map(|map| process.find(&map.range, wanted));
        if let Some((syscall, restorer)) = find(&SYSCALL).zip(find(&RESTORER)) {
            return Ok(Self { syscall, restorer, errno: 0 });
        }
        let syscall = find(&SYSCALL[..2])
            .with_context(|| format!("the code of process {} has no instruction `syscall`", process.pid))?;
        Ok(Self { syscall, restorer: 0, errno: 0 })
    }
}

/// The word added by `__errno_location` to the thread's control block: `mov rax, [rip+N]; add rax, fs:0`, behind
/// `endbr64` or not.
fn errno_offset(process: &Process, function: u64) -> Option<u64> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const LOAD: [u8; 3] = [0x48, 0x8b, 0x05];
    const ADD: [u8; 9] = [0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0];

    let start = if process.bytes(function, 4) == ENDBR64 { function + 4 } else { function };
    let code = process.bytes(start, 16);
    let (load, code) = code.split_at_checked(LOAD.len())?;
    let (&distance, add) = code.split_first_chunk()?;
    let is_it = load == LOAD && add == ADD;
    is_it.then(|| (start + 7).wrapping_add_signed(i32::from_le_bytes(distance).into()))
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Borrowed<'a> {
    process: &'a Process,
    gadgets: Gadgets,
    pub(crate) thread: pid_t,
    pub(crate) registers: user_regs_struct,
    extended: Vec<u8>,
    mask: u64,
    /// Our memory in it: a stack, then texts. 0 if there is none.
    memory: u64,
    n_used: u64,
    /// Signals that came meanwhile.
    pending: Vec<c_int>,
    /// True if somebody else traces it too, has stopped it and lets it go on.
    is_lent: bool,
    /// True if it has filters of system calls.
    is_confined: bool,
    is_gone: bool,
}

impl<'a> Borrowed<'a> {
    /// Borrows a thread at one of `places` that may do what it `needs` to. Waits for one if there is none. `late` gets
    /// threads that could not be stopped at once.
    pub(crate) fn take(
        process: &'a Process,
        places: &Places,
        needs: &Needs,
        gadgets: Gadgets,
        late: &mut Vec<pid_t>,
    ) -> Result<Self> {
        const LIMIT: Duration = Duration::from_secs(30);
        /// Between two looks, at first and at the most. Threads without a processor in between do not move.
        const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(20)];

        let (start, [mut pause, longest]) = (Instant::now(), PAUSES);
        loop {
            let mut confined = None;
            let mut denied = None;
            let (mut n_seized, mut n_confined) = (0, 0);
            // A late thread may be the one to be borrowed, and does not go on before.
            let_late_go(late);
            for thread in process.threads()? {
                if late.contains(&thread) {
                    continue;
                }
                if let Err(error) = sys::seize(thread) {
                    // An ended thread cannot be traced either.
                    denied = denied
                        .or_else(|| (error.raw_os_error() == Some(libc::EPERM)).then(|| refusal::denied(process.pid)));
                    continue;
                }
                n_seized += 1;
                match stop(thread)? {
                    Stopped::Yes => match confined::check_thread(process, thread, needs) {
                        Err(error) => {
                            n_confined += 1;
                            confined = Some(error);
                        }
                        Ok(()) if places.is_safe(process, &call::registers(thread)?) => {
                            return Self::new(process, gadgets, thread, false);
                        }
                        Ok(()) => {}
                    },
                    Stopped::Late => {
                        late.push(thread);
                        continue;
                    }
                    Stopped::Gone => continue,
                }
                // An ended thread is gone anyway.
                let _ = call::let_go(thread);
            }
            if let Some(denied) = denied.filter(|_| n_seized == 0 && late.is_empty()) {
                bail!(denied);
            }
            // No thread gets rid of its filters, and a new one inherits those of its creator.
            let has_none = n_confined > 0 && n_confined == n_seized && late.is_empty();
            if let Some(error) = confined.filter(|_| has_none || start.elapsed() > LIMIT) {
                return Err(error);
            }
            if start.elapsed() > LIMIT {
                bail!("no thread of process {} was at a safe place to call the tracer; try again", process.pid);
            }
            thread::sleep(pause);
            pause = (pause + pause / 8).min(longest);
        }
    }

    /// Borrows a thread traced by this one and told to stop. It stays so.
    pub(crate) fn lent(
        process: &'a Process,
        places: &Places,
        needs: &Needs,
        gadgets: Gadgets,
        thread: pid_t,
    ) -> Result<Self> {
        if !places.is_safe(process, &call::registers(thread)?) {
            bail!("thread {thread} is not at a safe place to call the tracer");
        }
        confined::check_thread(process, thread, needs)?;
        Self::new(process, gadgets, thread, true)
    }

    /// Borrows the thread of a program started by this process, and held before it takes any lock. It stays so.
    pub(crate) fn held(process: &'a Process, gadgets: Gadgets, thread: pid_t) -> Result<Self> {
        Self::new(process, gadgets, thread, true)
    }

    fn new(process: &'a Process, gadgets: Gadgets, thread: pid_t, is_lent: bool) -> Result<Self> {
        let (registers, extended) = (call::registers(thread)?, sys::extended_state(thread)?);
        let mask = sys::signal_mask(thread)?;
        let is_confined = Status::of(thread).is_some_and(|status| status.seccomp != 0);
        let mut this = Self {
            process,
            gadgets,
            thread,
            registers,
            extended,
            mask,
            memory: 0,
            n_used: 0,
            pending: Vec::new(),
            is_lent,
            is_confined,
            is_gone: false,
        };
        this.take_memory()?;
        Ok(this)
    }

    /// Maps the stack and the memory for texts.
    fn take_memory(&mut self) -> Result<()> {
        self.memory = self.own_memory(STACK_BYTES + TEXT_BYTES).context("cannot map a stack in the process")?;
        Ok(())
    }

    /// Maps memory for the time of the borrowing; the next recorder finds it if this one is killed. The first
    /// [`Owner::BYTES`] name the owner.
    pub(crate) fn own_memory(&mut self, n_bytes: u64) -> Result<u64> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let thread = self.thread;
        let mut map = |place: u64, flags: i32| {
            let arguments = [place, n_bytes, protection as u64, flags as u64, u64::MAX, 0];
            self.system_call(libc::SYS_mmap, &arguments)
        };
        let own = Owner::places(thread).find_map(|place| map(place, flags | libc::MAP_FIXED_NOREPLACE).ok());
        // Anywhere, if the program uses all addresses.
        let memory = own.map_or_else(|| map(0, flags), Ok)?;
        let owner = Owner { thread: self.thread, masks: [self.mask, self.mask_while_borrowed()] };
        owner.write(self.process, memory)?;
        Ok(memory)
    }

    /// The address of its memory; 0 if there is none.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// The signals it has blocked by itself.
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    fn mask_while_borrowed(&self) -> u64 {
        !(bit(libc::SIGSEGV) | bit(libc::SIGTRAP) | CLOCKS & !self.mask)
    }

    /// Has it make a system call.
    pub(crate) fn system_call(&mut self, number: i64, arguments: &[u64]) -> Result<u64> {
        let has_room = self.memory != 0 || self.process.has_stack(self.registers.rsp, OWN_STACK_BYTES);
        let has_frame = self.gadgets.restorer != 0 && has_room;
        let result = if has_frame {
            self.run(self.gadgets.syscall, number.cast_unsigned(), arguments)?
        } else {
            self.step(number.cast_unsigned(), arguments)?
        };
        match result.cast_signed() {
            error @ -4095..0 => Err(io::Error::from_raw_os_error(-error as i32).into()),
            _ => Ok(result),
        }
    }

    /// From now on it runs these.
    pub(crate) fn use_gadgets(&mut self, gadgets: Gadgets) {
        self.gadgets = gadgets;
    }

    /// Has it call a function. The result is not known.
    pub(crate) fn call(&mut self, function: u64, arguments: &[u64]) -> Result<()> {
        let errno = self.errno();
        let done = self.run(function, 0, arguments).map(drop);
        if let Some((place, value)) = errno.filter(|_| !self.is_gone) {
            self.process.write(place, &value)?;
        }
        done
    }

    /// The address of its `errno`, and the value.
    fn errno(&self) -> Option<(u64, [u8; 4])> {
        let offset = Some(self.gadgets.errno).filter(|&errno| errno != 0).and_then(|errno| self.process.word(errno))?;
        let place = self.registers.fs_base.wrapping_add(offset);
        Some((place, self.process.bytes(place, 4).try_into().ok()?))
    }

    /// A string in its memory.
    pub(crate) fn string(&mut self, text: &str) -> Result<u64> {
        let place = self.room(text.len() as u64 + 1)?;
        self.process.write(place, text.as_bytes())?;
        self.process.write(place + text.len() as u64, &[0])?;
        Ok(place)
    }

    /// So many bytes of its memory.
    pub(crate) fn room(&mut self, bytes: u64) -> Result<u64> {
        let place = self.memory + STACK_BYTES + self.n_used;
        self.n_used += bytes.next_multiple_of(16);
        if self.n_used > TEXT_BYTES {
            bail!("the texts for the process exceed {TEXT_BYTES} bytes");
        }
        Ok(place)
    }

    /// Runs code with these registers until it returns, and gives the thread its registers back. Returns the result of
    /// the last system call at the place of the first instruction.
    fn run(&mut self, code: u64, rax: u64, arguments: &[u64]) -> Result<u64> {
        let top = match self.memory {
            0 => self.registers.rsp - RED_ZONE_BYTES,
            memory => memory + STACK_BYTES,
        };
        let extended = extended(&self.extended);
        let extended_at = (top - extended.len() as u64) & !63;
        let restorer = self.gadgets.restorer;
        // At the first instruction of a function the stack pointer is 8 above a multiple of 16.
        let frame_at = ((extended_at - FRAME_BYTES) & !15) - 8;
        let frame = frame(restorer, &call::restarted(&self.registers), self.mask, extended_at);
        self.process
            .write(extended_at, &extended)
            .with_context(|| format!("cannot write to the stack of thread {}", self.thread))?;
        self.process.write(frame_at, &frame)?;
        self.begin(code, rax, arguments, frame_at)?;
        let result = self.wait_for_return(frame_at);
        if !self.is_gone {
            self.put_back()?;
        }
        result
    }

    /// Has it make a system call on a stack without room for a frame: a heap's, or one made by the program. Only here
    /// the thread does not outlive this process.
    fn step(&mut self, number: u64, arguments: &[u64]) -> Result<u64> {
        self.begin(self.gadgets.syscall, number, arguments, self.registers.rsp)?;
        let result = self.wait_for_call_end();
        if !self.is_gone {
            self.put_back()?;
        }
        result
    }

    /// Has it go on at `code` from now on.
    fn begin(&mut self, code: u64, rax: u64, arguments: &[u64], rsp: u64) -> Result<()> {
        let argument = |place: usize| arguments.get(place).copied().unwrap_or(0);
        let mut registers = self.registers;
        (registers.rip, registers.rsp) = (code, rsp);
        (registers.rax, registers.orig_rax) = (rax, u64::MAX);
        (registers.rdi, registers.rsi, registers.rdx) = (argument(0), argument(1), argument(2));
        (registers.r10, registers.r8, registers.r9) = (argument(3), argument(4), argument(5));
        registers.rcx = argument(3);
        // Direction and trap flags off, as a function wants it.
        registers.eflags &= !0x500;
        sys::set_registers(self.thread, &registers)?;
        sys::set_signal_mask(self.thread, self.mask_while_borrowed())?;
        Ok(())
    }

    /// Waits for the end of a system call that begins now.
    fn wait_for_call_end(&mut self) -> Result<u64> {
        self.go_on_to_system_call()?;
        self.go_on_to_system_call()?;
        Ok(sys::registers(self.thread)?.rax)
    }

    /// Has it go on until it begins a system call, or has come to the end of it.
    fn go_on_to_system_call(&mut self) -> Result<()> {
        loop {
            sys::go_on_to_system_call(self.thread, 0)?;
            match sys::wait(self.thread, PATIENCE)? {
                Some(Stop::SystemCall) => return Ok(()),
                Some(Stop::Signal(signal)) => self.pending.push(signal),
                Some(Stop::Told | Stop::Event) => {}
                Some(Stop::Gone) | None => {
                    self.is_gone = true;
                    bail!("process {} has ended", self.process.pid);
                }
            }
        }
    }

    /// Waits until the thread returns to the frame.
    fn wait_for_return(&mut self, frame_at: u64) -> Result<u64> {
        const ENOSYS: i64 = -38;

        let mut result = ENOSYS;
        loop {
            sys::go_on_to_system_call(self.thread, 0)?;
            match sys::wait(self.thread, PATIENCE)? {
                None => {
                    // It stays as it is, and goes on by itself when it comes to an end.
                    self.is_gone = true;
                    bail!("thread {} has not finished a call of the tracer within a minute; try again", self.thread);
                }
                Some(Stop::Gone) => {
                    self.is_gone = true;
                    bail!("process {} has ended", self.process.pid);
                }
                Some(Stop::SystemCall) => {
                    let now = sys::registers(self.thread)?;
                    let is_begin = now.rax.cast_signed() == ENOSYS;
                    if call::forgets_rest(&now) {
                        call::forget_rest(&mut self.registers);
                    }
                    if is_begin && now.orig_rax == libc::SYS_rt_sigreturn as u64 && now.rsp == frame_at + 8 {
                        if self.is_confined {
                            // A call that is called off here has the number -1 for a filter, which may kill for it.
                            self.go_on_to_system_call()?;
                            call::forget_rest(&mut self.registers);
                        }
                        return Ok(result.cast_unsigned());
                    }
                    if !is_begin && now.rsp == frame_at {
                        result = now.rax.cast_signed();
                    }
                }
                Some(Stop::Signal(libc::SIGSEGV | libc::SIGTRAP | libc::SIGBUS | libc::SIGILL)) => {
                    let rip = sys::registers(self.thread)?.rip;
                    bail!("thread {} faulted at {rip:#x} in a call of the tracer", self.thread);
                }
                Some(Stop::Signal(signal)) => self.pending.push(signal),
                Some(Stop::Told | Stop::Event) => {}
            }
        }
    }

    /// Gives the thread all registers back, wherever it has stopped, and has it stop where it was told to: only there
    /// an interrupted system call goes on as the system wants it.
    fn put_back(&mut self) -> Result<()> {
        sys::set_extended_state(self.thread, &self.extended)?;
        sys::set_signal_mask(self.thread, self.mask)?;
        sys::set_registers(self.thread, &call::restarted(&self.registers))?;
        sys::interrupt(self.thread)?;
        sys::go_on(self.thread, 0)?;
        loop {
            match sys::wait(self.thread, PATIENCE)? {
                Some(Stop::Told) => break,
                Some(Stop::Signal(signal)) => {
                    self.pending.push(signal);
                    sys::go_on(self.thread, 0)?;
                }
                Some(Stop::SystemCall | Stop::Event) => sys::go_on(self.thread, 0)?,
                Some(Stop::Gone) | None => {
                    self.is_gone = true;
                    return Err(anyhow!("process {} has ended", self.process.pid));
                }
            }
        }
        // Told to stop on its way back from the call, it has all of them, except for those of a call that is to go on.
        sys::set_registers(self.thread, &self.registers)?;
        Ok(())
    }

    /// True if the thread's call begins anew. The only signal that may wait for it is that of a clock of processor
    /// time, as the thread has used some for us. Without us this signal would not have come during the wait in a system
    /// call. So it is to come before the call begins again, not to end it.
    fn begins_anew(&self) -> bool {
        let waiting = Status::of(self.thread).map_or(0, |status| status.pending) & !self.mask;
        let waiting = self.pending.iter().fold(waiting, |all, &signal| all | bit(signal));
        call::begins_anew(&self.registers, waiting)
    }

    /// Lets the thread go on as if nothing had been.
    pub(crate) fn give_back(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.is_gone {
            return Ok(());
        }
        let memory = std::mem::take(&mut self.memory);
        if memory != 0 {
            self.system_call(libc::SYS_munmap, &[memory, STACK_BYTES + TEXT_BYTES])?;
        }
        self.is_gone = true;
        if self.begins_anew() {
            sys::set_registers(self.thread, &call::restarted(&self.registers))?;
        }
        for signal in std::mem::take(&mut self.pending) {
            sys::send(self.process.pid, self.thread, signal);
        }
        if !self.is_lent {
            sys::detach(self.thread, 0)?;
        }
        Ok(())
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        // An error of its own was told before.
        let _ = self.end();
    }
}
