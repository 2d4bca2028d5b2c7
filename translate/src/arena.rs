// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory for machine code that is made at run time.
//!
//! A [`Chunk`] is a sealed memfd with two mappings: code is written through one and executed
//! through the other. No mapping is ever writable and executable, so policies that forbid such
//! mappings are satisfied. A chunk is filled from its begin to its end, and unmapped when the last
//! piece of code in it is dropped. A piece holds its chunk.
//!
//! An arena belongs to one thread. Its chunks are bounded in bytes: a piece that does not fit is
//! refused, and its GPU code stays interpreted.
//!
//! Limits: the bytes of a dropped piece are free again only together with its chunk. A child of the
//! process does not inherit the mappings.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

/// Bytes of a chunk.
pub const CHUNK: usize = 64 << 10;
/// Bytes of chunks that an arena may have at a time.
pub const MOST: usize = 4 << 20;
/// Pieces begin at multiples of this, a line of the instruction cache.
const ALIGN: usize = 64;

/// There is no room for a piece of code.
#[derive(Debug, thiserror::Error)]
pub enum NoRoom {
    /// The arena has all the chunks that it may have, or the piece is larger than a chunk.
    #[error("the arena has no room")]
    Full,
    /// The system gives no memory, or no memory for code.
    #[error("the system gives no memory for code: {0}")]
    System(#[from] io::Error),
}

/// One file with its two mappings.
#[derive(Debug)]
struct Chunk {
    writable: NonNull<u8>,
    executable: NonNull<u8>,
    /// Faults in the code go on at its way out.
    faults: Option<vkfd_raw::MadeCode>,
    /// Bytes of the arena's chunks, this one among them. A count: nothing is published with it.
    mapped: Arc<AtomicUsize>,
}

// SAFETY: addresses of mappings, which any thread may use; the bytes of a piece do not change once
// it is made, and only the arena's thread writes behind them.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

fn map(file: &std::fs::File, protection: libc::c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping of an owned file, at an address that the kernel picks. Past a library
    // that stands in for mmap in this process.
    let at =
        unsafe { libc::syscall(libc::SYS_mmap, 0usize, CHUNK, protection, libc::MAP_SHARED, file.as_raw_fd(), 0usize) };
    if at == -1 {
        return Err(io::Error::last_os_error());
    }
    let at = usize::try_from(at).map_err(|_| io::ErrorKind::InvalidData)?;
    let at = NonNull::new(std::ptr::with_exposed_provenance_mut(at)).ok_or(io::ErrorKind::InvalidData)?;
    // SAFETY: the mapping that was just made. If it fails, a child inherits the mapping: no harm.
    unsafe { libc::syscall(libc::SYS_madvise, at.as_ptr(), CHUNK, libc::MADV_DONTFORK) };
    Ok(at)
}

fn unmap(at: NonNull<u8>) {
    // SAFETY: this module made the mapping, and nothing uses it any more.
    unsafe { libc::syscall(libc::SYS_munmap, at.as_ptr(), CHUNK) };
}

impl Chunk {
    fn new(mapped: &Arc<AtomicUsize>) -> io::Result<Chunk> {
        let file = vkfd_raw::memory_file::sealed(c"vkfd-code", CHUNK as u64)?;
        let writable = map(&file, libc::PROT_READ | libc::PROT_WRITE)?;
        let executable = map(&file, libc::PROT_READ | libc::PROT_EXEC).inspect_err(|_| unmap(writable))?;
        mapped.fetch_add(CHUNK, Relaxed);
        let mut chunk = Chunk { writable, executable, faults: None, mapped: mapped.clone() };
        let begin = executable.addr().get();
        // SAFETY: code has the address of its way out in RBX, or none of the chunk.
        chunk.faults = unsafe { vkfd_raw::made_code(begin..begin + CHUNK) };
        if chunk.faults.is_none() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(chunk)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        drop(self.faults.take());
        unmap(self.writable);
        unmap(self.executable);
        self.mapped.fetch_sub(CHUNK, Relaxed);
    }
}

/// A piece of code, which lives as long as this.
#[derive(Clone, Debug)]
pub struct Piece {
    chunk: Arc<Chunk>,
    offset: usize,
    len: usize,
}

impl Piece {
    /// The first byte, to be executed.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: within the chunk.
        unsafe { self.chunk.executable.add(self.offset) }
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len
    }
}

/// Chunks of code, for one thread.
#[derive(Debug, Default)]
pub struct Arena {
    /// The chunk that is being filled, and how many of its bytes are taken.
    current: Option<(Arc<Chunk>, usize)>,
    mapped: Arc<AtomicUsize>,
}

impl Arena {
    /// Bytes of its chunks.
    #[must_use]
    pub fn mapped(&self) -> usize {
        self.mapped.load(Relaxed)
    }

    /// Forgets the chunk that is being filled: it goes with the last piece in it.
    pub fn clear(&mut self) {
        self.current = None;
    }

    /// Puts code into the arena.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing was taken.
    pub fn put(&mut self, code: &[u8]) -> Result<Piece, NoRoom> {
        let bytes = code.len().next_multiple_of(ALIGN);
        if bytes > CHUNK {
            return Err(NoRoom::Full);
        }
        let (chunk, taken) = match self.current.take().filter(|(_, taken)| CHUNK - taken >= bytes) {
            Some(current) => current,
            None if self.mapped() + CHUNK > MOST => return Err(NoRoom::Full),
            None => (Arc::new(Chunk::new(&self.mapped)?), 0),
        };
        // SAFETY: there is room behind what is taken, and no other thread writes to the chunk.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), chunk.writable.add(taken).as_ptr(), code.len()) };
        self.current = Some((chunk.clone(), taken + bytes));
        Ok(Piece { chunk, offset: taken, len: code.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The permissions of the mapping at an address, and the file's inode.
    fn mapping(address: usize) -> Option<(String, String)> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a process has its maps");
        maps.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let (from, to) = words.next()?.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            let inside = number(from)? <= address && address < number(to)?;
            inside.then(|| Some((words.next()?.into(), words.nth(2)?.into()))).flatten()
        })
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn code_runs_from_where_it_cannot_be_written() {
        let mut arena = Arena::default();
        // mov eax, 42; ret
        let piece = arena.put(&[0xb8, 42, 0, 0, 0, 0xc3]).expect("room");
        // SAFETY: a function of this type.
        let number = unsafe {
            let function: extern "sysv64" fn() -> u32 = std::mem::transmute(piece.start().as_ptr());
            function()
        };
        assert_eq!(number, 42);
        let (executable, inode) = mapping(piece.start().addr().get()).expect("it is mapped");
        let (writable, same) = mapping(piece.chunk.writable.addr().get()).expect("it is mapped");
        assert_eq!((executable.as_str(), writable.as_str()), ("r-xs", "rw-s"));
        assert_eq!(inode, same);
    }

    #[test]
    fn an_arena_is_bounded_and_a_chunk_goes_with_its_last_piece() {
        let mut arena = Arena::default();
        let code = vec![0xcc; CHUNK / 2];
        let pieces: Vec<Piece> = std::iter::from_fn(|| arena.put(&code).ok()).collect();
        assert_eq!((pieces.len(), arena.mapped()), (MOST / (CHUNK / 2), MOST));
        assert!(matches!(arena.put(&code), Err(NoRoom::Full)));
        assert!(matches!(arena.put(&vec![0; CHUNK + 1]), Err(NoRoom::Full)));
        let address = pieces[0].start().addr().get();
        drop(pieces);
        arena.clear();
        assert_eq!(arena.mapped(), 0);
        assert!(mapping(address).is_none_or(|(permissions, _)| permissions != "r-xs"));
        assert!(arena.put(&code).is_ok());
    }
}
