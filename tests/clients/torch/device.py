# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The device whose results are compared with the CPU's, and the comparison."""

import os

import torch
from checks import Wrong, equal, near

# PyTorch calls HIP's devices so, too. Another name serves to try the checks themselves.
GPU = torch.device(os.environ.get("CHECKED_DEVICE", "cuda"))
CPU = torch.device("cpu")
torch.manual_seed(0)


def leaves(given) -> list:
    """The tensors of a result."""
    if isinstance(given, torch.Tensor):
        return [given]
    values = given.values() if isinstance(given, dict) else given
    return [tensor for value in values for tensor in leaves(value)]


def moved(given, device):
    """The arguments there; what is no tensor stays."""
    if isinstance(given, torch.Tensor):
        return given.detach().clone().to(device)
    return given


def arrays(given, device) -> list:
    """NumPy's arrays of tensors that have to be on the device."""
    tensors = leaves(given)
    for tensor in tensors:
        if tensor.device.type != device.type:
            raise Wrong(f"a result is on {tensor.device} instead of {device}")
    tensors = [tensor.detach().cpu() for tensor in tensors]
    return [(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for tensor in tensors]


def compared(got, wanted, allowed=None) -> str:
    """Of results of both devices; exact without `allowed`."""
    pairs = zip(arrays(got, GPU), arrays(wanted, CPU), strict=True)
    said = [near(a, b, allowed) if allowed else equal(a, b) for a, b in pairs]
    return said[0] if len(said) == 1 else f"{said[0]}, and {len(said) - 1} more"


def on(device, function, *arguments):
    return function(*(moved(argument, device) for argument in arguments))


def slopes(device, function, *arguments):
    """The gradients of the sum of sines of a result, in each argument of real numbers."""
    given = [moved(argument, device) for argument in arguments]
    real = [tensor.requires_grad_() for tensor in leaves(given_tensors(given)) if tensor.is_floating_point()]
    total = sum(part.sin().sum() for part in leaves(function(*given)) if part.is_floating_point())
    return torch.autograd.grad(total, real)


def given_tensors(given) -> list:
    return [value for value in given if isinstance(value, torch.Tensor)]
