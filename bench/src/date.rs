// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The date, for reports: Coordinated Universal Time, as ISO 8601 has it.

use std::time::{SystemTime, UNIX_EPOCH};

pub fn now() -> String {
    text(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Seconds since 1970 as a date.
fn text(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (rest / 3600, rest % 3600 / 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(text(0), "1970-01-01 00:00 UTC");
        assert_eq!(text(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(text(1_735_689_599), "2024-12-31 23:59 UTC");
        assert_eq!(text(1_795_359_600), "2026-11-22 15:00 UTC");
    }
}
