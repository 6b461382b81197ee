
// Appended to ripgrep's main.rs by `run`, which has renamed its `main` to `ripgrep_main`.

extern crate rftrace as _; // links the tracer

fn main() -> ExitCode {
    let directory = std::env::var_os("RFTRACE_DIR").unwrap_or_else(|| "trace".into());
    let config = rftrace_frontend::Config::new().capacity_events(20_000_000).directory(directory);
    let tracer = match config.install() {
        Ok(tracer) => tracer,
        Err(error) => {
            eprintln!("rftrace: {error}");
            return ExitCode::FAILURE;
        }
    };
    tracer.enable();
    let code = ripgrep_main();
    let full = tracer.statistics().full;
    match tracer.save() {
        Ok(saved) => {
            eprintln!(
                "rftrace: {} events of {} threads in {}{}",
                saved.events,
                saved.threads,
                saved.path.display(),
                if full { " (the buffer was full before the end)" } else { "" }
            );
            code
        }
        Err(error) => {
            eprintln!("rftrace: {error}");
            ExitCode::FAILURE
        }
    }
}
