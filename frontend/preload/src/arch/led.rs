//! Specified functions whose calls the library for resources records wherever they are called: they get branches that lead to it.
//!
//! Not here: how that is done (`rftrace-frontend`), and what it records (`rftrace-preload-resources`).

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::transmute;
use std::path::Path;

use rftrace_format::passed::Passed;
use rftrace_format::recording::Led;
use rftrace_frontend::patch::{Lead, lead_functions};

use crate::notes;

/// Gives the functions that a file names their branches, while there is one thread.
pub(crate) fn begin(named: &Passed) {
    // A recorder that is gone wants nothing.
    let Ok(text) = named.open(File::options().read(true)).and_then(io::read_to_string) else { return };
    let led: Vec<Led<'_>> = text.lines().filter_map(Led::parse).collect();
    // SAFETY: names that end with a NUL; the library is preloaded, and stays.
    let [hook, branched] = [c"rftrace_resources_hook", c"rftrace_resources_branched"]
        .map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    if hook.is_null() || branched.is_null() {
        return;
    }
    // SAFETY: functions of these names have these types.
    let (hook, branched) = unsafe {
        (
            transmute::<*mut c_void, extern "C" fn() -> *const ()>(hook)(),
            transmute::<*mut c_void, extern "C" fn(usize, usize)>(branched),
        )
    };
    if hook.is_null() {
        let functions = if led.len() == 1 { "function" } else { "functions" };
        notes::tell(&format!(
            "the recording lacks calls of {} specified {functions} within their modules: branches for these need \
             xsave, which this processor lacks",
            led.len()
        ));
        return;
    }
    let lead = |led: &Led<'_>| Lead { module: led.path.into(), address: led.address, number: led.number };
    let leads: Vec<Lead> = led.iter().map(lead).collect();
    // SAFETY: the other library's hook is such code.
    let made = unsafe { lead_functions(&leads, hook as usize) };
    let mut left_out = Vec::new();
    for (led, made) in led.iter().zip(made) {
        match made {
            Some(Ok(address)) => branched(address, led.number),
            Some(Err(reason)) => {
                let module = Path::new(led.path).file_name().unwrap_or_default().to_string_lossy();
                left_out.push(format!("{} within {module} ({reason})", led.name));
            }
            // It is not loaded with this program.
            None => {}
        }
    }
    if !left_out.is_empty() {
        // A pattern may name thousands.
        const MOST: usize = 10;
        let more = left_out.len().saturating_sub(MOST);
        left_out.truncate(MOST);
        let more = if more > 0 { format!(", and of {more} more functions") } else { String::new() };
        notes::tell(&format!("the recording lacks calls of {}{more}", left_out.join(", ")));
    }
}
