# SPDX-License-Identifier: GPL-2.0 OR MIT
"""One step of Stable Diffusion 1.5's UNet at its real size, on the GPU and on the CPU.

Usage: unet.py [SIDE]. SIDE is that of the latent picture: 64, its default, makes pictures of
512 x 512. The weights are random: 859,520,964 numbers. Single precision needs 4 GB of the GPU's
memory (`vkfd run --vram 8G`) and 8 GB of the machine's.
"""

import os
import sys
import time

# MIOpen measures each of its ways before it takes one. Its plainest would have most of the time.
os.environ.setdefault("MIOPEN_DEBUG_CONV_DIRECT_NAIVE_CONV_FWD", "0")

import torch  # noqa: E402
from diffusers import UNet2DConditionModel  # noqa: E402

# The largest difference, as a part of the largest result.
ALLOWED = 1e-3


def main() -> int:
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    torch.manual_seed(1)
    # diffusers' defaults are the others of Stable Diffusion 1.5.
    model = UNet2DConditionModel(sample_size=side, cross_attention_dim=768).eval()
    latent, text = torch.randn(1, 4, side, side), torch.randn(1, 77, 768)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights, {side} x {side} latents", flush=True)
    results = []
    for device in ("cpu", "cuda"):
        name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
        began = time.monotonic()
        model.to(device)
        arguments = [tensor.to(device) for tensor in (latent, torch.tensor(500), text)]
        moved = time.monotonic()
        with torch.no_grad():
            results.append(model(*arguments).sample.cpu())
        took = time.monotonic() - moved
        print(f"{name}: a step in {took:.1f} s, the weights there in {moved - began:.1f} s", flush=True)
    wanted, got = results
    error = ((got - wanted).abs().max() / wanted.abs().max()).item()
    print(f"largest difference: {error:.1e} of the largest result", flush=True)
    return 0 if torch.isfinite(got).all() and error < ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
