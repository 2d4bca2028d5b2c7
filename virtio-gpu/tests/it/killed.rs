// SPDX-License-Identifier: GPL-2.0 OR MIT
//! kill -9 of one side or the other, at many moments: of a program nothing is left on the host, and
//! without its host a program gets errors.
//!
//! The other side is this test's program once more, told by [`ROLE`] what it is.

use crate::program;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use program::{options, register, way_over, Memory, MIB, SOON};
use vkfd_client::{Client, ClientError, CopyQueue, Errno};
use vkfd_virtio_gpu::socket_server;

const ROLE: &str = "VKFD_TEST_ROLE";
const SOCKET: &str = "VKFD_TEST_SOCKET";
/// What a program says after each round: nothing that a test says otherwise.
const ROUND: u8 = 1;
/// Moments: after so many rounds of the program, and a little later each time.
const MOMENTS: u32 = 10;

/// Registers, copies and lets go, over and over; says so after each round.
fn work(stream: UnixStream, mut round: impl FnMut()) -> Result<(), ClientError> {
    let client = Client::with_transport(Arc::new(way_over(stream, options())))?;
    let mut queue = CopyQueue::new(&client, client.gpus()[0].id)?;
    let (source, target) = (Memory::new(MIB), Memory::new(MIB));
    for seed in 0.. {
        source.fill(seed);
        let from = register(&client, &[source.range(64, 64), source.range(0, 64)])?;
        let to = register(&client, &[target.range(0, 128)])?;
        queue.copy_now(to.gpu_va(), from.gpu_va(), MIB / 2, SOON)?;
        assert_eq!(target.word(0), seed + MIB / 4 / 8, "the first of the second half");
        round();
    }
    Ok(())
}

/// Not a test of its own: what the other process does.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    match role.as_str() {
        "program" => {
            let say = || std::io::stdout().write_all(&[ROUND]).and_then(|()| std::io::stdout().flush()).unwrap();
            work(UnixStream::connect(socket).unwrap(), say).unwrap();
        }
        _ => socket_server::serve(&socket, options(), false).unwrap(),
    }
}

/// A child that is killed at the end whatever happens.
struct Other(Child);

impl Other {
    fn start(role: &str, socket: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "killed::the_other_process", "--nocapture"]).env(ROLE, role).env(SOCKET, socket);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        Self(command.spawn().unwrap())
    }

    /// Kills it. It had no children, or they have gone with it.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        let group = i32::try_from(self.0.id()).unwrap();
        // SAFETY: no pointers; signal 0 only asks.
        assert_eq!(unsafe { libc::kill(-group, 0) }, -1, "the killed process has left others");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socket(name: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    (directory, path)
}

#[test]
fn a_program_that_is_killed_at_any_moment_leaves_nothing() {
    let (_directory, path) = socket("programs");
    let listener = UnixListener::bind(&path).unwrap();
    for moment in 0..MOMENTS {
        let mut program = Other::start("program", &path);
        let (stream, _) = listener.accept().unwrap();
        // It says in the end whether something is left.
        let host = std::thread::spawn(move || socket_server::connection(&stream, options()));
        let mut said = program.0.stdout.take().unwrap();
        let mut rounds = 0;
        while rounds < moment / 3 {
            let mut byte = [0];
            said.read_exact(&mut byte).expect("the program goes on");
            rounds += u32::from(byte == [ROUND]);
        }
        std::thread::sleep(Duration::from_micros(700) * moment);
        program.kill();
        let ended = host.join().unwrap();
        // Of one that is killed in its first words the host may hear no more than half a word.
        let early = moment < 3 && ended.as_ref().is_err_and(|error| !error.to_string().contains("are left"));
        assert!(ended.is_ok() || early, "moment {moment}: {ended:?}");
    }
}

#[test]
fn a_host_that_is_killed_at_any_moment_is_an_error_to_its_program_and_can_be_started_again() {
    let (_directory, path) = socket("host");
    for moment in 0..MOMENTS {
        // At the same place each time, where the killed one's socket still is.
        let mut host = Other::start("host", &path);
        let stream = loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(_) => {
                    assert!(host.0.try_wait().unwrap().is_none(), "the host has ended");
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        };
        let (sender, rounds) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        // Nobody listens to the last rounds.
        let say = move || sender.send(()).unwrap_or(());
        let program = std::thread::spawn(move || end.send(work(stream, say)).unwrap());
        for _ in 0..=moment / 3 {
            rounds.recv_timeout(SOON).expect("the program goes on");
        }
        std::thread::sleep(Duration::from_micros(700) * moment);
        host.kill();
        // An error, of a call or of a copy that comes to no end.
        let error = ended.recv_timeout(3 * SOON).expect("the program hears of it").unwrap_err();
        assert!(error.errno() == Some(Errno(libc::EIO)) || error.errno().is_none(), "moment {moment}: {error}");
        program.join().unwrap();
    }
}
