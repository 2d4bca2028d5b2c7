# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Other memory for tinygrad's buffers than it asks the driver for.

VKFD_MEMORY=batched: host memory in scattered pieces of 4 to 64 KiB, each buffer registered by one
call of batch userptr, so that it is one range of GPU addresses. VKFD_MEMORY=managed: pages that the
GPU faults in, with XNACK on, which may be more than it has memory for. `place` puts it in the place
of tinygrad's own; at the end a line on stderr says how much there was of it.
"""

import atexit
import ctypes
import fcntl
import mmap
import os
import random
import struct
import sys

PAGE = mmap.PAGESIZE
# A piece has one to this many pages.
PIECE = 16
# From the posts of batch userptr.
BATCH = 1 << 22
FIXED = 0x10
# From linux/kfd_ioctl.h: AMDKFD_IOC_SVM for one attribute.
SVM = 3 << 30 | 32 << 16 | ord("K") << 8 | 0x20
GPU_EXEC = 0x10
# vkfd's own call: what SVM memory has been through.
SNAPSHOT = 3 << 30 | 40 << 16 | ord("K") << 8 | 0xE2
SNAPSHOT_SVM = 5

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def mapped(at, size, protection, flags, file=-1, offset=0):
    got = libc.mmap(at, size, protection, flags, file, offset)
    if got == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return got


def scattered(file, size, numbers):
    """Maps a file's pages in pieces that are no neighbours, the last one first."""
    pieces, at = [], 0
    while at < size:
        pieces.append((at, min(size - at, numbers.randint(1, PIECE) * PAGE)))
        at += pieces[-1][1]
    ranges = []
    for offset, part in reversed(pieces):
        room = mapped(None, part + PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapped(room, part, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | FIXED, file, offset)
        ranges.append((room, part))
    return ranges[::-1]


class Batched:
    def __init__(self):
        self.numbers = random.Random(1)
        self.ranges = {}
        self.pieces = 0

    def make(self, dev, size):
        from tinygrad.runtime.autogen import kfd

        file = os.memfd_create("batched")
        os.ftruncate(file, size)
        ranges = scattered(file, size, self.numbers)
        at = mapped(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file)
        os.close(file)
        words = [len(ranges)] + [word for each in ranges for word in each]
        listed = (ctypes.c_uint64 * len(words))(*words)
        flags = kfd.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | kfd.KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE | BATCH
        flags |= kfd.KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE | kfd.KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE
        iface = dev.iface
        made = kfd.AMDKFD_IOC_ALLOC_MEMORY_OF_GPU(
            iface.kfd, va_addr=at, size=size, gpu_id=iface.gpu_id, flags=flags, mmap_offset=ctypes.addressof(listed)
        )
        self.ranges[made.handle] = ranges
        self.pieces += len(ranges)
        return at, made

    def map(self, dev, buffer):
        return dev.iface.map(buffer)

    def free(self, dev, buffer):
        ranges = self.ranges.pop(buffer.meta.handle)
        dev.iface.free(buffer)
        for at, size in ranges:
            libc.munmap(at, size + PAGE)

    def said(self, allocations, total):
        return f"{allocations} allocations are {self.pieces} pieces, {total} bytes"


class Managed:
    def make(self, dev, size):
        self.kfd = dev.iface.kfd.fd
        at = mapped(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Programs are buffers, too: struct kfd_ioctl_svm_args with one attribute, SET_FLAGS.
        call = (ctypes.c_uint32 * 8).from_buffer_copy(struct.pack("<QQIIII", at, size, 0, 1, 5, GPU_EXEC))
        fcntl.ioctl(dev.iface.kfd.fd, SVM, call)
        return at, None

    def map(self, dev, buffer):
        # Each GPU faults for itself.
        return None

    def free(self, dev, buffer):
        libc.munmap(buffer.va_addr, buffer.size)

    def said(self, allocations, total):
        seen = (ctypes.c_uint64 * 16)()
        call = bytearray(struct.pack("<IIQQIIQ", SNAPSHOT_SVM, 0, 0, ctypes.addressof(seen), 1, 0, 0))
        fcntl.ioctl(self.kfd, SNAPSHOT, call)
        went, times = seen[5], seen[8]
        moved = f"{went} pages went to the GPU, its memory was too little {times} times"
        return f"{allocations} allocations, {total} bytes; {moved}"


def place():
    kind = os.environ.get("VKFD_MEMORY")
    if kind is None:
        return
    memory = {"batched": Batched, "managed": Managed}[kind]()
    from tinygrad.runtime import ops_amd
    from tinygrad.runtime.autogen import kfd
    from tinygrad.runtime.support.hcq import HCQBuffer, MMIOInterface

    allocator, interface = ops_amd.AMDAllocator, ops_amd.KFDIface
    begin, alloc, free, map_ = interface.__init__, allocator._alloc, allocator._do_free, allocator._map
    ours, sizes = set(), []

    def begin_with_faults(self, *arguments):
        is_first = interface.kfd is None
        begin(self, *arguments)
        # Of the process, and not once it has queues.
        if kind == "managed" and is_first:
            kfd.AMDKFD_IOC_SET_XNACK_MODE(interface.kfd, xnack_enabled=1)

    def alloc_here(self, size, options):
        if options.uncached:
            return alloc(self, size, options)
        size = -(-size // PAGE) * PAGE
        at, meta = memory.make(self.dev, size)
        buffer = HCQBuffer(at, size, meta=meta, view=MMIOInterface(at, size, fmt="B"), owner=self.dev)
        memory.map(self.dev, buffer)
        ours.add(at)
        sizes.append(size)
        return buffer

    def free_here(self, buffer, options):
        if buffer.va_addr not in ours:
            return free(self, buffer, options)
        self.dev.synchronize()
        ours.remove(buffer.va_addr)
        memory.free(self.dev, buffer)

    def map_here(self, buffer):
        whole = buffer._base if buffer._base is not None else buffer
        return memory.map(self.dev, whole) if whole.va_addr in ours else map_(self, buffer)

    interface.__init__ = begin_with_faults
    allocator._alloc, allocator._do_free, allocator._map = alloc_here, free_here, map_here

    def tell():
        if sizes:
            print(f"{kind}: {memory.said(len(sizes), sum(sizes))}", file=sys.stderr)

    atexit.register(tell)
