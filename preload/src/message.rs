// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the driver and its GPUs warn of goes to the program's stderr, as a kernel's would go to its
//! log: a queue that stopped and why, for one. `VKFD_LOG` set to `info`, `debug` or `trace` shows
//! more, `off` nothing. `vkfd run` has checked it.

use std::fmt;
use std::io;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use vkfd_host::description::LOG_VARIABLE;

/// From now on. A program that has messages of its own through the same library keeps them to
/// itself.
pub(crate) fn install() {
    let level = std::env::var(LOG_VARIABLE).ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::WARN);
    let messages = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).event_format(Plain).finish();
    let _ = tracing::subscriber::set_global_default(messages);
}

/// `vkfd: message (field=value)`.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let more = if fields.others.is_empty() { String::new() } else { format!(" ({})", fields.others.trim_end()) };
        writeln!(to, "vkfd: {}{more}", fields.message)
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.others += &format!("{}={value:?} ", field.name());
        }
    }
}
