//! Rows of a report for a function's calls with different values.

use std::str::FromStr;

use rftrace_read::{Kind, Pattern, Record, Result, Task, Trace};

use crate::lines::Values;

/// The choice of functions with a row for each of their values, and of these values: `open`, `open@arg2`,
/// `open@arg1,retval`.
///
/// Arguments count from 1, in the order of display. Without a list the choice has all arguments.
#[derive(Debug, Clone)]
pub struct ByValue {
    functions: Pattern,
    /// The arguments, counted from 0; `None` for all.
    arguments: Option<Vec<usize>>,
    has_result: bool,
}

impl ByValue {
    /// The placeholder for an argument outside the list.
    const OTHER: &str = "_";

    /// True if it is for functions with this name.
    pub(crate) fn is_for(&self, name: &str) -> bool {
        self.functions.matches(name)
    }

    /// Returns the chosen values of a record.
    ///
    /// # Errors
    ///
    /// The task's file cannot be read.
    pub(crate) fn of(&self, trace: &Trace, task: &Task, record: &Record) -> Result<Values> {
        let is_wanted = match record.kind {
            Kind::Exit => self.has_result,
            _ => self.arguments.as_ref().is_none_or(|chosen| !chosen.is_empty()),
        };
        let mut values = if is_wanted { trace.values(task, record)? } else { Vec::new() };
        if let (Kind::Entry, Some(chosen)) = (record.kind, &self.arguments) {
            let others = values.iter_mut().enumerate().filter(|(idx, _)| !chosen.contains(idx));
            others.for_each(|(_, value)| *value = Self::OTHER.to_owned());
        }
        let text = (!values.is_empty()).then(|| values.join(", "));
        Ok(match record.kind {
            Kind::Exit => Values { result: text, ..Values::default() },
            _ => Values { arguments: text, ..Values::default() },
        })
    }
}

impl FromStr for ByValue {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (functions, list) = text.rsplit_once('@').map_or((text, None), |(functions, list)| (functions, Some(list)));
        let functions = Pattern::new(functions).map_err(|error| error.to_string())?;
        let Some(list) = list else { return Ok(Self { functions, arguments: None, has_result: false }) };
        let (mut arguments, mut has_result) = (Vec::new(), false);
        for value in list.split(',') {
            let number = value.strip_prefix("arg").and_then(|digits| digits.parse::<usize>().ok()?.checked_sub(1));
            match number {
                Some(number) => arguments.push(number),
                None if value == "retval" => has_result = true,
                None => {
                    return Err(format!(
                        "`{value}` is not a value: write arg1, arg2 and so on, or retval behind `@`, separated by commas"
                    ));
                }
            }
        }
        Ok(Self { functions, arguments: Some(arguments), has_result })
    }
}
