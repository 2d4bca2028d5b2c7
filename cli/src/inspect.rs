// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd inspect`: what the driver has for a process: capabilities, limits, nodes, objects, ranges,
//! counters, page-table entries.

mod svm;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{json, Map, Value};
use vkfd_client::uapi::queue::{
    QUEUE_TYPE_COMPUTE_AQL, QUEUE_TYPE_SDMA, QUEUE_TYPE_SDMA_BY_ENG_ID, QUEUE_TYPE_SDMA_XGMI,
};
use vkfd_client::uapi::vkfd as abi;
use vkfd_client::{
    AllocOptions, BoInfo, Client, GpuId, GpuVa, Handle, ProcessInfo, QueueInfo, RangeInfo, RegisterOptions, PAGE,
};

use crate::engine::Engine;
use crate::format::{bytes, count, counted, Align, Table};
use crate::guest::Guest;
use crate::layout::Layout;
use crate::report::Output;
use crate::scatter::Scatter;
use crate::session::{Session, SessionArgs};

/// Entries shown of a list unless all are asked for.
const FIRST: usize = 10;

/// What to show.
#[derive(Args, Clone, Debug, Default)]
pub struct Detail {
    /// Show all ranges, not the first ten of each object
    #[arg(long)]
    pub all: bool,

    /// Show page-table entries of registered memory
    #[arg(long)]
    pub ptes: bool,
}

/// The options of `vkfd inspect`.
#[derive(Args, Clone, Debug)]
pub struct InspectArgs {
    #[command(flatten)]
    session: SessionArgs,

    #[command(flatten)]
    detail: Detail,

    /// The scatter list that is registered, as for `vkfd demo`; not used with --device
    #[arg(long, value_name = "NAME|FILE", default_value = "fresh-64M")]
    list: String,

    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
///
/// What kept the state from being made or read.
pub fn run(args: &InspectArgs) -> Result<ExitCode> {
    let output = Output::new(args.json);
    let list = Scatter::load(&args.list)?;
    let session = Session::open(&args.session)?;
    let client = &session.client;
    if session.machine.is_none() {
        show(&output, &session, &args.detail)?;
        return Ok(ExitCode::SUCCESS);
    }
    let guest = Guest::new(&list, &Layout::new(&list, 64 << 30)?, 1)?;
    // SAFETY: the memory is only copied to and from, and no work of a GPU touches it.
    let registered = unsafe { client.register_ranges(&guest.userptr_ranges(), &RegisterOptions::default())? };
    let vram = client.alloc(&AllocOptions::vram(client.gpus()[0].id, 2 << 20))?;
    let engine = Engine::new(client, client.gpus()[0].id, 1)?;
    output.text(&format!(
        "The driver runs in this process and has no other program's state. For something to look at, this program has registered the \
         list {} and made queues, and memory for them.",
        list.name
    ))?;
    output.line("")?;
    show(&output, &session, &args.detail)?;
    // The registration goes before the memory does.
    drop((registered, vram, engine));
    Ok(ExitCode::SUCCESS)
}

fn show(output: &Output, session: &Session, detail: &Detail) -> Result<()> {
    output.text(&session.describe())?;
    print(output, &session.client, detail)?;
    if output.is_json() {
        let mut document = json!({ "vkfd": env!("CARGO_PKG_VERSION"), "command": "inspect", "kfd": session.json() });
        if let (Some(document), Value::Object(state)) = (document.as_object_mut(), json_of(&session.client, detail)?) {
            document.extend(state);
        }
        output.document(&document)?;
    }
    Ok(())
}

/// Prints what the driver reports a client.
///
/// # Errors
///
/// What a query or writing failed with.
pub fn print(output: &Output, client: &Client, detail: &Detail) -> Result<()> {
    let (major, minor) = client.version();
    output.heading("KFD")?;
    output.line(&format!("interface {major}.{minor}, {}", caps_words(client)))?;
    for (name, value) in limits(client) {
        output.line(&format!("  {name:<44} {value}"))?;
    }
    output.heading("Nodes")?;
    lines(output, &nodes(client))?;
    if !client.caps().snapshot {
        output.line("")?;
        return Ok(output.text("This KFD is not vkfd and does not show its objects, ranges and counters.")?);
    }
    output.heading("Process")?;
    for (name, value) in counters(&client.snapshot()?) {
        output.line(&format!(
            "  {:<44} {}",
            name.replace('_', " "),
            if name.ends_with("bytes") { bytes(value) } else { count(value) }
        ))?;
    }
    if client.caps().queues {
        output.heading("Queues")?;
        lines(output, &queues(&client.queues()?))?;
    }
    svm::print(output, client, detail)?;
    let bos = client.bos()?;
    output.heading("Objects (BOs)")?;
    lines(output, &objects(&bos))?;
    for bo in bos.iter().filter(|bo| bo.kind == abi::BO_KIND_USERPTR) {
        let all = client.ranges(Handle(bo.handle))?;
        let shown = if detail.all { all.len() } else { all.len().min(FIRST) };
        output.heading(&format!("Ranges of object {:#x}", bo.handle))?;
        lines(output, &ranges(&all[..shown]))?;
        if shown < all.len() {
            output.line(&format!("... and {} more (inspect --all)", count((all.len() - shown) as u64)))?;
        }
        for gpu in client.gpus().iter().filter(|_| detail.ptes) {
            let pages = usize::try_from(bo.size / PAGE)?;
            let entries = client.ptes(gpu.id, GpuVa(bo.gpu_va), pages)?;
            let found = Entries::of(&entries, GpuVa(bo.gpu_va));
            output.heading(&format!("Page-table entries of object {:#x} on GPU {}", bo.handle, gpu.id))?;
            output.text(&format!(
                "{} of {} have an entry, in {}; the largest is {}. A fragment is neighbouring pages that the GPU translates as one.",
                count(found.pages),
                counted(pages as u64, "page"),
                counted(found.fragments, "fragment"),
                bytes(found.largest * PAGE)
            ))?;
            let shown = if detail.all { pages } else { pages.min(FIRST) };
            lines(output, &ptes(GpuVa(bo.gpu_va), &entries[..shown]))?;
        }
    }
    Ok(())
}

fn lines(output: &Output, table: &Table) -> std::io::Result<()> {
    table.lines().iter().try_for_each(|line| output.line(&format!("  {line}")))
}

fn caps_words(client: &Client) -> String {
    let caps = client.caps();
    if !caps.vkfd {
        return "which is not vkfd: no batch registration, no queries".to_owned();
    }
    let has = [
        (caps.batch, "batch registration (command)"),
        (caps.batch_flag, "batch registration (flag)"),
        (caps.read_only, "registration of read-only memory"),
        (caps.xnack, "XNACK"),
        (caps.snapshot, "snapshots"),
        (caps.queues, "snapshots of queues"),
        (caps.svm, "SVM"),
    ];
    let words: Vec<&str> = has.into_iter().filter_map(|(has, word)| has.then_some(word)).collect();
    format!("vkfd, with {}", words.join(", "))
}

fn limits(client: &Client) -> Vec<(&'static str, String)> {
    let caps = client.caps();
    if !caps.vkfd {
        return Vec::new();
    }
    vec![
        ("most ranges in one batch", count(caps.max_ranges)),
        ("most bytes that can be registered now", bytes(caps.max_bytes)),
        ("most notifier windows of an object", count(caps.max_windows)),
        ("longest gap within a notifier window", bytes(caps.window_gap)),
        ("a registration gives up after", format!("{} ms", caps.register_deadline_ms)),
        ("longest pause between two tries of a restore", format!("{} ms", caps.restore_pause_ms)),
    ]
}

fn nodes(client: &Client) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("node", Right),
        ("kind", Left),
        ("gpu_id", Left),
        ("name", Left),
        ("cores", Right),
        ("memory", Right),
    ]);
    for node in client.nodes() {
        table.row(match &node.gpu {
            Some(gpu) => vec![
                node.number.to_string(),
                "GPU".into(),
                gpu.id.to_string(),
                gpu.name.clone(),
                "-".into(),
                bytes(gpu.vram_bytes),
            ],
            None => vec![
                node.number.to_string(),
                "CPU".into(),
                "-".into(),
                "-".into(),
                node.cpu_cores.to_string(),
                bytes(node.memory_bytes),
            ],
        });
    }
    table
}

/// All of the process's numbers, by name.
fn counters(info: &ProcessInfo) -> Vec<(&'static str, u64)> {
    macro_rules! named {
        ($($field:ident)+) => { vec![$((stringify!($field), u64::from(info.$field))),+] };
    }
    named!(bos userptr_bos userptr_ranges userptr_bytes gtt_bytes vram_bytes notifiers queues events vms page_table_bytes
        driver_bytes invalidations ranges_invalidated evictions restores restore_runs ranges_restored register_retries
        gpu_faults tlb_flushes evicted xnack)
}

fn queue_state(queue: &QueueInfo) -> String {
    match queue.state {
        abi::QUEUE_STATE_RUNNING => "running".to_owned(),
        abi::QUEUE_STATE_OFF => "off".to_owned(),
        abi::QUEUE_STATE_FAULTED => format!("stopped by a page fault at {:#x}", queue.fault_va),
        abi::QUEUE_STATE_BROKEN => "stopped by something it cannot execute".to_owned(),
        _ => "unknown".to_owned(),
    }
}

fn queue_kind(queue: &QueueInfo) -> &'static str {
    match queue.queue_type {
        QUEUE_TYPE_SDMA | QUEUE_TYPE_SDMA_XGMI | QUEUE_TYPE_SDMA_BY_ENG_ID => "SDMA",
        QUEUE_TYPE_COMPUTE_AQL => "AQL",
        _ => "PM4",
    }
}

fn queues(list: &[QueueInfo]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("queue", Right),
        ("GPU", Right),
        ("kind", Left),
        ("ring", Right),
        ("size", Right),
        ("state", Left),
    ]);
    for queue in list {
        table.row(vec![
            queue.queue_id.to_string(),
            format!("{:#x}", queue.gpu_id),
            queue_kind(queue).to_owned(),
            format!("{:#x}", queue.ring),
            bytes(queue.ring_size),
            queue_state(queue),
        ]);
    }
    table
}

fn kind(bo: &BoInfo) -> &'static str {
    match bo.kind {
        abi::BO_KIND_VRAM => "VRAM",
        abi::BO_KIND_GTT => "GTT",
        abi::BO_KIND_USERPTR => "userptr",
        abi::BO_KIND_DOORBELL => "doorbell",
        abi::BO_KIND_MMIO => "MMIO",
        _ => "unknown",
    }
}

fn objects(bos: &[BoInfo]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("handle", Right),
        ("kind", Left),
        ("GPU address", Right),
        ("size", Right),
        ("flags", Right),
        ("mapped on GPUs", Right),
        ("ranges", Right),
        ("invalid", Right),
        ("gone", Right),
        ("windows", Right),
        ("driver memory", Right),
    ]);
    for bo in bos {
        let userptr = bo.kind == abi::BO_KIND_USERPTR;
        let only = |n: u64| if userptr { count(n) } else { "-".to_owned() };
        table.row(vec![
            format!("{:#x}", bo.handle),
            kind(bo).to_owned(),
            format!("{:#x}", bo.gpu_va),
            bytes(bo.size),
            format!("{:#x}", bo.flags),
            bo.mapped_gpus.count_ones().to_string(),
            only(bo.ranges),
            only(bo.invalid_ranges),
            only(bo.gone_ranges),
            only(bo.windows),
            bytes(bo.driver_bytes),
        ]);
    }
    table
}

fn state(range: &RangeInfo) -> &'static str {
    match range.state {
        abi::RANGE_INVALID => "invalid",
        abi::RANGE_VALID => "valid",
        abi::RANGE_GONE => "gone",
        abi::RANGE_DENIED => "denied",
        _ => "unknown",
    }
}

fn ranges(list: &[RangeInfo]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("number", Right),
        ("CPU address", Right),
        ("GPU address", Right),
        ("size", Right),
        ("state", Left),
        ("invalidations", Right),
    ]);
    for (number, range) in list.iter().enumerate() {
        table.row(vec![
            number.to_string(),
            format!("{:#x}", range.cpu_start),
            format!("{:#x}", range.gpu_va),
            bytes(range.size),
            state(range).to_owned(),
            count(range.generation),
        ]);
    }
    table
}

fn ptes(start: GpuVa, entries: &[u64]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("GPU address", Right),
        ("entry", Right),
        ("points to", Left),
        ("access", Left),
        ("fragment", Right),
    ]);
    let mut at = start;
    for entry in entries {
        let pte = Pte(*entry);
        table.row(vec![
            at.to_string(),
            format!("{entry:#018x}"),
            pte.target(),
            pte.access(),
            if pte.is_valid() { bytes(pte.pages() * PAGE) } else { "-".to_owned() },
        ]);
        at = at.offset(PAGE);
    }
    table
}

/// A raw page-table entry in the gfx9 format.
#[derive(Clone, Copy)]
struct Pte(u64);

impl Pte {
    fn bit(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }

    fn is_valid(self) -> bool {
        self.bit(0)
    }

    /// Pages of its fragment; an entry that maps 2 MiB itself has 512.
    fn pages(self) -> u64 {
        if self.bit(54) {
            512
        } else {
            1 << (self.0 >> 7 & 0x1f)
        }
    }

    fn target(self) -> String {
        let address = self.0 & 0x0000_ffff_ffff_f000;
        match (self.is_valid(), self.bit(1)) {
            (false, _) => "nothing".to_owned(),
            (true, true) => format!("system memory {address:#x}"),
            (true, false) => format!("VRAM {address:#x}"),
        }
    }

    fn access(self) -> String {
        [(5, 'r'), (6, 'w'), (4, 'x')].map(|(bit, c)| if self.bit(bit) { c } else { '-' }).iter().collect()
    }
}

/// What a run of page-table entries comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Pages that have an entry.
    pub pages: u64,
    pub fragments: u64,
    /// Pages of the largest.
    pub largest: u64,
}

impl Entries {
    /// Counts entries of the pages from `va` on. A fragment is aligned to its size.
    pub fn of(entries: &[u64], va: GpuVa) -> Self {
        let mut found = Self::default();
        // The first page after the fragment that was counted last.
        let mut end = 0;
        for (page, entry) in (va.0 / PAGE..).zip(entries) {
            let pte = Pte(*entry);
            if !pte.is_valid() {
                continue;
            }
            found.pages += 1;
            if page >= end {
                let pages = pte.pages();
                found.fragments += 1;
                found.largest = found.largest.max(pages);
                end = page - page % pages + pages;
            }
        }
        found
    }
}

fn json_of(client: &Client, detail: &Detail) -> Result<Value> {
    let caps = client.caps();
    let (major, minor) = client.version();
    let mut state = json!({
        "version": format!("{major}.{minor}"),
        "caps": {
            "vkfd": caps.vkfd, "batch": caps.batch, "batch_flag": caps.batch_flag, "read_only": caps.read_only,
            "xnack": caps.xnack, "snapshot": caps.snapshot, "max_ranges": caps.max_ranges, "max_bytes": caps.max_bytes,
            "max_windows": caps.max_windows, "window_gap": caps.window_gap,
            "register_deadline_ms": caps.register_deadline_ms, "restore_pause_ms": caps.restore_pause_ms,
        },
        "nodes": client.nodes().iter().map(|node| json!({
            "number": node.number, "cpu_cores": node.cpu_cores, "memory_bytes": node.memory_bytes,
            "gpu_id": node.gpu.as_ref().map(|gpu| gpu.id.to_string()),
        })).collect::<Vec<_>>(),
    });
    if !caps.snapshot {
        return Ok(state);
    }
    let process: Map<String, Value> =
        counters(&client.snapshot()?).into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let bos = client.bos()?.iter().map(|bo| bo_json(client, bo, detail)).collect::<Result<Vec<_>>>()?;
    if caps.queues {
        let queues = client.queues()?;
        let queues = queues.iter().map(|queue| {
            json!({
                "queue_id": queue.queue_id, "gpu_id": format!("{:#x}", queue.gpu_id), "kind": queue_kind(queue),
                "ring": format!("{:#x}", queue.ring), "ring_bytes": queue.ring_size, "state": queue_state(queue),
            })
        });
        state["queues"] = queues.collect::<Vec<_>>().into();
    }
    if caps.svm {
        state["svm"] = svm::json_of(client)?;
    }
    state["process"] = process.into();
    state["bos"] = bos.into();
    Ok(state)
}

fn bo_json(client: &Client, bo: &BoInfo, detail: &Detail) -> Result<Value> {
    let mut value = json!({
        "handle": format!("{:#x}", bo.handle), "kind": kind(bo), "gpu_va": format!("{:#x}", bo.gpu_va), "bytes": bo.size,
        "flags": format!("{:#x}", bo.flags), "gpu_id": GpuId(bo.gpu_id).to_string(), "mapped_gpus": bo.mapped_gpus,
        "driver_bytes": bo.driver_bytes,
    });
    if bo.kind != abi::BO_KIND_USERPTR {
        return Ok(value);
    }
    let list = client.ranges(Handle(bo.handle))?;
    let shown = if detail.all { list.len() } else { list.len().min(FIRST) };
    value["range_count"] = bo.ranges.into();
    value["invalid_ranges"] = bo.invalid_ranges.into();
    value["gone_ranges"] = bo.gone_ranges.into();
    value["windows"] = bo.windows.into();
    let range_json = |range: &RangeInfo| {
        json!({
            "cpu_start": format!("{:#x}", range.cpu_start), "gpu_va": format!("{:#x}", range.gpu_va), "bytes": range.size,
            "state": state(range), "generation": range.generation,
        })
    };
    value["ranges"] = list[..shown].iter().map(range_json).collect::<Vec<_>>().into();
    if detail.ptes {
        let mut tables = Vec::new();
        for gpu in client.gpus() {
            let pages = usize::try_from(bo.size / PAGE)?;
            let entries = client.ptes(gpu.id, GpuVa(bo.gpu_va), pages)?;
            let found = Entries::of(&entries, GpuVa(bo.gpu_va));
            let shown = if detail.all { pages } else { pages.min(FIRST) };
            tables.push(json!({
                "gpu_id": gpu.id.to_string(), "pages": found.pages, "fragments": found.fragments,
                "largest_fragment_bytes": found.largest * PAGE,
                "entries": entries[..shown].iter().map(|entry| format!("{entry:#018x}")).collect::<Vec<_>>(),
            }));
        }
        value["ptes"] = tables.into();
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(fragment: u64) -> u64 {
        1 | 1 << 1 | 1 << 5 | 1 << 6 | fragment << 7 | 0x1234_5000
    }

    #[test]
    fn fragments_are_counted_once_and_by_alignment() {
        let va = GpuVa(0x10_0000);
        assert_eq!(Entries::of(&[], va), Entries::default());
        let four = [entry(2); 4];
        assert_eq!(Entries::of(&four, va), Entries { pages: 4, fragments: 1, largest: 4 });
        // From the middle of a fragment on it is cut, and a hole is not an entry.
        assert_eq!(Entries::of(&four, va.offset(2 * PAGE)), Entries { pages: 4, fragments: 2, largest: 4 });
        let mixed = [entry(0), 0, entry(1), entry(1), entry(0)];
        assert_eq!(Entries::of(&mixed, va), Entries { pages: 4, fragments: 3, largest: 2 });
        let huge = vec![entry(0) | 1 << 54; 1024];
        assert_eq!(Entries::of(&huge, GpuVa(4 << 20)), Entries { pages: 1024, fragments: 2, largest: 512 });
    }

    #[test]
    fn an_entry_is_put_into_words() {
        let pte = Pte(entry(3));
        assert_eq!((pte.pages(), pte.access()), (8, "rw-".to_owned()));
        assert_eq!(pte.target(), "system memory 0x12345000");
        assert_eq!(Pte(0).target(), "nothing");
        assert_eq!(Pte(1 | 0x7000).target(), "VRAM 0x7000");
    }
}
