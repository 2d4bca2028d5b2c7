// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the driver and its GPUs warn of goes to the program's stderr, as a kernel's would go to its
//! log: a queue that stopped and why, for one. `VKFD_LOG` set to `info`, `debug` or `trace` shows
//! more, `off` nothing. `vkfd run` has checked it.
//!
//! The subscriber takes no lock of the loader either: the thread may be a GPU's, and a constructor
//! inside dlopen may wait for it. So there is no thread-local data with a destructor here, as the
//! usual subscribers have.

use std::fmt;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use vkfd_host::description::LOG_VARIABLE;
use vkfd_rt::message::write;

/// From now on. A program that has messages of its own through the same library keeps them to
/// itself.
pub(crate) fn install() {
    let level = std::env::var(LOG_VARIABLE).ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::WARN);
    let _ = tracing::subscriber::set_global_default(Messages(level));
}

/// Writes `vkfd: message (field=value)`.
struct Messages(LevelFilter);

impl Subscriber for Messages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.0
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0)
    }

    // There are no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        match fields.others.trim_end() {
            "" => write(format_args!("vkfd: {}", fields.message)),
            others => write(format_args!("vkfd: {} ({others})", fields.message)),
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
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
