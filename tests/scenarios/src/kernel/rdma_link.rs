// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An RDMA device without hardware: soft-RoCE (rxe) on a network device without a wire.
//!
//! Both are made once and stay until the computer is switched off: the next test finds
//! them.

use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::verdict::Stop;

const NET: &str = "dummy0";
const RDMA: &str = "vkfd_rxe";
const ADDRESS: [u8; 4] = [10, 77, 0, 1];
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the device is.
pub(super) struct Link {
    /// Its file.
    pub(super) device: PathBuf,
    /// Number of its address (RoCE version 2 over IPv4) in its table.
    pub(super) gid_index: u8,
    /// That address.
    pub(super) gid: [u8; 16],
}

impl Link {
    /// The device, made if need be.
    pub(super) fn new() -> Result<Self, Stop> {
        if !Path::new("/sys/class/net").join(NET).exists() {
            return Err(Stop::Skip(format!("no {NET}: a kernel without CONFIG_DUMMY?")));
        }
        address()?;
        let class = Path::new("/sys/class/infiniband").join(RDMA);
        if !class.exists() {
            add().map_err(|error| match error.raw_os_error() {
                Some(libc::EPROTONOSUPPORT | libc::EINVAL | libc::EOPNOTSUPP) => {
                    Stop::Skip(format!("no soft-RoCE: {error}: a kernel without CONFIG_RDMA_RXE?"))
                }
                _ => Stop::from(anyhow::anyhow!("make the RDMA device: {error}")),
            })?;
        }
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&ADDRESS);
        Ok(Self { device: device()?, gid_index: gid_index(&class, &gid)?, gid })
    }
}

/// The verbs device of [`RDMA`].
fn device() -> Result<PathBuf, Stop> {
    for entry in fs::read_dir("/sys/class/infiniband_verbs")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|name| name.trim() == RDMA) {
            return Ok(Path::new("/dev/infiniband").join(entry.file_name()));
        }
    }
    Err(Stop::Skip("no verbs device: a kernel without CONFIG_INFINIBAND_USER_ACCESS?".into()))
}

fn gid_index(class: &Path, gid: &[u8; 16]) -> Result<u8, Stop> {
    let groups: Vec<String> = gid.chunks(2).map(|b| format!("{:02x}{:02x}", b[0], b[1])).collect();
    let wanted = groups.join(":");
    let port = class.join("ports/1");
    // The kernel enters it when the network device's address has been seen to, in a moment.
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        for index in 0..=u8::MAX {
            let Ok(found) = fs::read_to_string(port.join(format!("gids/{index}"))) else { break };
            let kind = fs::read_to_string(port.join(format!("gid_attrs/types/{index}"))).unwrap_or_default();
            if found.trim() == wanted && kind.trim() == "RoCE v2" {
                return Ok(index);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("{} has no address {wanted}", class.display())
}

/// An unnamed socket.
fn socket(domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no preconditions.
    let fd = unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives the network devices their addresses and switches them on: its own, and the one by which a
/// computer reaches itself.
fn address() -> Result<(), Stop> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    for (name, address) in [("lo", [127, 0, 0, 1]), (NET, ADDRESS)] {
        // SAFETY: all zeroes are a valid request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::try_from(from)?;
        }
        let family = libc::sa_family_t::try_from(libc::AF_INET)?;
        let address = libc::sockaddr_in {
            sin_family: family,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address) },
            sin_zero: [0; 8],
        };
        // SAFETY: both kinds of address have the same size, and any bytes are one.
        let address: libc::sockaddr = unsafe { std::mem::transmute(address) };
        request.ifr_ifru.ifru_addr = address;
        change(&socket, libc::SIOCSIFADDR, &mut request, name)?;
        request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING)?;
        change(&socket, libc::SIOCSIFFLAGS, &mut request, name)?;
    }
    Ok(())
}

fn change(socket: &OwnedFd, command: libc::Ioctl, request: &mut libc::ifreq, name: &str) -> Result<(), Stop> {
    // SAFETY: the request is there, with the fields that the command reads.
    match unsafe { libc::ioctl(socket.as_raw_fd(), command, core::ptr::from_mut(request)) } {
        0 => Ok(()),
        _ => bail!("request {command:#x} for {name}: {}", io::Error::last_os_error()),
    }
}

/// `rdma link add RDMA type rxe netdev NET`.
fn add() -> io::Result<()> {
    // include/uapi/rdma/rdma_netlink.h
    const NEWLINK: u16 = 5 << 10 | 3;
    const DEV_NAME: u16 = 2;
    const NDEV_NAME: u16 = 51;
    const LINK_TYPE: u16 = 65;
    const HEADER: usize = size_of::<libc::nlmsghdr>();

    let mut attributes = Vec::new();
    for (kind, text) in [(DEV_NAME, RDMA), (LINK_TYPE, "rxe"), (NDEV_NAME, NET)] {
        let bytes = text.len() + 1;
        attributes.extend(u16::try_from(4 + bytes).map_err(io::Error::other)?.to_ne_bytes());
        attributes.extend(kind.to_ne_bytes());
        attributes.extend(text.bytes());
        attributes.resize((attributes.len() + 1).next_multiple_of(4), 0);
    }
    let request = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    let mut message = Vec::new();
    message.extend(u32::try_from(HEADER + attributes.len()).map_err(io::Error::other)?.to_ne_bytes());
    message.extend(NEWLINK.to_ne_bytes());
    message.extend(u16::try_from(request).map_err(io::Error::other)?.to_ne_bytes());
    message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    message.extend(attributes);

    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_RDMA)?;
    // SAFETY: the message is as long as said; the kernel is the default receiver.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    // The answer: a header, then an error number.
    let mut answer = [0_u8; 4096];
    // SAFETY: the buffer is as long as said.
    let got = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    let error = answer[HEADER..HEADER + 4].try_into().map_or(0, i32::from_ne_bytes);
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
