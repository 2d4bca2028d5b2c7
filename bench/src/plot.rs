// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Plots as SVG: lines over logarithmic axes, and bars. Colours are classes, which the page's style
//! sheet gives for light and for dark.

use std::fmt::Write;

use crate::format::number_with_power as words;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 96.0;
/// Room for the longest of `names`, with the space around them. Letters of 12.5 px are up to 8.4 px
/// wide on average, by the font.
fn room<'a>(names: impl Iterator<Item = &'a str>, around: f64) -> f64 {
    around + 8.4 * names.map(|name| name.chars().count()).max().unwrap_or(0) as f64
}
const TOP: f64 = 14.0;
const BOTTOM: f64 = 52.0;

/// A value with its quartiles.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Where on the horizontal axis.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// First and third quartile.
    pub quartiles: (f64, f64),
}

/// A line of a plot.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its colour: `c0`, `c1` and so on.
    pub class: usize,
    /// Its points, in the order of x.
    pub points: Vec<Point>,
}

/// How an axis is labelled.
pub struct Axis<'a> {
    /// What it shows, with its unit.
    pub title: &'a str,
    /// A value in words.
    pub tick: fn(f64) -> String,
    /// Whether round values are powers of two.
    pub binary: bool,
}

/// Text for SVG and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A logarithmic scale from data to the plot.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|v| *v > 0.0) {
            low = low.min(value.log10());
            high = high.max(value.log10());
        }
        // Some room on both sides, and never a scale without a length.
        (low <= high).then(|| {
            let room = ((high - low) * 0.04).max(0.12);
            Self { low: low - room, high: high + room, from, to }
        })
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.max(f64::MIN_POSITIVE).log10() - self.low) / (self.high - self.low);
        self.from + part * (self.to - self.from)
    }

    /// Powers of ten, and between them 2 and 5 if there are few; or powers of 2, a few of them.
    fn ticks(&self, binary: bool) -> Vec<f64> {
        if binary {
            let powers: Vec<f64> = (0..64)
                .map(|power| 2_f64.powi(power))
                .filter(|value| (self.low..=self.high).contains(&value.log10()))
                .collect();
            let step = powers.len().div_ceil(8).max(1);
            return powers.into_iter().step_by(step).collect();
        }
        let few = self.high - self.low < 2.2;
        let steps: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let mut ticks = Vec::new();
        let mut power = self.low.floor();
        while power <= self.high {
            ticks.extend(steps.iter().map(|step| step * 10_f64.powf(power)));
            power += 1.0;
        }
        ticks.retain(|tick| (self.low..=self.high).contains(&tick.log10()));
        ticks
    }
}

/// Lines over logarithmic axes, each named at its end, with bars for the quartiles.
pub fn lines(series: &[Series], x: &Axis<'_>, y: &Axis<'_>, label: &str) -> String {
    let points = || series.iter().flat_map(|s| &s.points);
    let right = WIDTH - room(series.iter().map(|s| s.name.as_str()), 24.0);
    let horizontal = Scale::new(points().map(|p| p.x), LEFT, right);
    let vertical = Scale::new(points().flat_map(|p| [p.y, p.quartiles.0, p.quartiles.1]), HEIGHT - BOTTOM, TOP);
    let (Some(horizontal), Some(vertical)) = (horizontal, vertical) else {
        return "<p>Nothing was measured.</p>".to_owned();
    };
    let mut svg = open(HEIGHT, label);
    let bottom = HEIGHT - BOTTOM;
    for tick in horizontal.ticks(x.binary) {
        let at = horizontal.at(tick);
        let _ = write!(svg, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>");
        let (text, y) = ((x.tick)(tick), bottom + 18.0);
        let _ = write!(svg, "<text class=\"tick\" x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>");
    }
    for tick in vertical.ticks(y.binary) {
        let at = vertical.at(tick);
        let _ = write!(svg, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
        let (text, x, y) = ((y.tick)(tick), LEFT - 8.0, at + 4.0);
        let _ = write!(svg, "<text class=\"tick\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>");
    }
    let (middle, low) = ((LEFT + right) / 2.0, HEIGHT - 12.0);
    let _ = write!(
        svg,
        "<text class=\"axis\" x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">{}</text>",
        escape(x.title)
    );
    let centre = (TOP + bottom) / 2.0;
    let _ = write!(
        svg,
        "<text class=\"axis\" transform=\"translate(16 {centre}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escape(y.title)
    );
    for series in series {
        let path: Vec<String> =
            series.points.iter().map(|p| format!("{:.1},{:.1}", horizontal.at(p.x), vertical.at(p.y))).collect();
        let class = series.class;
        let _ = write!(svg, "<polyline class=\"line c{class}\" points=\"{}\"/>", path.join(" "));
        for point in &series.points {
            let (cx, cy) = (horizontal.at(point.x), vertical.at(point.y));
            let (a, b) = (vertical.at(point.quartiles.0), vertical.at(point.quartiles.1));
            let _ = write!(
                svg,
                "<line class=\"line thin c{class}\" x1=\"{cx:.1}\" x2=\"{cx:.1}\" y1=\"{a:.1}\" y2=\"{b:.1}\"/>"
            );
            let (at, median) = ((x.tick)(point.x), (y.tick)(point.y));
            let (low, high) = ((y.tick)(point.quartiles.0), (y.tick)(point.quartiles.1));
            let hint = format!("{}, {at}: {median} (quartiles {low} to {high})", series.name);
            let hint = escape(&hint);
            let _ = write!(
                svg,
                "<circle class=\"dot c{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.2\"><title>{hint}</title></circle>"
            );
        }
    }
    // Names at the lines' ends, moved apart where they would overlap.
    let mut ends: Vec<(f64, f64, &Series)> =
        series.iter().filter_map(|s| s.points.last().map(|p| (vertical.at(p.y), horizontal.at(p.x), s))).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = TOP;
    let ends: Vec<_> = ends
        .into_iter()
        .map(|(at, x, series)| {
            let y = at.max(free);
            free = y + 15.0;
            (at, y, x, series)
        })
        .collect();
    let over = (free - 15.0 - (HEIGHT - BOTTOM)).max(0.0);
    for (at, y, x, series) in ends {
        let (class, y, label_x) = (series.class, y - over, right + 14.0);
        let (x, to) = (x + 5.0, label_x - 3.0);
        let _ = write!(
            svg,
            "<line class=\"line lead c{class}\" x1=\"{x:.1}\" y1=\"{at:.1}\" x2=\"{to:.1}\" y2=\"{y:.1}\"/>"
        );
        let (name, y) = (escape(&series.name), y + 4.0);
        let _ = write!(svg, "<text class=\"name t{class}\" x=\"{label_x:.1}\" y=\"{y:.1}\">{name}</text>");
    }
    svg.push_str("</svg>");
    svg
}

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it is of.
    pub name: String,
    /// Its colour.
    pub class: usize,
    /// Its length.
    pub value: f64,
    /// First and third quartile.
    pub quartiles: (f64, f64),
    /// The value in words.
    pub text: String,
}

/// A place on the axis of bars.
pub struct Mark<'a> {
    /// Its ends; the same twice for a line.
    pub from: f64,
    /// See `from`.
    pub to: f64,
    /// What it is.
    pub name: &'a str,
}

/// How long a bar is.
#[derive(Clone, Copy)]
pub enum Length {
    /// As its value.
    Linear,
    /// As the logarithm of its value, from a third of the least on; ticks are in these words.
    Logarithmic(fn(f64) -> String),
}

/// Horizontal bars, and marks across them.
pub fn bars(bars: &[Bar], marks: &[Mark<'_>], title: &str, label: &str, length: Length) -> String {
    const ROW: f64 = 30.0;
    const VALUES: f64 = 110.0;
    let names = room(bars.iter().map(|bar| bar.name.as_str()), 16.0);
    let values = bars.iter().flat_map(|bar| [bar.value, bar.quartiles.1]);
    let most = values.chain(marks.iter().map(|mark| mark.to)).fold(0.0, f64::max);
    if bars.is_empty() || most <= 0.0 {
        return "<p>Nothing was measured.</p>".to_owned();
    }
    let head = if marks.is_empty() { 4.0 } else { 8.0 + 15.0 * marks.len() as f64 };
    let foot = head + ROW * bars.len() as f64;
    let height = foot + 46.0;
    let values = bars.iter().flat_map(|bar| [bar.value, bar.quartiles.0]).filter(|value| *value > 0.0);
    let least = values.fold(most, f64::min) / 3.0;
    let part = |value: f64| match length {
        Length::Linear => value / most,
        Length::Logarithmic(_) => (value.max(least) / least).ln() / (most / least).ln(),
    };
    let at = |value: f64| names + part(value) * (WIDTH - names - VALUES);
    let mut svg = open(height, label);
    if let Length::Logarithmic(word) = length {
        let powers = (-12..12).map(|power| 10_f64.powi(power)).filter(|value| (least..=most).contains(value));
        for value in powers {
            let (x, low, text) = (at(value), foot + 14.0, escape(&word(value)));
            let _ = write!(svg, "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{head}\" y2=\"{foot}\"/>");
            let _ = write!(svg, "<text class=\"tick\" x=\"{x:.1}\" y=\"{low}\" text-anchor=\"middle\">{text}</text>");
        }
    }
    for (number, mark) in marks.iter().enumerate() {
        let (from, to, top) = (at(mark.from), at(mark.to), 12.0 + 15.0 * number as f64);
        let width = (to - from).max(1.5);
        let below = foot - top - 3.0;
        let _ = write!(
            svg,
            "<rect class=\"mark\" x=\"{from:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"{below:.1}\"/>",
            top + 3.0
        );
        let name = escape(mark.name);
        let _ = write!(svg, "<text class=\"tick\" x=\"{to:.1}\" y=\"{top}\" text-anchor=\"end\">{name}</text>");
    }
    for (number, bar) in bars.iter().enumerate() {
        let y = head + ROW * number as f64 + 5.0;
        let (name, class, width, middle) = (escape(&bar.name), bar.class, at(bar.value) - names, y + 10.0);
        let base = middle + 4.0;
        let _ =
            write!(svg, "<text class=\"tick\" x=\"{}\" y=\"{base}\" text-anchor=\"end\">{name}</text>", names - 10.0);
        let _ = write!(
            svg,
            "<rect class=\"bar f{class}\" x=\"{names}\" y=\"{y}\" width=\"{width:.1}\" height=\"20\" rx=\"2\"><title>{name}: {} (quartiles {} to \
             {})</title></rect>",
            escape(&bar.text),
            words(bar.quartiles.0),
            words(bar.quartiles.1)
        );
        let (a, b) = (at(bar.quartiles.0), at(bar.quartiles.1));
        let _ = write!(svg, "<line class=\"whisker\" x1=\"{a:.1}\" x2=\"{b:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>");
        let (x, text) = (at(bar.value).max(b) + 8.0, escape(&bar.text));
        let _ = write!(svg, "<text class=\"value\" x=\"{x:.1}\" y=\"{base}\">{text}</text>");
    }
    let (middle, low) = ((names + WIDTH - VALUES) / 2.0, height - 10.0);
    let _ = write!(svg, "<line class=\"zero\" x1=\"{names}\" x2=\"{names}\" y1=\"{head}\" y2=\"{foot}\"/>");
    let title = escape(title);
    let _ = write!(svg, "<text class=\"axis\" x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">{title}</text></svg>");
    svg
}

fn open(height: f64, label: &str) -> String {
    let label = escape(label);
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_map_ends_and_have_ticks_in_between() {
        let scale = Scale::new([1.0, 1000.0].into_iter(), 0.0, 100.0).unwrap();
        assert!(scale.at(1.0) > 0.0 && scale.at(1000.0) < 100.0 && scale.at(1.0) < scale.at(10.0));
        let ticks: Vec<String> = scale.ticks(false).iter().map(|tick| format!("{tick:.0}")).collect();
        assert_eq!(ticks, ["1", "10", "100", "1000"]);
        assert!(Scale::new([0.0].into_iter(), 0.0, 1.0).is_none());
        assert!(Scale::new([5.0].into_iter(), 0.0, 1.0).unwrap().ticks(false).len() <= 2);
    }

    #[test]
    fn ticks_of_bytes_are_powers_of_two() {
        let scale = Scale::new([4096.0, 67_108_864.0].into_iter(), 0.0, 100.0).unwrap();
        let ticks = scale.ticks(true);
        assert!(ticks.len() <= 8 && ticks.iter().all(|tick| tick.log2().fract() == 0.0), "{ticks:?}");
    }

    #[test]
    fn long_names_have_room() {
        let bar = |name: &str, value: f64| Bar {
            name: name.to_owned(),
            class: 0,
            value,
            quartiles: (value, value),
            text: String::new(),
        };
        let long = "a name of more than forty letters, or so it is";
        let svg = bars(&[bar(long, 1e-6), bar("b", 1e-3)], &[], "", "", Length::Logarithmic(|v| v.to_string()));
        let zero = svg.split("class=\"zero\" x1=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert!(zero.and_then(|x| x.parse::<f64>().ok()).is_some_and(|x| x > 6.5 * long.len() as f64), "{svg}");
        // A thousand times as much is longer, and not a thousand times.
        let widths: Vec<f64> =
            svg.split(" width=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok()).collect();
        assert!(widths[0] > 10.0 && widths[1] > 2.0 * widths[0] && widths[1] < 20.0 * widths[0], "{widths:?}");
    }

    #[test]
    fn text_cannot_leave_its_place() {
        let series = Series {
            name: "<script>".to_owned(),
            class: 0,
            points: vec![Point { x: 1.0, y: 1.0, quartiles: (1.0, 2.0) }],
        };
        let axis = Axis { title: "a & b", tick: |v| v.to_string(), binary: false };
        let svg = lines(&[series], &axis, &axis, "\"");
        assert!(!svg.contains("<script>") && svg.contains("a &amp; b") && svg.contains("&quot;"));
        assert!(lines(&[], &axis, &axis, "").contains("Nothing"));
        assert!(bars(&[], &[Mark { from: 1.0, to: 1.0, name: "" }], "", "", Length::Linear).contains("Nothing"));
    }
}
