// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The verdicts of a Catch2 program, from its XML.
//!
//! Mechanism: Catch2 (version 2) writes `<TestCase name="...">` when a case begins and
//! `<OverallResult success="..."/>` when it has ended. In between are expressions that did not hold
//! and exceptions, and at the end the case's output. A case with a beginning and no end took the
//! program with it.

use super::suite::Outcome;

/// Cases in the order in which they began, with their outcome; none for one that has not ended.
pub fn cases(xml: &str) -> Vec<(String, Option<Outcome>)> {
    let mut cases = Vec::new();
    for case in xml.split("<TestCase ").skip(1) {
        let Some(name) = attribute(case, "name") else { continue };
        let result = case.split_once("<OverallResult ").map(|(body, result)| {
            // What it printed stands within the result.
            let printed = result.split_once("</TestCase>").map_or(result, |(printed, _)| printed);
            match attribute(result, "success").as_deref() {
                Some("true") if skipped(body) || skipped(printed) => Outcome::Skipped(reason(case)),
                Some("true") => Outcome::Passed,
                _ => Outcome::Failed(failure(body)),
            }
        });
        cases.push((name, result));
    }
    cases
}

/// HIP's tests say so on standard output.
fn skipped(text: &str) -> bool {
    text.contains("HIP_SKIP_THIS_TEST") || text.contains("Skipping test")
}

fn reason(case: &str) -> String {
    let said = case.split_once("Skipping test. Reason: ").map_or("", |(_, said)| said);
    let said = said.lines().next().unwrap_or_default().trim();
    if said.is_empty() {
        "the test skips itself".into()
    } else {
        unescape(said)
    }
}

/// What did not hold, in a line.
fn failure(body: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}"))?;
        let (_, text) = rest.split_once('>')?;
        text.split_once(&format!("</{name}>")).map(|(text, _)| one_line(text))
    };
    let place = body.split_once("<Expression success=\"false\"").and_then(|(_, rest)| attribute(rest, "line"));
    let place = place.map_or(String::new(), |line| format!("line {line}: "));
    let expanded = body.rsplit_once("<Expanded>").and_then(|(_, rest)| rest.split_once("</Expanded>"));
    let held = expanded.map(|(text, _)| one_line(text));
    let what = element("FatalErrorCondition").or_else(|| element("Exception")).or(held).or_else(|| element("Failure"));
    let info = element("Info").map_or(String::new(), |info| format!(" ({info})"));
    format!("{place}{}{info}", what.unwrap_or_default())
}

fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    unescape(&words.join(" ")).chars().take(200).collect()
}

fn attribute(text: &str, name: &str) -> Option<String> {
    let (tag, _) = text.split_once('>')?;
    let (_, rest) = tag.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| unescape(value))
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = r#"<Catch name="p"><Group name="p">
      <TestCase name="Unit_one - int" tags="[a]" filename="x.cc" line="1">
        <Section name="s"><OverallResults successes="1" failures="0" expectedFailures="0"/></Section>
        <OverallResult success="true"/>
      </TestCase>
      <TestCase name="Unit_two" filename="x.cc" line="2">
        <Info>
          Error: x
        </Info>
        <Expression success="false" type="REQUIRE" filename="x.cc" line="7">
          <Original>a == b</Original>
          <Expanded>1 == 2</Expanded>
        </Expression>
        <OverallResult success="false"/>
      </TestCase>
      <TestCase name="Unit_three" filename="x.cc" line="3">
        <OverallResult success="true">
          <StdOut>
Skipping test. Reason: no &lt;images&gt;
HIP_SKIP_THIS_TEST
          </StdOut>
        </OverallResult>
      </TestCase>
      <TestCase name="Unit_four" filename="x.cc" line="4">
"#;

    #[test]
    fn each_case_has_its_end() {
        let seen = cases(XML);
        let one = |name: &str, outcome| (name.to_owned(), outcome);
        assert_eq!(
            seen,
            [
                one("Unit_one - int", Some(Outcome::Passed)),
                one("Unit_two", Some(Outcome::Failed("line 7: 1 == 2 (Error: x)".into()))),
                one("Unit_three", Some(Outcome::Skipped("no <images>".into()))),
                one("Unit_four", None),
            ]
        );
    }
}
