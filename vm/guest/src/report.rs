// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The way of records to the host.
//!
//! One lock around the port keeps lines whole; a write returns when the host has taken the bytes,
//! so nothing is lost at power-off.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use vkfd_guest::{Record, REPORT_PORT};

/// Where records go: the host's port, or the console where there is none (an interactive guest).
#[derive(Clone)]
pub struct Report(Option<Arc<Mutex<File>>>);

impl Report {
    /// Opens the port.
    pub fn open() -> Result<Self> {
        let Some(path) = port() else { return Ok(Self(None)) };
        let file = File::options().write(true).open(&path).with_context(|| format!("open {}", path.display()))?;
        Ok(Self(Some(Arc::new(Mutex::new(file)))))
    }

    /// Sends a record. If the host is gone there is nobody to tell, so errors are dropped.
    pub fn send(&self, record: &Record) {
        let Some(port) = &self.0 else {
            return show(record);
        };
        if let Ok(mut line) = serde_json::to_vec(record) {
            line.push(b'\n');
            let _ = port.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
        }
    }
}

fn port() -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    let port = ports
        .flatten()
        .find(|port| fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == REPORT_PORT))?;
    Some(PathBuf::from("/dev").join(port.file_name()))
}

/// A record for a human at the console.
fn show(record: &Record) {
    match record {
        Record::Output { line, .. } => println!("{line}"),
        Record::Ended { program, ending, seconds } => println!("{program} {ending} after {seconds:.1} s"),
        Record::Loaded { module, error: None } => println!("{module} is loaded"),
        Record::Unloaded { module, error: None } => println!("{module} is unloaded"),
        Record::Loaded { error: Some(error), .. }
        | Record::Unloaded { error: Some(error), .. }
        | Record::Broken { error } => println!("error: {error}"),
        Record::Left { site, bytes, calls } => println!("left behind: {calls} allocations, {bytes} bytes, of {site}"),
        Record::Lockdep { on: false } => println!("lockdep has switched itself off"),
        Record::Booted { .. } | Record::Started { .. } | Record::Lockdep { on: true } | Record::Finished => {}
    }
}
