//! A toolchain that can instrument.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::hooks::Hooks;
use super::process::output_of;

/// Advice if no toolchain can instrument.
const REMEDY: &str = "install one with `rustup toolchain install nightly`, permit unstable flags to the present compiler with \
                      `cargo rftrace --bootstrap …`, or record without them with `cargo rftrace --hooks=entry …`";

/// How cargo and rustc are called.
#[derive(Debug)]
pub(super) struct Toolchain {
    /// The toolchain's name, if rustup has to switch to it.
    name: Option<String>,
    /// True if RUSTC_BOOTSTRAP allows unstable flags.
    bootstrap: bool,
    release: String,
    host: String,
}

impl Toolchain {
    /// For `mcount`, `patchable` and `xray` the present one if it is a nightly or may be used as such, else rustup's nightly; for `entry` the present one. If
    /// nothing is said, what there is a toolchain for, `mcount` first. A toolchain named in `cargo +TOOLCHAIN` is the only one.
    pub(super) fn choose(bootstrap: bool, hooks: Option<Hooks>) -> Result<(Self, Hooks)> {
        if bootstrap && hooks == Some(Hooks::Entry) {
            bail!(
                "--bootstrap works only with --hooks=mcount, --hooks=patchable and --hooks=xray; --hooks=entry needs no unstable flag"
            );
        }
        let bootstrap = bootstrap || env::var_os("RUSTC_BOOTSTRAP").is_some_and(|value| value == "1");
        let present = Self::asked(None, bootstrap).context(
            "cannot read the version of the compiler; is Rust installed? See https://rustup.rs, or set RUSTC",
        )?;
        if hooks == Some(Hooks::Entry) {
            return Ok((Self { bootstrap: false, ..present }, Hooks::Entry));
        }
        let compiled = hooks.unwrap_or(Hooks::Mcount);
        if bootstrap || present.is_unstable() {
            return Ok((Self { bootstrap: bootstrap && !present.is_unstable(), ..present }, compiled));
        }
        let Some(nightly) = installed_nightly(&present.host).filter(|_| !is_named()) else {
            if hooks.is_none() {
                return Ok((present, Hooks::Entry));
            }
            if is_named() {
                bail!(
                    "rustc {} of `cargo +TOOLCHAIN` is no nightly; use `cargo +nightly rftrace`, permit unstable flags with \
                     `cargo rftrace --bootstrap …`, or record without them with `cargo rftrace --hooks=entry …`",
                    present.release
                );
            }
            bail!("rustc {} is no nightly, and rustup has none; {REMEDY}", present.release);
        };
        let nightly = Self::asked(Some(nightly.clone()), false)
            .with_context(|| format!("rustup's toolchain {nightly} does not work; {REMEDY}"))?;
        Ok((nightly, compiled))
    }

    /// Asks the compiler of a toolchain what it is.
    fn asked(name: Option<String>, bootstrap: bool) -> Result<Self> {
        let mut toolchain = Self { name, bootstrap, release: String::new(), host: String::new() };
        let text = output_of(toolchain.rustc().arg("-vV"))?;
        let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
        toolchain.release = field("release: ").context("`rustc -vV` has no line `release:`")?;
        toolchain.host = field("host: ").context("`rustc -vV` has no line `host:`")?;
        Ok(toolchain)
    }

    fn is_unstable(&self) -> bool {
        ["-nightly", "-dev"].iter().any(|channel| self.release.contains(channel))
    }

    /// The compiler's version.
    pub(super) fn release(&self) -> &str {
        &self.release
    }

    /// The triple of this machine.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The folder of the standard library for a target.
    pub(super) fn libraries(&self, target: &str) -> Result<PathBuf> {
        let folder = output_of(self.rustc().args(["--print", "target-libdir", "--target", target]))?;
        Ok(folder.trim().into())
    }

    pub(super) fn cargo(&self) -> Command {
        self.command(present_cargo(), "cargo")
    }

    pub(super) fn rustc(&self) -> Command {
        self.command(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()), "rustc")
    }

    fn command(&self, present: OsString, name: &str) -> Command {
        let mut command = match &self.name {
            Some(toolchain) => {
                let mut rustup = Command::new("rustup");
                rustup.args(["run", toolchain, name]);
                rustup
            }
            None => Command::new(present),
        };
        // Cargo has set it to itself, and another cargo would believe it.
        command.env_remove("CARGO");
        if self.bootstrap {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} (rustc {})", self.release),
            None if self.bootstrap => write!(f, "rustc {} with RUSTC_BOOTSTRAP=1", self.release),
            None => write!(f, "rustc {}", self.release),
        }
    }
}

/// Returns true if the command line names the toolchain: `cargo +stable rftrace`. Rustup tells it.
pub(super) fn is_named() -> bool {
    env::var_os("RUSTUP_TOOLCHAIN_SOURCE").is_some_and(|source| source == "cli")
}

/// The cargo that started this program, or that of the search path.
pub(super) fn present_cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The name of a nightly toolchain: the one without a date, else that with the newest.
fn installed_nightly(host: &str) -> Option<String> {
    newest_nightly(&output_of(Command::new("rustup").args(["toolchain", "list"])).ok()?, host)
}

fn newest_nightly(list: &str, host: &str) -> Option<String> {
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    let nightly = names.filter(|name| *name == "nightly" || name.starts_with("nightly-") && name.ends_with(host));
    let rank = |name: &&str| {
        let date = name.strip_prefix("nightly-").and_then(|rest| rest.strip_suffix(host)).unwrap_or_default();
        (date.is_empty(), date.to_owned())
    };
    nightly.max_by_key(rank).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::newest_nightly;

    #[test]
    fn nightlies() {
        let host = "x86_64-unknown-linux-gnu";
        let newest = |names: &[&str]| {
            let list: String = names.iter().map(|name| format!("{name}-{host}\n")).collect();
            newest_nightly(&list, host).map(|name| name.strip_suffix(&format!("-{host}")).unwrap().to_owned())
        };
        assert_eq!(newest(&["stable", "1.95.0"]), None);
        assert_eq!(newest(&["nightly-2026-01-02", "nightly-2026-03-01", "stable"]).unwrap(), "nightly-2026-03-01");
        assert_eq!(newest(&["nightly-2026-01-02", "nightly", "nightly-2027-01-01"]).unwrap(), "nightly");
        assert_eq!(newest_nightly("nightly-aarch64-unknown-linux-gnu\n", host), None);
        assert_eq!(
            newest_nightly(&format!("nightly-{host} (active, default)\n"), host).unwrap(),
            format!("nightly-{host}")
        );
    }
}
