// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The verdicts of a Catch2 program, from its XML.
//!
//! Mechanism: Catch2 (version 2) writes `<TestCase name="...">` when a case begins and
//! `<OverallResult success="..."/>` when it has ended. In between are expressions that did not hold
//! and exceptions, and at the end the case's output. A case with a beginning and no end took the
//! program with it, and the XML ends there.
//!
//! A program may print between these elements whatever it likes. A `&` of its own is text, and
//! reading goes on at the line behind one that is no XML.

use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::Reader;

use super::suite::Outcome;

/// Elements that say why a case failed, the most telling first.
const CAUSES: [&str; 4] = ["FatalErrorCondition", "Exception", "Expanded", "Failure"];

/// What is known of a case.
#[derive(Default)]
struct Case {
    name: String,
    passed: Option<bool>,
    /// The line of the first expression that did not hold.
    line: Option<String>,
    /// Texts by their elements, in their order.
    texts: Vec<(String, String)>,
}

impl Case {
    /// The first text of an element; of expressions the last counts.
    fn text(&self, element: &str) -> Option<String> {
        let mut texts = self.texts.iter().filter(|(of, _)| of == element);
        let found = if element == "Expanded" { texts.next_back() } else { texts.next() };
        found.map(|(_, text)| one_line(text))
    }

    fn outcome(&self) -> Option<Outcome> {
        let all = || self.texts.iter().map(|(_, text)| text.as_str());
        Some(match self.passed? {
            true if all().any(skipped) => Outcome::Skipped(reason(all())),
            true => Outcome::Passed,
            false => Outcome::Failed(self.failure()),
        })
    }

    /// The condition that did not hold, in a line.
    fn failure(&self) -> String {
        let place = self.line.as_ref().map_or(String::new(), |line| format!("line {line}: "));
        let cause = CAUSES.iter().find_map(|element| self.text(element)).unwrap_or_default();
        let info = self.text("Info").map_or(String::new(), |info| format!(" ({info})"));
        format!("{place}{cause}{info}")
    }
}

/// Cases in the order in which they began, with their outcome; none for one that has not ended.
pub fn cases(xml: &str) -> Vec<(String, Option<Outcome>)> {
    let reader = |xml| {
        let mut reader = Reader::from_str(xml);
        // A program that crashed has closed nothing.
        reader.config_mut().check_end_names = false;
        reader.config_mut().allow_dangling_amp = true;
        reader
    };
    let (mut rest, mut from) = (xml, reader(xml));
    let (mut cases, mut elements): (Vec<Case>, Vec<(String, String)>) = (Vec::new(), Vec::new());
    loop {
        match from.read_event() {
            Ok(Event::Start(tag)) => {
                begin(&tag, &mut cases);
                elements.push((name(&tag), String::new()));
            }
            Ok(Event::Empty(tag)) => begin(&tag, &mut cases),
            Ok(Event::Text(text)) => add(&mut elements, &text.decode().unwrap_or_default()),
            Ok(Event::CData(text)) => add(&mut elements, &text.decode().unwrap_or_default()),
            Ok(Event::GeneralRef(entity)) => {
                let number = entity.resolve_char_ref().ok().flatten().map(String::from);
                let known = entity.decode().ok().and_then(|name| resolve_predefined_entity(&name));
                add(&mut elements, &number.or(known.map(str::to_owned)).unwrap_or_default());
            }
            Ok(Event::End(_)) => {
                if let (Some(text), Some(case)) = (elements.pop(), cases.last_mut()) {
                    case.texts.push(text);
                }
            }
            Ok(Event::Eof) => break,
            Err(_) => {
                let at = usize::try_from(from.error_position()).unwrap_or(usize::MAX);
                let Some((_, behind)) = rest.get(at..).and_then(|rest| rest.split_once('\n')) else { break };
                rest = behind;
                from = reader(rest);
            }
            Ok(_) => {}
        }
    }
    let ended = |case: Case| {
        let outcome = case.outcome();
        (case.name, outcome)
    };
    cases.into_iter().map(ended).collect()
}

fn begin(tag: &BytesStart<'_>, cases: &mut Vec<Case>) {
    match (name(tag).as_str(), cases.last_mut()) {
        ("TestCase", _) => {
            let name = attribute(tag, "name").unwrap_or_default();
            cases.push(Case { name, ..Case::default() });
        }
        ("OverallResult", Some(case)) => case.passed = attribute(tag, "success").map(|success| success == "true"),
        ("Expression", Some(case)) if attribute(tag, "success").as_deref() == Some("false") => {
            case.line = case.line.take().or_else(|| attribute(tag, "line"));
        }
        _ => {}
    }
}

fn name(tag: &BytesStart<'_>) -> String {
    String::from_utf8_lossy(tag.name().as_ref()).into_owned()
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let attribute = tag.try_get_attribute(name).ok().flatten()?;
    attribute.unescape_value().ok().map(|value| value.into_owned())
}

fn add(elements: &mut [(String, String)], text: &str) {
    if let Some((_, all)) = elements.last_mut() {
        all.push_str(text);
    }
}

/// HIP's tests say so on standard output.
fn skipped(text: &str) -> bool {
    text.contains("HIP_SKIP_THIS_TEST") || text.contains("Skipping test")
}

fn reason<'a>(mut texts: impl Iterator<Item = &'a str>) -> String {
    let said = texts.find_map(|text| text.split_once("Skipping test. Reason: ")).map_or("", |(_, said)| said);
    let said = said.lines().next().unwrap_or_default().trim();
    if said.is_empty() {
        "the test skips itself".into()
    } else {
        said.into()
    }
}

fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = r#"<Catch name="p"><Group name="p">
      <TestCase name="Unit_one - int" tags="[a]" filename="x.cc" line="1">
TRACE: hipMalloc(&A, 100) <- here
1 < 2 && <!x
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
