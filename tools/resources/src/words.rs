//! The names of resources, and readable sizes.

use std::fmt;

use rftrace_format::resources::Resource;

/// A number of bytes, displayed in a readable unit.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
        match units.into_iter().find(|&(_, unit)| bytes as f64 >= 10.0 * unit) {
            Some((name, unit)) => write!(f, "{:.1} {name}", bytes as f64 / unit),
            None => write!(f, "{bytes} bytes"),
        }
    }
}

/// The word for one of a resource.
#[must_use]
pub(crate) fn one_of(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "block",
        Resource::File => "descriptor",
        Resource::Thread => "thread",
        Resource::Library => "library",
        // Its own name is that of all of them.
        Resource::Specified(_) => "block",
    }
}

/// Returns the plural of a resource's name.
#[must_use]
pub fn several_of(resource: Resource) -> String {
    let one = one_of(resource);
    one.strip_suffix('y').map_or_else(|| format!("{one}s"), |stem| format!("{stem}ies"))
}

/// So many of a resource.
pub(crate) fn number(resource: Resource, number: u64) -> String {
    if number == 1 { format!("1 {}", one_of(resource)) } else { format!("{number} {}", several_of(resource)) }
}

/// Returns the amount of a resource as text: the number, and the bytes for a resource with sizes.
#[must_use]
pub fn amount(resource: Resource, bytes: u64, blocks: u64) -> String {
    if resource.has_bytes() {
        format!("{} in {}", Size(bytes), number(resource, blocks))
    } else {
        number(resource, blocks)
    }
}
