# SPDX-License-Identifier: GPL-2.0 OR MIT
"""HIP's module interface, by ctypes: Triton's own launcher wants PyTorch."""

import ctypes

import numpy

TO_DEVICE, TO_HOST = 1, 2


class Hip:
    """The first GPU. Memory is freed with the process."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        # What was loaded before HIP may stand for some of its functions.
        self.before = ctypes.CDLL(None)
        self.library.hipGetErrorString.restype = ctypes.c_char_p
        self.call("hipInit", 0)
        self.call("hipSetDevice", 0)

    def call(self, name: str, *arguments: object) -> None:
        error = getattr(self.before, name, getattr(self.library, name))(*arguments)
        if error:
            raise RuntimeError(f"{name}: {self.library.hipGetErrorString(error).decode()}")

    def copy_in(self, array: numpy.ndarray) -> ctypes.c_void_p:
        """A buffer of the device's with the array."""
        address = ctypes.c_void_p()
        size = ctypes.c_size_t(array.nbytes)
        self.call("hipMalloc", ctypes.byref(address), size)
        self.call("hipMemcpy", address, ctypes.c_void_p(array.ctypes.data), size, TO_DEVICE)
        return address

    def copy_out(self, address: ctypes.c_void_p, array: numpy.ndarray) -> None:
        """The buffer into the array. Waits for the kernels before it."""
        size = ctypes.c_size_t(array.nbytes)
        self.call("hipMemcpy", ctypes.c_void_p(array.ctypes.data), address, size, TO_HOST)

    def function(self, code: bytes, name: str) -> ctypes.c_void_p:
        """A kernel of a code object."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("hipModuleLoadData", ctypes.byref(module), code)
        self.call("hipModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def launch(self, function: ctypes.c_void_p, grid: tuple, threads: int, shared: int, values: list):
        """The arguments are values of ctypes. Waits for the kernel's end."""
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = [*grid, *(1,) * (3 - len(grid)), threads, 1, 1, shared]
        self.call("hipModuleLaunchKernel", function, *map(ctypes.c_uint, sizes), None, addresses, None)
        self.call("hipDeviceSynchronize")
