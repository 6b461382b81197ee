//! A frontend that does nothing.

pub struct Events;

pub fn init(_events: usize, _overwriting: bool) -> &'static mut Events {
    Box::leak(Box::new(Events))
}

pub fn enable() {}

pub fn disable() {}

pub fn dump_full_uftrace(_events: &mut Events, _directory: &str, _name: &str) -> std::io::Result<()> {
    Ok(())
}
