// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device for programs on this computer, without a virtual machine: the same messages as
//! through a VMM's queues, through a socket.
//!
//! Each connection is a guest of its own, with its memory in a file, and has a device and a machine
//! of its own. The other end is [`vkfd_remote::guest::socket`].

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vkfd_host::Listening;
use vkfd_remote::guest::file_message::{receive, send};
use vkfd_remote::guest::socket::{envelope, hello, hello_bytes, read_message, HELLO_BYTES, RAM_AT};
use vkfd_remote::protocol::control::MAX_COMMAND_BYTES;

use crate::device::ram::Part;
use crate::device::{Device, Options};
use crate::vhost_user::ServeError;

/// Most programs at a time; each has a machine.
const MAX_CONNECTIONS: usize = 64;
/// How long waits of a program that has gone may need to notice.
const ENDING: Duration = Duration::from_secs(5);

/// Serves programs at `socket`, all at once. With `once` it ends with the first.
///
/// # Errors
/// [`ServeError`]: the socket cannot be made. What goes wrong with a program ends its connection.
pub fn serve(socket: &Path, options: Options, once: bool) -> Result<(), ServeError> {
    let failed = |error: &io::Error| ServeError::Socket(error.to_string());
    let listener = Listening::at(socket).map_err(|e| failed(&e))?;
    let one = Arc::new(());
    loop {
        let (stream, _) = listener.accept().map_err(|e| failed(&e))?;
        if once {
            let ended = connection(&stream, options);
            tracing::info!(?ended, "the program has gone");
            return Ok(());
        }
        if Arc::strong_count(&one) > MAX_CONNECTIONS {
            tracing::warn!("a program is refused: there are {MAX_CONNECTIONS}");
            continue;
        }
        let thread = std::thread::Builder::new().name("gpu-program".into());
        let one = one.clone();
        let started = thread.spawn(move || {
            let _one = one;
            if let Err(error) = connection(&stream, options) {
                tracing::warn!(%error, "a program's connection has ended");
            }
        });
        if let Err(error) = started {
            tracing::error!(%error, "a program has no thread");
        }
    }
}

/// Serves a connection until it ends.
///
/// # Errors
/// What ended it other than its program.
pub fn connection(stream: &UnixStream, options: Options) -> io::Result<()> {
    let mut first = [0; HELLO_BYTES];
    let ram = receive(stream, &mut first)?;
    let bytes = hello_bytes(&first)?;
    let device = Device::new(options).map_err(io::Error::other)?;
    has_memory(&device, &ram, bytes)?;
    send(stream, &hello(device.window().bytes()), device.window().file().as_fd())?;
    tracing::info!("a program has connected");
    converse(stream, device)
}

/// The memory of the program is `bytes` of the file `ram`.
pub(crate) fn has_memory(device: &Device, ram: &File, bytes: u64) -> io::Result<()> {
    let part = Part { address: RAM_AT, bytes, file: ram, offset: 0 };
    device.ram().replace(&[part], device.window().file())
}

/// Does a program's commands until it has gone, and waits for the end of all that it had.
pub(crate) fn converse(stream: &UnixStream, mut device: Device) -> io::Result<()> {
    let back = Arc::new(Mutex::new(stream.try_clone()?));
    let ended = loop {
        let (tag, command) = match read_message(stream, MAX_COMMAND_BYTES) {
            Ok(message) => message,
            Err(error) => break error,
        };
        let back = back.clone();
        device.execute(
            &command,
            Box::new(move |answer: &[u8]| {
                let mut back = back.lock().unwrap_or_else(PoisonError::into_inner);
                // A program that has gone is noticed when it is read from.
                let _ = back.write_all(&envelope(tag, answer));
            }),
        );
    };
    device.reset();
    // A wait needs a moment to notice.
    let limit = Instant::now() + ENDING;
    while device.left() != 0 && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(5));
    }
    match device.left() {
        0 => tracing::info!("nothing of the guest is left"),
        left => {
            tracing::error!(left, "processes or places of the guest are left");
            return Err(io::Error::other(format!("{left} processes or places of the guest are left")));
        }
    }
    match ended.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Ok(()),
        _ => Err(ended),
    }
}
