//! Dates, for systems whose library has none.

/// A Unix time in seconds as `Sat Nov 21 03:38:20 2026`, in UTC.
pub(crate) fn date(unix_seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    /// Days from 1 March of the year 0 to 1 January 1970.
    const MARCH_TO_EPOCH: u64 = 719_468;
    /// Days of 400 years.
    const ERA: u64 = 146_097;

    let (day, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Years begin in March, so that the leap day is the last of its year.
    let since_march = day + MARCH_TO_EPOCH;
    let (era, day_of_era) = (since_march / ERA, since_march % ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / (ERA - 1)) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, five months have 153 days.
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let year = 400 * era + year_of_era + u64::from(month >= 10);
    let week_day = DAYS.get((day % 7) as usize).unwrap_or(&"???");
    let month = MONTHS.get(month as usize).unwrap_or(&"???");
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{week_day} {month} {day_of_month:>2} {hour:02}:{minute:02}:{:02} {year}", second % 60)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "Thu Jan  1 00:00:00 1970"),
            (951_782_399, "Mon Feb 28 23:59:59 2000"),
            (951_782_400, "Tue Feb 29 00:00:00 2000"),
            (951_868_800, "Wed Mar  1 00:00:00 2000"),
            (1_700_000_000, "Tue Nov 14 22:13:20 2023"),
            (1_735_689_599, "Tue Dec 31 23:59:59 2024"),
            (4_107_542_400, "Mon Mar  1 00:00:00 2100"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
