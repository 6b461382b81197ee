//! The option `-a` of functracer's plugin `audit`: all calls of named functions are recorded, whatever the functions
//! do.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rftrace_format::specification::{Does, Function, NESTED};

use super::expression::{self, Wants};
use super::{Described, Specification, Wanted, read_text};

/// How deep files may name others.
const MAX_NESTED: usize = 8;

impl Specification {
    /// Returns the specification of the functions that a text names: names with semicolons between them, compared in
    /// the way of fnmatch(3) with c++filt's output. `@FILE` is a file with a name on each line. Each call is one of the
    /// resource `virtual`.
    ///
    /// # Errors
    ///
    /// The text names no function, or a file cannot be read.
    pub fn audit(symbols: &str) -> Result<Self> {
        let mut named = Vec::new();
        for item in symbols.split(';') {
            add(item, MAX_NESTED, &mut named)?;
        }
        if named.is_empty() {
            bail!("audit: no function names; give `SYMBOL;SYMBOL`, or `@FILE` with one name a line");
        }
        let number = |text| expression::compile(text, Wants::Early).map_err(anyhow::Error::msg);
        let (size, id) = (number("1")?, number("1")?);
        let wanted = |symbol: String| Wanted {
            place: "audit".to_owned(),
            symbols: vec![symbol],
            is_shell: true,
            library: None,
            is_optional: false,
            compiled: Function {
                resource: 0,
                does: Does::Note,
                flags: NESTED,
                size: size.clone(),
                failed: Vec::new(),
                old: Vec::new(),
                ids: vec![id.clone()],
                arguments: Vec::new(),
            },
        };
        let resource = Described {
            name: "virtual".to_owned(),
            description: "Virtual resource for custom symbol tracking".to_owned(),
            has_bytes: false,
            is_counted: false,
            has_others: false,
        };
        Ok(Self { resources: vec![resource], functions: named.into_iter().map(wanted).collect() })
    }
}

fn add(item: &str, most_nested: usize, named: &mut Vec<String>) -> Result<()> {
    let item = item.trim_matches(' ');
    let Some(path) = item.strip_prefix('@') else {
        if !item.is_empty() {
            named.push(item.to_owned());
        }
        return Ok(());
    };
    if most_nested == 0 {
        bail!("audit: the files with names are nested too deeply, down to {path}: write all names into one file");
    }
    let text = read_text(Path::new(path)).with_context(|| format!("audit: cannot read {path}"))?;
    text.lines().try_for_each(|line| add(line, most_nested - 1, named))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn symbols_are_named_in_texts_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names");
        fs::write(&path, "two\n three*  \n\n@nothing").unwrap();
        let symbols = |text: &str| -> Result<Vec<String>> {
            Ok(Specification::audit(text)?.functions.into_iter().flat_map(|wanted| wanted.symbols).collect())
        };
        let error = symbols(&format!("one;@{}", path.display())).unwrap_err();
        assert!(error.to_string().contains("cannot read nothing"), "{error:#}");
        fs::write(&path, "two\n three*  \n\n").unwrap();
        assert_eq!(
            symbols(&format!(" one;;f(int, int); @{}", path.display())).unwrap(),
            ["one", "f(int, int)", "two", "three*"]
        );
        assert!(symbols(" ; ").unwrap_err().to_string().contains("no function names"));
        // One without an end.
        assert!(format!("{:#}", symbols("@/dev/zero").unwrap_err()).contains("not a regular file"));
        fs::write(&path, " ".repeat(1 << 20 | 1)).unwrap();
        let error = symbols(&format!("@{}", path.display())).unwrap_err();
        assert!(format!("{error:#}").contains("longer than 1048576 bytes"), "{error:#}");
        fs::write(&path, format!("@{}", path.display())).unwrap();
        assert!(symbols(&format!("@{}", path.display())).unwrap_err().to_string().contains("nested too deeply"));
    }
}
