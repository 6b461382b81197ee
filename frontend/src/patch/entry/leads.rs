//! Branches at functions to another hook: to the library for resources. It records the results and releases of
//! specified functions, at every call.
//!
//! As with the tracer's own branches, a function is left whole if anything about it is unsure. These are made once,
//! while there is one thread.

use std::fs;
use std::path::PathBuf;

use super::examine::examine;
use super::functions::Functions;
use super::stubs::{GoesOn, Wanted};
use super::writing::make;
use crate::host;
use crate::host::linux::modules::exe_path;
use crate::patch::entry_outcome::WholeReason;
use crate::patch::module::{Image, with_modules};
use crate::patch::named::{Function, Module, is_cold};
use crate::patch::poke::is_only_thread;
use crate::patch::sites::Site;
use crate::patch::switches::Switch;

/// A function that gets a branch to another hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The file of the function's module.
    pub module: PathBuf,
    /// The function's address in the file.
    pub address: u64,
    /// The number that the hook receives in place of the function's address.
    pub number: usize,
}

/// Gives functions branches to `hook`, and returns for each the function's address in memory, or the reason against a
/// branch; `None` for functions of modules that are not loaded.
///
/// The hook finds on its stack, from the stack pointer on: the number of the [`Lead`], the function's resume address,
/// and then the stack as at the function's call. It must keep all registers.
///
/// # Safety
///
/// `hook` is code of this kind, and stays mapped.
pub unsafe fn lead_functions(leads: &[Lead], hook: usize) -> Vec<Option<Result<usize, WholeReason>>> {
    let _at_work = host::at_work();
    let mut found = vec![None; leads.len()];
    // Files are looked for before there is a branch: that may take memory, of an allocator that is among these.
    let mut own: Vec<(usize, Vec<usize>)> = Vec::new();
    with_modules(|info| {
        // SAFETY: in the callback, and not used behind it.
        let image = unsafe { Image::new(info) }?;
        own.push((image.start(), own_leads(&image, leads)));
        None::<()>
    });
    with_modules(|info| {
        // SAFETY: as above.
        let image = unsafe { Image::new(info) }?;
        let (_, own) = own.iter().find(|&&(start, _)| start == image.start())?;
        if !own.is_empty() {
            lead_in(&image, leads, own, hook, &mut found);
        }
        None::<()>
    });
    found
}

/// Returns the places of those in a module.
fn own_leads(image: &Image<'_>, leads: &[Lead]) -> Vec<usize> {
    let path = match image.name.is_empty() {
        true => exe_path().ok(),
        false => fs::canonicalize(&*image.name.to_string_lossy()).ok(),
    };
    let Some(path) = path else { return Vec::new() };
    let is_own = |lead: &Lead| lead.module == path;
    leads.iter().enumerate().filter(|(_, lead)| is_own(lead)).map(|(place, _)| place).collect()
}

fn lead_in(
    image: &Image<'_>,
    leads: &[Lead],
    own: &[usize],
    hook: usize,
    found: &mut [Option<Result<usize, WholeReason>>],
) {
    let module = Module::read(image);
    let symbols = module.symbols.iter().flat_map(crate::elf::table::SymbolTable::symbols);
    let labels = symbols.map(|symbol| image.start() + symbol.address as usize);
    let functions = Functions::of(image, labels);
    let (mut wanted, mut places): (Vec<Wanted>, Vec<usize>) = (Vec::new(), Vec::new());
    for &place in own {
        let lead = &leads[place];
        let address = module.address(lead.address);
        // Several names may be one function's: the first one is what it is then.
        let earlier =
            own.iter().take_while(|&&other| other != place).find(|&&other| leads[other].address == lead.address);
        if let Some(&earlier) = earlier {
            found[place] = found[earlier];
            continue;
        }
        let range = address.and_then(|address| functions.ranges().find(|&(start, _)| start == address));
        let examined = match range {
            Some((start, end)) => {
                let function = Function { start, end, symbol: module.symbol(start) };
                match is_cold(&module, &function) {
                    true => Err(WholeReason::Special),
                    false => examine(&module, &functions, &function, &[]).map(|instructions| (start, instructions)),
                }
            }
            None => Err(WholeReason::Unlisted),
        };
        match examined {
            Ok((start, instructions)) => {
                wanted.push(Wanted { name: start, told: lead.number, goes_on: GoesOn::Copy(instructions) });
                places.push(place);
            }
            Err(reason) => found[place] = Some(Err(reason)),
        }
    }
    if wanted.is_empty() {
        return;
    }
    let made = match is_only_thread() {
        true => make(image, &wanted, hook).map_err(|(reason, _)| reason),
        false => Err(WholeReason::Threads),
    };
    for (idx, (&place, function)) in places.iter().zip(&wanted).enumerate() {
        let made = made.as_ref().map_or_else(
            |&reason| Err(reason),
            |(made, area)| {
                let site = Site {
                    address: function.name,
                    child_ip: function.name,
                    module: image.start(),
                    has_arguments: true,
                };
                made[idx].map(|()| area.switch(idx, site).iter().for_each(Switch::switch_on))
            },
        );
        found[place] = Some(made.map(|()| function.name));
    }
    for &place in own {
        let first = own.iter().find(|&&other| leads[other].address == leads[place].address);
        if let Some(&first) = first {
            found[place] = found[first];
        }
    }
}
