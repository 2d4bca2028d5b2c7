# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A program that forks workers by Python's multiprocessing while a GPU copies and memory is
unmapped: python3 workers.py LIBRARY, which is copies.c. Says "right" in the end. Run by
cli/tests/locks.rs, which has the deadline."""
import ctypes
import multiprocessing
import sys
import threading

ROUNDS = 5
WORKERS = 4


def work(number):
    """What a worker does: allocates, which takes malloc's locks."""
    data = bytearray(1 << 20)
    data[::4096] = bytes([number % 256]) * 256
    return sum(data) == number % 256 * 256


def main():
    library = ctypes.CDLL(sys.argv[1])
    library.begin()
    over = threading.Event()

    def storm():
        while not over.is_set():
            library.storm()

    thread = threading.Thread(target=storm)
    thread.start()
    context = multiprocessing.get_context("fork")
    for _ in range(ROUNDS):
        with context.Pool(WORKERS) as pool:
            assert all(pool.map(work, range(8 * WORKERS)))
        queue = context.Queue()
        processes = [context.Process(target=queue.put, args=(n,)) for n in range(WORKERS)]
        for process in processes:
            process.start()
        assert sorted(queue.get() for _ in processes) == list(range(WORKERS))
        for process in processes:
            process.join()
            assert process.exitcode == 0
    over.set()
    thread.join()
    assert library.end() > 0
    print("right")


if __name__ == "__main__":
    main()
