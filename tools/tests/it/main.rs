//! Tests on whole trace directories.

mod dir;

mod cli;
mod hostile;
mod reader;
mod replay;
mod report;
mod tree;
mod uftrace;
