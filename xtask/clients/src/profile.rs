// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What `vkfd run --profile` says, for the share of a program's time that its kernels have.

use std::time::Duration;

/// Time in kernels, from the output of `vkfd run --profile`.
pub fn in_kernels(stderr: &str) -> Duration {
    let lines = stderr.lines().skip_while(|line| !line.trim_end().ends_with("bytes  kernel")).skip(1);
    let milliseconds = lines.map_while(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Duration::from_secs_f64(milliseconds.sum::<f64>() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_says_the_time_in_kernels() {
        let text = "warning\n   ms    %  launches  work-groups       waves  instructions       bytes  kernel\n\
                    \x20 38.5  18        18           36         144        272700       73728  (at GPU address 0x7f)\n\
                    \x20  1.5   1        18           36         144        272700       73728  E_4\nend\n";
        assert_eq!(in_kernels(text), Duration::from_millis(40));
        assert_eq!(in_kernels("7.5 of nothing"), Duration::ZERO);
    }
}
