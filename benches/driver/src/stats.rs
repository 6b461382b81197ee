//! Medians and quartiles.

/// Numbers of one kind, from all rounds.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn add(&mut self, value: f64) {
        let place = self.0.partition_point(|&other| other < value);
        self.0.insert(place, value);
    }

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

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut sample = Self::default();
        values.into_iter().for_each(|value| sample.add(value));
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        let sample: Sample = [4.0, 1.0, 3.0, 2.0].into_iter().collect();
        assert_eq!((sample.quantile(0.0), sample.median(), sample.quantile(1.0)), (1.0, 2.5, 4.0));
        assert!(Sample::default().median().is_nan());
    }
}
