//! Medians and quartiles, and tables of them.

use std::fmt;

use crate::modes::Mode;

/// Numbers of one kind, from all rounds, in order.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// The value that `fraction` of all lie below. NaN if there is none.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else { return f64::NAN };
        let position = fraction * last as f64;
        let below = self.0[position.floor() as usize];
        let above = self.0[position.ceil() as usize];
        below + (above - below) * position.fract()
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<f64> for Sample {
    /// Leaves out missing measurements (NaN).
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

/// Median and quartiles, if they differ; nothing if nothing was measured.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        let digits = if self.median() < 10.0 { 2 } else { 1 };
        let [low, median, high] = [0.25, 0.5, 0.75].map(|fraction| format!("{:.digits$}", self.quantile(fraction)));
        if low == high { f.write_str(&median) } else { write!(f, "{median} ({low}–{high})") }
    }
}

/// Values of modes (rows) in several columns, one for each round, NaN where there is none.
pub struct Table<const COLUMNS: usize> {
    names: [&'static str; COLUMNS],
    rows: Vec<(Mode, [Vec<f64>; COLUMNS])>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub fn new(modes: &[Mode], names: [&'static str; COLUMNS]) -> Self {
        Self { names, rows: modes.iter().map(|&mode| (mode, [const { Vec::new() }; COLUMNS])).collect() }
    }

    /// Adds the value of the next round.
    pub fn add(&mut self, mode: Mode, column: usize, value: f64) {
        if let Some((_, cells)) = self.rows.iter_mut().find(|row| row.0 == mode) {
            cells[column].push(value);
        }
    }

    pub fn sample(&self, mode: Mode, column: usize) -> Sample {
        self.values(mode, column).iter().copied().collect()
    }

    /// Ratios within the rounds.
    pub fn ratio(&self, mode: Mode, to: Mode, column: usize) -> Sample {
        self.values(mode, column).iter().zip(self.values(to, column)).map(|(value, to)| value / to).collect()
    }

    /// `ratio` for some columns, with their names.
    pub fn ratios(&self, mode: Mode, to: Mode, columns: &[usize]) -> Vec<(&'static str, Sample)> {
        columns.iter().map(|&column| (self.names[column], self.ratio(mode, to, column))).collect()
    }

    /// Prints what `cell` makes of each mode and column.
    pub fn print(&self, cell: impl Fn(Mode, usize) -> Sample) {
        println!("| | {} |", self.names.join(" | "));
        println!("|---{}|", "|---".repeat(COLUMNS));
        for (mode, _) in &self.rows {
            let cells: Vec<String> = (0..COLUMNS).map(|column| cell(*mode, column).to_string()).collect();
            println!("| {mode} | {} |", cells.join(" | "));
        }
    }

    fn values(&self, mode: Mode, column: usize) -> &[f64] {
        self.rows.iter().find(|row| row.0 == mode).map_or(&[], |(_, cells)| &cells[column])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        let sample: Sample = [4.0, 1.0, f64::NAN, 3.0, 2.0].into_iter().collect();
        assert_eq!((sample.quantile(0.0), sample.median(), sample.quantile(1.0)), (1.0, 2.5, 4.0));
        assert!(Sample::default().median().is_nan());
    }

    #[test]
    fn ratios_are_those_of_one_round() {
        let mut table = Table::new(&[Mode::On, Mode::Off], ["leaf"]);
        for (on, off) in [(10.0, 1.0), (f64::NAN, 2.0), (40.0, 2.0)] {
            table.add(Mode::On, 0, on);
            table.add(Mode::Off, 0, off);
        }
        assert_eq!(table.ratio(Mode::On, Mode::Off, 0).median(), 15.0);
    }
}
