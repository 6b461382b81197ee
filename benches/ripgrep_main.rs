
// Appended to ripgrep's main.rs by `setup-ripgrep`, which has renamed its `main` to `ripgrep_main`.

fn main() -> ExitCode {
    bench_tracer::whole_program(ripgrep_main)
}
