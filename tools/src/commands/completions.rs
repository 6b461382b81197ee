//! `rftrace completions` and `rftrace man`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use rftrace_read::Error;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  rftrace completions bash >~/.local/share/bash-completion/completions/rftrace
  rftrace completions zsh >~/.zfunc/_rftrace              with ~/.zfunc in fpath
  rftrace completions fish >~/.config/fish/completions/rftrace.fish

For `cargo rftrace`, beside cargo's own completions:
  echo 'source <(rftrace completions bash cargo-rftrace)' >>~/.bashrc
  rftrace completions zsh cargo-rftrace >~/.zfunc/_cargo-rftrace
  rftrace completions fish cargo-rftrace >~/.config/fish/conf.d/cargo-rftrace.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  rftrace man ~/.local/share/man/man1 && man rftrace-replay
  rftrace man . && man ./cargo-rftrace.1";

/// Prints completions for a shell.
#[derive(Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
    /// The command.
    #[arg(value_enum, default_value = "rftrace")]
    command: Completed,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Completed {
    Rftrace,
    #[cfg(target_os = "linux")]
    CargoRftrace,
}

/// Bash code that completes `cargo rftrace` with any version of bash-completion: from 2.12 on cargo's own completions pass it on. Behind `run` and so
/// on it asks those of cargo as if rftrace were not there.
#[cfg(target_os = "linux")]
const BASH_CARGO: &str = r#"
_cargo_without_rftrace() {
    if ! declare -F _cargo >/dev/null; then
        if declare -F _comp_load >/dev/null; then
            _comp_load cargo
        elif declare -F _completion_loader >/dev/null; then
            _completion_loader cargo
        fi
        complete -F _cargo_with_rftrace -o bashdefault -o default cargo
    fi
    if declare -F _cargo >/dev/null; then
        _cargo "$@"
    fi
}

_cargo_with_rftrace() {
    local at=1 place
    while [[ $at -lt $COMP_CWORD && ${COMP_WORDS[at]} == [+-]* ]]; do
        at=$((at + 1))
    done
    if [[ $at -ge $COMP_CWORD || ${COMP_WORDS[at]} != rftrace ]]; then
        _cargo_without_rftrace "$@"
        return
    fi
    for ((place = at + 1; place < COMP_CWORD; place++)); do
        case ${COMP_WORDS[place]} in
            run | r | test | t | bench | build | b)
                COMP_WORDS=(cargo "${COMP_WORDS[@]:place}")
                COMP_CWORD=$((COMP_CWORD - place + 1))
                COMP_LINE="${COMP_WORDS[*]:0:COMP_CWORD + 1}"
                COMP_POINT=${#COMP_LINE}
                _cargo_without_rftrace cargo "$2" "$3"
                return
                ;;
        esac
    done
    COMP_WORDS=(cargo-rftrace "${COMP_WORDS[@]:at + 1}")
    COMP_CWORD=$((COMP_CWORD - at))
    _cargo__rftrace cargo-rftrace "$2" "$3"
}
complete -F _cargo_with_rftrace -o bashdefault -o default cargo
"#;

/// The same for fish, which asks for the completions of another command line.
#[cfg(target_os = "linux")]
const FISH_CARGO: &str = r#"
complete -c cargo -n '__fish_seen_subcommand_from rftrace' -f -a '(complete -C (string replace -r "^.*?\srftrace\s" "cargo-rftrace " -- (commandline -cp)))'
"#;

/// Writes manual pages.
#[derive(Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// The directory to write them to; it is made if it does not exist.
    dir: PathBuf,
}

/// Prints completions of `program`.
pub(crate) fn completions(args: &CompletionsArgs, mut program: Command) -> Result<()> {
    let mut script = Vec::new();
    match args.command {
        Completed::Rftrace => clap_complete::generate(args.shell, &mut program, "rftrace", &mut script),
        #[cfg(target_os = "linux")]
        Completed::CargoRftrace => {
            clap_complete::generate(args.shell, &mut super::cargo::command(), "cargo-rftrace", &mut script);
            script.extend_from_slice(match args.shell {
                Shell::Bash => BASH_CARGO.as_bytes(),
                Shell::Fish => FISH_CARGO.as_bytes(),
                // That of cargo looks for `_cargo-rftrace`.
                _ => b"",
            });
        }
    }
    io::Write::write_all(&mut io::stdout(), &script).map_err(Error::Write)?;
    Ok(())
}

/// Writes manual pages of `program`.
pub(crate) fn man(args: &ManArgs, program: Command) -> Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| format!("cannot make the directory {}", args.dir.display()))?;
    let mut roots = vec![program];
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

/// Makes the text that follows the options a section of examples, whose lines stay as they are.
fn with_examples(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let Some((before, rest)) = page.split_once(EXTRA) else { return page.to_owned() };
    let end = rest.find("\n.SH ").map_or(rest.len(), |pos| pos + 1);
    let (examples, after) = rest.split_at(end);
    format!("{before}.SH EXAMPLES\n.nf\n{examples}.fi\n{after}")
}
