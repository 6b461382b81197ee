//! Requirements, and the test whether measurements meet them.

use crate::stats::Sample;

/// A bound of a ratio.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// Only for comparison.
    None,
}

/// One line of the last table.
#[derive(Debug)]
pub struct Requirement {
    what: String,
    limit: Limit,
    measured: Vec<(&'static str, Sample)>,
}

impl Requirement {
    pub fn new(what: impl Into<String>, limit: Limit, measured: Vec<(&'static str, Sample)>) -> Self {
        Self { what: what.into(), limit, measured }
    }

    /// True if all medians, with two decimals as printed, are within the limit. A missing measurement is not within it.
    pub fn is_met(&self) -> bool {
        let printed = |sample: &Sample| (100.0 * sample.median()).round() / 100.0;
        self.measured.iter().all(|(_, sample)| match self.limit {
            Limit::AtMost(limit) => printed(sample) <= limit,
            Limit::AtLeast(limit) => printed(sample) >= limit,
            Limit::None => true,
        })
    }

    pub fn print(requirements: &[Self]) {
        if requirements.is_empty() {
            return;
        }
        println!("Ratios within a round: median (quartiles).\n");
        println!("| ratio | limit | measured | |");
        println!("|---|---|---|---|");
        for requirement in requirements {
            let (limit, verdict) = match requirement.limit {
                Limit::AtMost(limit) => (format!("≤ {limit}"), if requirement.is_met() { "met" } else { "MISSED" }),
                Limit::AtLeast(limit) => (format!("≥ {limit}"), if requirement.is_met() { "met" } else { "MISSED" }),
                Limit::None => (String::new(), ""),
            };
            let measured = requirement.measured.iter().map(|(name, sample)| {
                let sample = if sample.is_empty() { "not measured".to_owned() } else { sample.to_string() };
                if name.is_empty() { sample } else { format!("{name} {sample}") }
            });
            let measured: Vec<String> = measured.collect();
            println!("| {} | {limit} | {} | {verdict} |", requirement.what, measured.join("; "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_is_nothing_met() {
        let with = |limit, value| Requirement::new("", limit, vec![("", [value].into_iter().collect())]).is_met();
        assert!(with(Limit::AtMost(1.0), 1.0) && !with(Limit::AtMost(1.0), 1.1) && !with(Limit::AtMost(1.0), f64::NAN));
        assert!(with(Limit::AtLeast(1.9), 1.95) && !with(Limit::AtLeast(1.9), 1.8));
    }
}
