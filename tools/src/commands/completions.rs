//! `rftrace completions` and `rftrace man`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use rftrace_tools::Error;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  rftrace completions bash >~/.local/share/bash-completion/completions/rftrace
  rftrace completions zsh >~/.zfunc/_rftrace              with ~/.zfunc in fpath
  rftrace completions fish >~/.config/fish/completions/rftrace.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  rftrace man ~/.local/share/man/man1 && man rftrace-replay
  rftrace man . && man ./cargo-rftrace.1";

/// Prints what makes a shell complete the arguments of `rftrace`.
#[derive(Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Writes manual pages of `rftrace`, of its subcommands and of `cargo rftrace`.
#[derive(Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// The directory to write them to; it is made if it does not exist.
    dir: PathBuf,
}

/// Prints completions.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "rftrace", &mut script);
    io::Write::write_all(&mut io::stdout(), &script).map_err(Error::Write)?;
    Ok(())
}

/// Writes manual pages.
pub(crate) fn man(args: &ManArgs) -> Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| format!("cannot make the directory {}", args.dir.display()))?;
    let mut roots = vec![crate::Cli::command()];
    #[cfg(target_os = "linux")]
    roots.push(super::cargo::command());
    for root in roots {
        let mut root = root.disable_help_subcommand(true);
        root.build();
        write_pages(&args.dir, &root)?;
    }
    Ok(())
}

/// Writes the page of a command, and those of its subcommands.
fn write_pages(dir: &Path, command: &Command) -> Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(dir, subcommand)?;
    }
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let path = dir.join(page.get_filename());
    fs::write(&path, with_examples(&String::from_utf8_lossy(&text)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// What follows the options are examples, whose lines stay as they are.
fn with_examples(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let Some((before, rest)) = page.split_once(EXTRA) else { return page.to_owned() };
    let end = rest.find("\n.SH ").map_or(rest.len(), |pos| pos + 1);
    let (examples, after) = rest.split_at(end);
    format!("{before}.SH EXAMPLES\n.nf\n{examples}.fi\n{after}")
}
