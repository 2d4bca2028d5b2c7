// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The list of processes for monitors, `/sys/class/kfd/kfd/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use vkfd_client::{AllocOptions, Buffer, Client, ClientError, CopyQueue, GpuId};

use super::client_process::{end_with, ClientProcess, Scenario};
use super::hostile::device;
use crate::stir::Stirrer;
use crate::verdict::Stop;

const LIST: &str = "/sys/class/kfd/kfd/proc";
const BYTES: u64 = 8 << 20;
/// How long a process that has ended may stay there.
const PATIENCE: Duration = Duration::from_secs(30);
/// Clients that are killed while somebody reads.
const ROUNDS: u32 = 12;

fn of(pid: u32) -> PathBuf {
    Path::new(LIST).join(pid.to_string())
}

/// The files at and below `directory`, by their paths in it.
fn files(directory: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            all.extend(files(&entry.path())?.into_iter().map(|(path, text)| (format!("{name}/{path}"), text)));
        } else {
            all.insert(name, fs::read_to_string(entry.path())?);
        }
    }
    Ok(all)
}

fn number(files: &BTreeMap<String, String>, path: &str) -> Result<u64, Stop> {
    let Some(text) = files.get(path) else { bail!("{path} is not in {files:?}") };
    match text.trim_end().parse() {
        Ok(number) => Ok(number),
        Err(_) => bail!("{path}: {text:?}"),
    }
}

/// Compute units that a process's waves would fill, where the GPU counts them.
fn units(pid: u32, gpu: u32) -> Result<Option<u64>, Stop> {
    let (files, path) = (files(&of(pid))?, format!("stats_{gpu}/cu_occupancy"));
    files.contains_key(&path).then(|| number(&files, &path)).transpose()
}

fn queues(pid: u32) -> Result<Vec<PathBuf>, Stop> {
    fs::read_dir(of(pid).join("queues"))?.map(|entry| Ok(entry?.path())).collect()
}

fn until_gone(pid: u32) -> Result<(), Stop> {
    let start = Instant::now();
    while of(pid).exists() {
        ensure!(start.elapsed() < PATIENCE, "process {pid} has ended, and is in {LIST} after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A program is there from its open of the device to the end of its last file, with its memory and
/// its queues of each GPU. A child of a fork is not there, but keeps the file.
pub(super) fn while_it_is_open() -> Result<(), Stop> {
    let world = super::world()?;
    let gpus: Vec<u32> = world.client().gpus().iter().map(|gpu| gpu.id.0).collect();
    let mut client = ClientProcess::start("listed", None)?;
    let pid = client.id();
    client.expect("started")?;
    ensure!(!of(pid).exists(), "it has not opened the device");

    client.tell("open")?;
    client.expect("opened")?;
    let begun = files(&of(pid))?;
    ensure_eq!(begun.get("pasid").map(String::as_str), Some("0\n"), "{begun:?}");
    for gpu in &gpus {
        for path in ["vram_", "stats_", "counters_"].iter().zip(["", "/evicted_ms", "/faults"]) {
            number(&begun, &format!("{}{gpu}{}", path.0, path.1))?;
        }
    }
    ensure_eq!(queues(pid)?.len(), 0, "{begun:?}");

    client.tell("work")?;
    let gpu: u32 = client.expect("worked")?.parse().map_err(|_| anyhow::anyhow!("no number"))?;
    let now = files(&of(pid))?;
    let vram = format!("vram_{gpu}");
    ensure_eq!(number(&now, &vram)?, number(&begun, &vram)? + BYTES, "{now:?}");
    let found = queues(pid)?;
    ensure_eq!(found.len(), 2, "{now:?}");
    for queue in found {
        let [owner, size, kind] = ["gpuid", "size", "type"].map(|name| fs::read_to_string(queue.join(name)));
        // An SDMA queue's type, without a new line.
        ensure_eq!((owner?, kind?), (gpu.to_string(), "1".to_owned()), "{}", queue.display());
        let size = size?.parse::<u64>().unwrap_or(0);
        ensure!(size >= 4096 && size.is_power_of_two(), "{}: {size}", queue.display());
    }

    ensure!(units(pid, gpu)?.is_none_or(|units| units == 0), "no kernel runs: {now:?}");
    client.tell("compute")?;
    if client.expect("computing")? == "yes" {
        let start = Instant::now();
        while units(pid, gpu)? == Some(0) {
            ensure!(start.elapsed() < PATIENCE, "a kernel that runs fills no part of a unit");
        }
    }

    client.tell("rest")?;
    client.expect("rested")?;
    ensure!(units(pid, gpu)?.is_none_or(|units| units == 0), "no kernel runs any more");
    ensure_eq!(queues(pid)?.len(), 1, "queues, one of which has ended");
    ensure_eq!(number(&files(&of(pid))?, &vram)?, number(&begun, &vram)?, "VRAM after it was given back");

    client.tell("fork")?;
    let child: u32 = client.expect("forked")?.parse().map_err(|_| anyhow::anyhow!("no number"))?;
    ensure!(of(pid).exists() && !of(child).exists(), "the process is the parent's");
    client.tell("end")?;
    client.finish()?;
    // With its parent the child ends as well.
    until_gone(pid)
}

pub(super) fn while_it_is_open_role(scenario: &mut Scenario) -> Result<(), Stop> {
    scenario.say("started")?;
    scenario.await_order("open")?;
    let client = Client::open_at(&device()?)?;
    scenario.say("opened")?;
    scenario.await_order("work")?;
    let gpu = client.gpus()[0].id;
    let (buffer, queue, second) = work(&client, gpu)?;
    scenario.say(&format!("worked {}", gpu.0))?;
    scenario.await_order("compute")?;
    compute(scenario, &client, gpu, &buffer)?;
    drop((queue, buffer));
    scenario.say("rested")?;
    scenario.await_order("fork")?;
    let parent = std::process::id();
    // SAFETY: the child makes system calls alone.
    let child = unsafe { libc::fork() };
    if child == 0 {
        end_with(parent);
        // SAFETY: concerns only this process, which has no more to do than to be there.
        unsafe {
            // It is not to hold the pipe to the scenario.
            libc::close_range(0, 1, 0);
            loop {
                libc::pause();
            }
        }
    }
    ensure!(child > 0, "fork: {}", io::Error::last_os_error());
    scenario.say(&format!("forked {child}"))?;
    scenario.await_order("end")?;
    drop(second);
    Ok(())
}

/// Some VRAM, and two queues, of which the first has written to it.
fn work(client: &Client, gpu: GpuId) -> Result<(Buffer, CopyQueue, CopyQueue), Stop> {
    let buffer = client.alloc(&AllocOptions::vram(gpu, BYTES))?;
    let mut queue = CopyQueue::new(client, gpu)?;
    queue.fill(buffer.gpu_va(), 7, buffer.len())?.submit()?.wait(PATIENCE)?;
    Ok((buffer, queue, CopyQueue::new(client, gpu)?))
}

/// Has kernels run until the next order, if there is one for that GPU.
fn compute(scenario: &mut Scenario, client: &Client, gpu: GpuId, buffer: &Buffer) -> Result<(), Stop> {
    let mut stirrer = match Stirrer::new(client, gpu) {
        Err(ClientError::Unsupported(_)) => {
            scenario.say("computing no")?;
            return scenario.await_order("rest");
        }
        made => made?,
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let kernels = scope.spawn(|| {
            while !stop.load(Relaxed) {
                stirrer.stir(buffer.gpu_va(), buffer.len() / 4, 4)?;
            }
            Ok::<(), ClientError>(())
        });
        let rest = scenario.say("computing yes").and_then(|()| scenario.await_order("rest"));
        stop.store(true, Relaxed);
        match kernels.join() {
            Ok(ended) => ended?,
            Err(_) => bail!("the thread with the kernels has panicked"),
        }
        rest
    })
}

/// Readers of the files of a process that is being killed read numbers, or that it has gone.
pub(super) fn until_it_is_killed() -> Result<(), Stop> {
    let _world = super::world()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(|| read_all(&stop))).collect();
        let killed = kill_clients();
        stop.store(true, Relaxed);
        for reader in readers {
            let read = reader.join().unwrap_or_else(|_| bail!("a reader has panicked"))?;
            ensure!(killed.is_err() || read > 0, "a reader has never found a queue");
        }
        killed
    })
}

fn kill_clients() -> Result<(), Stop> {
    for round in 0..ROUNDS {
        let mut client = ClientProcess::start("listed_restless", None)?;
        let pid = client.id();
        client.expect("working")?;
        ensure!(of(pid).exists(), "a client that works is not in {LIST}");
        std::thread::sleep(Duration::from_millis(u64::from(round) * 7 % 50));
        client.kill()?;
        client.killed()?;
        until_gone(pid)?;
    }
    Ok(())
}

/// Reads all files again and again; how often there was one of a queue.
fn read_all(stop: &AtomicBool) -> Result<u64, Stop> {
    let mut found = 0;
    while !stop.load(Relaxed) {
        found += read_below(Path::new(LIST))?;
    }
    Ok(found)
}

/// Reads the files below a directory, without those that have gone meanwhile; how many were of
/// queues.
fn read_below(directory: &Path) -> Result<u64, Stop> {
    let gone = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV));
    let entries = match fs::read_dir(directory) {
        Err(error) if gone(&error) => return Ok(0),
        entries => entries?,
    };
    let mut found = 0;
    for entry in entries {
        let entry = match entry {
            Err(error) if gone(&error) => continue,
            entry => entry?,
        };
        let path = entry.path();
        // As the list had it: a queue's directory may be gone now, and the next moment be there.
        if entry.file_type()?.is_dir() {
            found += read_below(&path)?;
            continue;
        }
        match fs::read_to_string(&path) {
            Err(error) if gone(&error) => {}
            text => {
                let text = text?;
                ensure!(text.trim_end().parse::<u64>().is_ok(), "{}: {text:?}", path.display());
                found += u64::from(path.ends_with("gpuid"));
            }
        }
    }
    Ok(found)
}

/// Makes and ends queues and memory, until it is killed.
pub(super) fn restless_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let client = Client::open_at(&device()?)?;
    let gpu = client.gpus()[0].id;
    for round in 0_u64.. {
        let made = work(&client, gpu)?;
        if round == 0 {
            scenario.say("working")?;
        }
        drop(made);
    }
    Ok(())
}
