// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What llama.cpp's programs write.

use super::suite::Outcome;

/// Without the colours.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain + rest
}

/// test-backend-ops: a line for each call of an operation, `  NAME(PARAMETERS): OK`. What went
/// wrong stands before `FAIL`.
pub fn operations(stdout: &str) -> Vec<(String, Outcome)> {
    let call = |line: &str| {
        let (name, end) = line.strip_prefix("  ")?.split_once("): ")?;
        let outcome = match end.trim() {
            "OK" => Outcome::Passed,
            end if end.starts_with("not supported") => Outcome::Skipped("the HIP backend does not support it".into()),
            end => Outcome::Failed(end.to_owned()),
        };
        Some((format!("{name})"), outcome))
    };
    plain(stdout).lines().filter_map(call).collect()
}

/// test-llama-archs: a table, where a model's row has the comparison of its logits with the CPU's,
/// that with the model saved and loaded, and that with other batches. Each is a case.
pub fn architectures(stdout: &str) -> Vec<(String, Outcome)> {
    let mut cases = Vec::new();
    for line in plain(stdout).lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let ["", architecture, _device, config @ ("Dense" | "MoE"), results @ .., ""] = cells.as_slice() else {
            continue;
        };
        for (what, result) in ["logits", "saved and loaded", "other batches"].iter().zip(results) {
            let outcome = match *result {
                result if result.starts_with("OK") => Outcome::Passed,
                "SKIP" => Outcome::Skipped("llama.cpp does not compare it".into()),
                result => Outcome::Failed(result.to_owned()),
            };
            cases.push((format!("{architecture} {config}, {what}"), outcome));
        }
    }
    cases
}

/// llama-completion: the tokens of a model without a vocabulary, which are written as their
/// numbers, in hexadecimal.
pub fn tokens(stdout: &str) -> Option<&str> {
    let is_text = |line: &&str| line.len() >= 40 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    stdout.lines().map(str::trim).find(is_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_with_what_went_wrong() {
        let text = "Backend 1/2: ROCm0\n  ADD(type=f16,ne=[1,1]): \u{1b}[1;32mOK\u{1b}[0m\n  CPY(type=q4_0): not supported [ROCm0] \n  \
                    MUL(type=f32): [MUL] NMSE = 0.5 > 0.0000001 \u{1b}[1;31mFAIL\u{1b}[0m\n  2/3 tests passed\n  Backend ROCm0: FAIL\n";
        let cases = operations(text);
        assert_eq!(cases.len(), 3);
        assert_eq!(cases[0], ("ADD(type=f16,ne=[1,1])".into(), Outcome::Passed));
        assert!(matches!(&cases[1].1, Outcome::Skipped(_)));
        assert!(matches!(&cases[2].1, Outcome::Failed(why) if why.contains("NMSE = 0.5") && why.ends_with("FAIL")));
    }

    #[test]
    fn a_row_of_the_table_is_three_cases() {
        let text = "|  Model arch.|  Device|Config|   NMSE vs. CPU|Roundtrip|    Mixed batch|\n|---|---|---|---|---|---|\n|        llama|AMD Radeon| \
                    Dense|  \u{1b}[1;32mOK\u{1b}[0m (2.58e-08)|     \u{1b}[1;31mFAIL\u{1b}[0m|\u{1b}[1;33mSKIP\u{1b}[0m           |\n";
        let cases = architectures(text);
        assert_eq!(cases[0], ("llama Dense, logits".into(), Outcome::Passed));
        assert_eq!(cases[1], ("llama Dense, saved and loaded".into(), Outcome::Failed("FAIL".into())));
        assert!(matches!(&cases[2].1, Outcome::Skipped(_)));
    }

    #[test]
    fn tokens_are_the_long_line_of_digits() {
        let line = "7846743d545181e2e6717d1e61e1c1422c3c122d6ce3c2e6c761e756";
        assert_eq!(tokens(&format!("\n{line}\n\nllama: done\n")), Some(line));
        assert_eq!(tokens("7846\n"), None);
    }
}
