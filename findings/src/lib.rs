// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Findings of checks of GPU code: one model for static checks, which read a code object, and for
//! dynamic ones, which see it run.
//!
//! A check makes a [`Finding`]: a rule, a place, and the facts that a person needs to act. A
//! [`Findings`] keeps the same finding once, with a count, in a bounded number of bytes. Renderers
//! write text for people, JSON, and SARIF for code hosts. Nothing here knows a target or an
//! instruction.
//!
//! | module | |
//! |---|---|
//! | `finding` | a finding and its parts |
//! | `list` | the bounded list |
//! | `pattern`, `suppression` | patterns of names; the file of findings that are accepted |
//! | `text`, `json`, `sarif` | renderers |
//! | `transport` | from one process to another |

mod finding;
mod json;
mod list;
mod pattern;
mod sarif;
mod suppression;
mod text;
mod transport;

pub use finding::{
    Access, Address, Allocation, Check, Finding, Key, Note, Place, Position, Severity, Source, Thread, UnknownCheck,
};
pub use json::json;
pub use list::{Bounds, Counted, Findings, Outcome};
pub use pattern::Pattern;
pub use sarif::{sarif, Rule, Tool};
pub use suppression::{BadLine, Suppressions};
pub use text::text;
pub use transport::{from_transport, to_transport, BadTransport, Extent, Report};
