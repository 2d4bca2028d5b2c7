// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd serve` and `vkfd run --shared` as a user has them: several processes on one machine, and
//! what happens when one of them, or the machine's, ends in whatever way.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};
use vkfd_sabotage::Switch;

/// Machines may be slow and busy.
pub const SOON: Duration = Duration::from_secs(120);

/// A directory for the sockets, and the program.
pub struct Stand {
    dir: tempfile::TempDir,
    pub program: PathBuf,
}

/// A process that is talked with by lines; killed when dropped.
pub struct Talk {
    pub child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talk {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, question: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{question}").unwrap();
        self.line()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is this test's and has not been waited for.
        assert_eq!(unsafe { libc::kill(i32::try_from(self.child.id()).unwrap(), signal) }, 0);
    }

    pub fn code(&mut self) -> Option<i32> {
        drop(self.input.take());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Stand {
    /// `None`, with a word, where there is no compiler.
    pub fn new() -> Option<Self> {
        Self::of("shared.c")
    }

    pub fn of(source: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests").join(source);
        match Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).output() {
            Err(error) => {
                println!("skipped: no C compiler: {error}");
                None
            }
            Ok(compiled) => {
                assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
                Some(Self { dir, program })
            }
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = common::command(arguments);
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        command
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("vkfd/lab.sock")
    }

    /// A machine that programs can join.
    pub fn serve(&self) -> Talk {
        let mut server = Talk::start(self.command(&["serve", "lab", "--gpus", "2", "--vram", "80M"]));
        let line = server.line();
        assert!(line.starts_with("lab: 2 gfx900 GPUs with 80 MiB each"), "{line}");
        server
    }

    pub fn joined(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&["run", "--shared", "lab", "--"]);
        command.arg(&self.program).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.joined(arguments).output().unwrap()
    }

    /// The one line that a program printed.
    pub fn said(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap().trim_end().to_owned()
    }

    pub fn hold(&self) -> (Talk, String) {
        let mut holder = Talk::start(self.joined(&["hold"]));
        let line = holder.line();
        let name = line.strip_prefix("name ").unwrap_or_else(|| panic!("{line}")).to_owned();
        (holder, name)
    }

    /// Waits until the program prints this.
    fn comes_to(&self, arguments: &[&str], wanted: &str) {
        let begun = Instant::now();
        loop {
            let said = self.said(arguments);
            if said == wanted {
                return;
            }
            assert!(begun.elapsed() < SOON, "{said} is not {wanted}");
        }
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn processes_share_memory_and_a_killed_one_leaves_nothing() {
    let Some(stand) = Stand::new() else { return };
    let mut server = stand.serve();
    let all = stand.said(&["available"]);
    let (mut first, name) = stand.hold();
    let left = stand.said(&["available"]);
    assert_eq!((all.as_str(), left.as_str()), ("available 80 MiB", "available 48 MiB"), "free memory is one number");
    assert_eq!(first.ask("available"), left);
    assert_eq!(stand.said(&["open", &name]), "word 1234");
    assert_eq!(first.ask("look"), "word 5678", "what the other process wrote");
    let (mut second, _) = stand.hold();
    // Both have the same GPU: there is no more.
    let third = stand.run(&["hold"]);
    assert_eq!(third.status.code(), Some(1), "{third:?}");
    // The program itself is killed; `vkfd run` says so. Others go on.
    let program = child_of(first.child.id());
    assert_ne!(child_of(u32::try_from(program).unwrap()), 0);
    // SAFETY: the program is a child of this test's child, which has not ended.
    assert_eq!(unsafe { libc::kill(program, libc::SIGKILL) }, 0);
    assert_eq!(first.child.wait().unwrap().code(), Some(128 + libc::SIGKILL));
    // Its child is still there, as long as it has input.
    stand.comes_to(&["available"], &left);
    drop(first);
    assert_eq!(stand.said(&["open", &name]), "errno 22", "its name stands for nothing");
    assert_eq!(second.ask("look"), "word 1234");
    assert_eq!(second.ask("end"), "ended");
    assert_eq!(second.code(), Some(0));
    stand.comes_to(&["available"], &all);
    server.signal(libc::SIGTERM);
    assert_eq!(server.code(), Some(0));
    assert!(!stand.socket().exists());
}

/// What a file of sysfs says to a monitor that joins the machine.
pub fn monitor(stand: &Stand, sabotage: &str, file: &str) -> String {
    let mut cat = stand.command(&["run", "--shared", "lab", "--", "cat", file]);
    let read = cat.env("VKFD_SABOTAGE", sabotage).output().unwrap();
    assert_eq!(read.status.code(), Some(0), "{read:?}");
    text(&read.stdout).trim_end().to_owned()
}

#[test]
fn monitors_see_how_much_memory_others_use() {
    let Some(stand) = Stand::new() else { return };
    let _server = stand.serve();
    let used = |gpu: u32| monitor(&stand, "", &format!("/sys/class/drm/card{gpu}/device/mem_info_vram_used"));
    let number = |text: String| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is no number"));
    let before = [0, 1].map(|gpu| number(used(gpu)));
    let (mut holder, _) = stand.hold();
    // Page tables are in the GPU's memory, too.
    let held = number(used(0)) - before[0];
    assert!((32 << 20..33 << 20).contains(&held), "{held}");
    assert_eq!(number(used(1)), before[1], "the other GPU has none of it");
    for (file, wanted) in [
        ("/sys/class/drm/renderD128/device/mem_info_vis_vram_used", before[0] + held),
        ("/sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total", 80 << 20),
        ("/sys/dev/char/226:128/device/mem_info_vis_vram_total", 80 << 20),
    ] {
        assert_eq!(number(monitor(&stand, "", file)), wanted, "{file}");
    }
    let gtt = ["total", "used"]
        .map(|what| number(monitor(&stand, "", &format!("/sys/class/drm/card0/device/mem_info_gtt_{what}"))));
    assert!(gtt[1] < gtt[0], "{gtt:?}");
    // The control.
    let file = "/sys/class/drm/card0/device/mem_info_vram_used";
    assert_eq!(monitor(&stand, Switch::UsageAtStart.name(), file), "");
    assert_eq!(holder.ask("end"), "ended");
    assert_eq!(holder.code(), Some(0));
    let begun = Instant::now();
    loop {
        let left = number(used(0)) - before[0];
        if left == 0 {
            return;
        }
        assert!(begun.elapsed() < SOON, "{left} bytes of one that has ended are still used");
    }
}

#[test]
fn monitors_see_how_much_a_gpu_works() {
    let Some(stand) = Stand::of("busy.c") else { return };
    let _server = stand.serve();
    let load = |gpu: u32| monitor(&stand, "", &format!("/sys/class/drm/card{gpu}/device/gpu_busy_percent"));
    let comes_to = |wanted: &dyn Fn(&str) -> bool| {
        let begun = Instant::now();
        loop {
            let said = load(0);
            if wanted(&said) {
                return;
            }
            assert!(begun.elapsed() < SOON, "{said}");
        }
    };
    assert_eq!((load(0), load(1)), ("0".into(), "0".into()));
    let mut busy = Talk::start(stand.joined(&[]));
    assert_eq!(busy.line(), "submitted");
    // All of the time between two questions.
    comes_to(&|said| said == "100");
    assert_eq!(load(1), "0", "the other GPU");
    // The control.
    let file = "/sys/class/drm/card0/device/gpu_busy_percent";
    assert_eq!(monitor(&stand, Switch::UsageAtStart.name(), file), "");
    assert_eq!(busy.code(), Some(0));
    comes_to(&|said| said == "0");
}

/// The one child of a process.
pub fn child_of(parent: u32) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    children.trim().parse().unwrap()
}

#[test]
fn registered_memory_is_emptied_and_forked_as_private_memory_is() {
    let Some(stand) = Stand::new() else { return };
    let _server = stand.serve();
    let said = stand.said(&["memory", "hook"]);
    assert_eq!(said, "emptied 00, beside aa\nchild sees aa\nparent sees 11\nended");
    // The control: a system call that no hook sees leaves the contents, as the pages say.
    let said = stand.said(&["memory", "raw"]);
    assert_eq!(said, "emptied aa, beside aa\nchild sees aa\nparent sees 11\nended");
}

#[test]
fn programs_outlive_their_machine() {
    let Some(stand) = Stand::new() else { return };
    for signal in [libc::SIGINT, libc::SIGKILL] {
        let mut server = stand.serve();
        let (mut program, _) = stand.hold();
        server.signal(signal);
        server.code();
        assert_eq!(program.ask("available"), format!("errno {}", libc::ENODEV));
        // Its mapping is its own; a server that has ended in order has emptied the memory.
        let word = program.ask("look");
        assert!(word == "word 1234" || word == "word 0" && signal == libc::SIGINT, "{word}");
        assert_eq!(program.ask("end"), "ended");
        assert_eq!(program.code(), Some(0));
        // A socket that a killed server leaves is in nobody's way.
        assert_eq!(stand.socket().exists(), signal == libc::SIGKILL);
        let late = stand.run(&["available"]);
        assert_eq!(late.status.code(), Some(125));
        assert!(
            text(&late.stderr).contains("no machine is shared as lab: start one with `vkfd serve lab`"),
            "{late:?}"
        );
    }
    let mut server = stand.serve();
    assert!(stand.said(&["available"]).starts_with("available "));
    server.signal(libc::SIGTERM);
    assert_eq!(server.code(), Some(0));
}

#[test]
fn names_belong_to_one_machine_and_say_what_is_wrong() {
    let Some(stand) = Stand::new() else { return };
    let _server = stand.serve();
    let second = stand.command(&["serve", "lab"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    assert!(text(&second.stderr).contains("a machine is shared as lab already"), "{second:?}");
    // The first one has not noticed.
    let topology = stand.command(&["run", "--shared", "lab", "--", "ls", "/dev/dri"]).output().unwrap();
    assert_eq!(text(&topology.stdout), "by-path\ncard0\ncard1\nrenderD128\nrenderD129\n", "{topology:?}");
    for (arguments, words) in [
        (&["run", "--shared", "../lab", "--", "true"][..], "is no name for a machine"),
        (&["run", "--shared", "lab", "--gpus", "3", "--", "true"], "cannot be used with"),
        (&["run", "--shared", "lab", "--forward", "--", "true"], "cannot be used with"),
    ] {
        let refused = stand.command(arguments).output().unwrap();
        assert_eq!(refused.status.code(), Some(125), "{refused:?}");
        assert!(text(&refused.stderr).contains(words), "{words}: {refused:?}");
    }
    // A directory that others can reach into is not used.
    let open = tempfile::tempdir().unwrap();
    let place = open.path().join("vkfd");
    std::fs::create_dir(&place).unwrap();
    permit(&place, 0o755);
    let refused = common::command(&["serve", "lab"]).env("XDG_RUNTIME_DIR", open.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("others can reach into"), "{refused:?}");
}

fn permit(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
