//! The toolchain, target and environment in which cargo builds and runs recorded programs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use rftrace_record::{Processor, run};

use super::arguments::CargoArguments;
use super::build;
use super::compilers;
use super::config::{self, Config};
use super::flags::{self, Environment};
use super::hooks::{self, Hooks};
use super::options::Options;
use super::session::{Orders, Session};
use super::status::status;
use super::toolchain::{self, Toolchain};

/// The toolchain, target and environment of cargo.
#[derive(Debug)]
pub(super) struct Plan {
    toolchain: Toolchain,
    hooks: Hooks,
    config: Config,
    target: String,
    target_dir: PathBuf,
    environment: Environment,
    is_leaks: bool,
    /// True to record the functions of the compiler, too.
    has_all: bool,
}

/// Options for `rftrace record` and its traces.
#[derive(Debug)]
pub(super) struct Recording {
    /// Where traces go; usually into the target directory.
    pub(super) traces: Option<PathBuf>,
    /// True if that is the trace itself.
    pub(super) one_trace: bool,
    pub(super) quiet: bool,
    /// Bytes that all traces may have together.
    pub(super) max_size: u64,
    /// Further options.
    pub(super) record: Vec<OsString>,
}

impl Plan {
    /// Chooses the toolchain, and asks cargo for its configuration.
    pub(super) fn new(options: &Options, args: &CargoArguments) -> Result<Self> {
        let is_leaks = options.leaks.leaks;
        // Nothing is instrumented then.
        let hooks = if is_leaks { Some(Hooks::Entry) } else { options.hooks };
        let (toolchain, hooks) = Toolchain::choose(options.bootstrap, hooks)?;
        if !options.quiet {
            status("Toolchain", &toolchain.to_string());
            if !is_leaks {
                status("Hooks", &hooks.described(options.hooks.is_some(), toolchain::is_named()));
            }
        }
        let config = Config::read(&toolchain, args)?;
        let target = config.target(&toolchain, args)?;
        let is_everywhere = hooks != Hooks::Xray && !is_leaks;
        if !is_everywhere && Processor::of_target(&target).is_some_and(|processor| !processor.has_all) {
            bail!(
                "--hooks=xray and --leaks work only on x86-64; for {target} use --hooks=mcount, --hooks=patchable or --hooks=entry"
            );
        }
        let target_dir = config::target_dir(&toolchain, args)?.join("rftrace");
        let mut environment = flags::environment(hooks, &toolchain, &config, args, &target)?;
        if is_leaks {
            // Tests are found by the names of functions, inlined ones too; with less than that those lack their modules.
            environment.set_for_profiles(args, "DEBUG", "limited");
        }
        Ok(Self { toolchain, hooks, config, target, target_dir, environment, is_leaks, has_all: options.all_functions })
    }

    /// Describes what the compiled functions depend on.
    pub(super) fn described(&self) -> String {
        format!("rustc {} for {}", self.toolchain.release(), self.target)
    }

    fn cargo(&self, args: &CargoArguments) -> Command {
        let mut cargo = self.toolchain.cargo();
        args.add_to(&mut cargo, &self.target, &self.target_dir);
        cargo
    }

    /// Builds, and says how to record.
    pub(super) fn build(&self, args: &CargoArguments, quiet: bool) -> Result<ExitCode> {
        let mut cargo = self.cargo(args);
        self.environment.apply(&mut cargo);
        let list = || {
            hooks::write_list(&self.toolchain.libraries(&self.target)?, &self.target_dir)?;
            Ok(hooks::list_path(&self.target_dir))
        };
        build::run(&mut cargo, args, self.hooks, &list, quiet)
    }

    /// Builds, runs and records. Returns the session and the exit status of cargo. The stdout of cargo and the programs goes to `stdout`.
    pub(super) fn record(
        &self,
        args: &CargoArguments,
        recording: Recording,
        stdout: impl Into<Stdio>,
    ) -> Result<(Session, ExitStatus)> {
        let session = Session::create()?;
        let mut environment = self.environment.clone();
        environment.set(&config::target_variable(&self.target, "RUNNER"), session.runner_path());
        if self.hooks == Hooks::Entry && !self.is_leaks {
            hooks::write_list(&self.toolchain.libraries(&self.target)?, session.path())?;
        }
        let Recording { traces, one_trace, quiet, max_size, mut record } = recording;
        if !self.has_all && !self.is_leaks {
            record.push(compilers::left_out());
            if !quiet {
                status("Left out", "the compiler's shims and checks; --all-functions records them");
            }
        }
        let traces = traces.unwrap_or_else(|| self.target_dir.join("traces").join(args.subcommand()));
        session.give(&Orders {
            traces: std::path::absolute(&traces).with_context(|| traces.display().to_string())?,
            one_trace,
            quiet,
            hooks: self.hooks,
            is_leaks: self.is_leaks,
            max_size,
            record,
            target: self.target.clone(),
            user_runner: self.config.runner(&self.toolchain, &self.target)?,
            variables: environment.before(),
        })?;
        let mut cargo = self.cargo(args);
        environment.apply(&mut cargo);
        // The calls until an interrupt are worth a report.
        let exit = run::pass_on(cargo.stdout(stdout))?;
        Ok((session, exit))
    }
}
