# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Small networks with weights from a seed: the same ones on any device."""

import math

import numpy
from tinygrad import Tensor, nn


def seeded(network, seed: int):
    """Gives each parameter of a network values that depend on its name's place and the seed alone."""
    generator = numpy.random.default_rng(seed)
    for name, tensor in sorted(nn.state.get_state_dict(network).items()):
        if not numpy.issubdtype(numpy.dtype(tensor.dtype.fmt or "e"), numpy.floating):
            continue
        values = generator.standard_normal(tensor.shape)
        fan = math.prod(tensor.shape[1:]) if len(tensor.shape) > 1 else 1
        values = values / math.sqrt(fan)
        if "norm" in name or "running" in name:
            # Scales and variances are about one.
            values = 1 + 0.1 * numpy.abs(values)
        tensor.assign(Tensor(values.astype(numpy.float32)).cast(tensor.dtype).to(tensor.device)).realize()
    return network


class TimeBlock:
    """Two convolutions with a skip; the time of the diffusion's step is added between them."""

    def __init__(self, channels: int, out: int, time: int):
        self.norm_in, self.convolve_in = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm_out, self.convolve_out = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1)

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.convolve_in(self.norm_in(x).silu()) + self.time(time.silu()).reshape(x.shape[0], -1, 1, 1)
        return self.skip(x) + self.convolve_out(self.norm_out(y).silu())


class Attention:
    """Of an image's points to themselves, or to the words of a text."""

    def __init__(self, channels: int, context: int, heads: int):
        self.heads, self.norm = heads, nn.LayerNorm(channels)
        self.query = nn.Linear(channels, channels, bias=False)
        self.key, self.value = nn.Linear(context, channels, bias=False), nn.Linear(context, channels, bias=False)
        self.out = nn.Linear(channels, channels)

    def __call__(self, x: Tensor, context: "Tensor | None" = None) -> Tensor:
        queries = self.norm(x)
        context = queries if context is None else context
        parts = (self.query(queries), self.key(context), self.value(context))
        query, key, value = (part.reshape(x.shape[0], -1, self.heads, part.shape[-1] // self.heads).transpose(1, 2) for part in parts)
        mixed = query.scaled_dot_product_attention(key, value).transpose(1, 2).reshape(x.shape)
        return x + self.out(mixed)


class UNet:
    """A narrow one of Stable Diffusion's form: down, through the middle, and up again with what was kept."""

    def __init__(self, channels: int = 16, context: int = 16):
        time = 4 * channels
        self.time_in, self.time_out = nn.Linear(channels, time), nn.Linear(time, time)
        self.first = nn.Conv2d(4, channels, 3, padding=1)
        self.down, self.shrink = TimeBlock(channels, channels, time), nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.deep = TimeBlock(channels, 2 * channels, time)
        self.among, self.about = Attention(2 * channels, 2 * channels, 4), Attention(2 * channels, context, 4)
        self.middle = TimeBlock(2 * channels, 2 * channels, time)
        self.grow = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.up = TimeBlock(2 * channels, channels, time)
        self.norm, self.last = nn.GroupNorm(4, channels), nn.Conv2d(channels, 4, 3, padding=1)
        self.channels = channels

    def __call__(self, x: Tensor, step: float, context: Tensor) -> Tensor:
        half = self.channels // 2
        angles = Tensor([[step * math.exp(-math.log(10_000) * n / half) for n in range(half)]])
        time = self.time_out(self.time_in(angles.cos().cat(angles.sin(), dim=1)).silu())
        kept = self.down(self.first(x), time)
        y = self.deep(self.shrink(kept), time)
        points = self.about(self.among(y.flatten(2).transpose(1, 2)), context)
        y = self.middle(points.transpose(1, 2).reshape(y.shape), time)
        y = self.grow(y.interpolate((2 * y.shape[2], 2 * y.shape[3]), mode="nearest"))
        return self.last(self.norm(self.up(y.cat(kept, dim=1), time)).silu())


class Residual:
    """A basic block of ResNet."""

    def __init__(self, channels: int, out: int, stride: int):
        self.first, self.norm_first = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False), nn.BatchNorm(out)
        self.second, self.norm_second = nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm(out)
        self.skip = nn.Conv2d(channels, out, 1, stride=stride, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm_second(self.second(self.norm_first(self.first(x)).relu()))
        return (self.skip(x) + y).relu()


class ResNet:
    """A narrow one of two stages, for small images."""

    def __init__(self, channels: int = 8, classes: int = 10):
        self.first, self.norm = nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm(channels)
        self.stages = [Residual(channels, channels, 1), Residual(channels, 2 * channels, 2)]
        self.last = nn.Linear(2 * channels, classes)

    def __call__(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu().sequential(self.stages).mean((2, 3)))
