// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HIP programs of several processes on one machine (`vkfd serve`): memory by IPC handles between
//! two, two programs at once, and memory that is unmapped.

use anyhow::{ensure, Result};

use super::source::Source;
use super::{hip, Client, Report, Stand};
use xtask_base::debian;

pub const CLIENT: Client =
    Client { name: "hip-ipc", packages: &["libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"], check };

const IPC: Source =
    Source { file: "tests/clients/hip/hip_ipc.cpp", arguments: &["-D__HIP_PLATFORM_AMD__", "-lamdhip64"] };

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    if !debian::version("libamdhip64-5")?.starts_with("5.2") {
        println!("  left out: this HIP asks for IPC handles by other calls");
        return Ok(());
    }
    let (ipc, copies) = (stand.compile(&IPC)?, stand.compile(&hip::PROGRAM)?);
    let name = format!("xtask-{}", std::process::id());
    let shared = &["--shared", name.as_str()][..];
    let mut server = stand.serve(&name, &["--gpus", "2"])?;
    ensure!(server.is_there(), "vkfd serve does not begin");
    let ran = stand.run(shared, &ipc, &["2"], &[])?;
    let right = ran.succeeded() && ran.stdout.matches("child ok\n").count() == 2 && ran.stdout.ends_with("ok\n");
    report.expect(right, "HIP: memory by IPC handles between two processes, on two GPUs", &ran);
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| stand.run(shared, &copies, &["2", "50"], &[]));
        let second = scope.spawn(|| stand.run(shared, &ipc, &["2"], &[]));
        (first.join(), second.join())
    });
    for (what, ran) in [("copies of every kind", first), ("IPC handles", second)] {
        let ran = ran.map_err(|_| anyhow::anyhow!("a thread has panicked"))??;
        let right = ran.succeeded() && ran.stdout.ends_with("ok\n");
        report.expect(right, &format!("HIP: {what}, beside another program on the same GPUs"), &ran);
    }
    let ran = stand.run(shared, &ipc, &["unmapped"], &[])?;
    let ended = !ran.succeeded() && ran.stdout.ends_with("the first copy is done\n");
    let told = ran.stderr.contains("Memory access fault by GPU");
    report.expect(ended && told, "HIP: what a program unmaps no GPU of a shared machine reads", &ran);
    let ran = stand.run(shared, &ipc, &["unseen"], &[])?;
    let went_on = ran.succeeded() && ran.stdout.ends_with("still there: 7\n");
    report.expect(went_on, "control: an unmapping that the library does not see leaves the GPU its pages", &ran);
    drop(server);
    let alone = stand.run(&["--gpus", "2"], &ipc, &["1"], &[])?;
    let noticed = !alone.succeeded() && alone.stdout.contains("FAILED: hipIpcGetMemHandle");
    report.expect(noticed, "control: processes with a machine each share nothing", &alone);
    Ok(())
}
