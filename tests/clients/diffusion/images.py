# SPDX-License-Identifier: GPL-2.0 OR MIT
"""stable-diffusion.cpp on its HIP back end against its CPU back end, by the wheel `inferna-rocm`.

Usage: images.py [CHECK...]. Prints a line for each check. The models are made here (models.py).
"""

import functools
import tempfile
from pathlib import Path

import numpy
from checks import Wrong, main, near, part, register
from inferna.sd import stable_diffusion as sd
from models import autoencoder, reader, transformer, write

CPU, GPU = "*=cpu", "*=ROCm0"
# What stable-diffusion.cpp says of each part of the model that it runs.
RUNS = {CPU: "on CPU (peak", GPU: "on ROCm0 (peak"}
PARTS = ("t5", "mmdit", "taesd")
SAID = []
sd.set_log_callback(lambda level, text: SAID.append(text))


@functools.cache
def files() -> Path:
    at = Path(tempfile.mkdtemp())
    write(at / "model.safetensors", transformer() | reader(), numpy.float16, 1)
    write(at / "autoencoder.safetensors", autoencoder(), numpy.float16, 2)
    return at


def draw(where, kind=sd.SDType.COUNT, flash=False, start=None, **asked):
    """A picture, with all parts of the model run `where`."""
    model = sd.SDContextParams(model_path=str(files() / "model.safetensors"), n_threads=2, wtype=kind)
    model.taesd_path = str(files() / "autoencoder.safetensors")
    model.backend = where
    model.diffusion_flash_attn = flash
    wanted = {"prompt": "a house in the night", "width": 64, "height": 64, "seed": 3, "sample_steps": 2}
    wanted |= {"cfg_scale": 1.0, "sample_method": sd.SampleMethod.EULER} | asked
    picture = sd.SDImageGenParams(**wanted)
    if start is not None:
        picture.set_init_image(sd.SDImage.from_numpy(start))
    SAID.clear()
    drawn = sd.SDContext(model).generate_with_params(picture)[0].to_numpy()
    ran = [text for text in SAID if "compute buffer size" in text]
    for name in PARTS:
        if not any(f"{name} compute" in text and RUNS[where] in text for text in ran):
            raise Wrong(f"{name} did not run {RUNS[where]}: {ran}")
    if drawn.std() < 10:
        raise Wrong(f"the picture says nothing: {drawn}")
    return drawn


def same(allowed=0.02, **asked):
    return near(draw(GPU, **asked), draw(CPU, **asked), allowed)


def colours():
    """A picture to begin with."""
    rows, columns = numpy.mgrid[0:64, 0:64]
    return numpy.stack([4 * rows, 4 * columns, 128 + 0 * rows], axis=-1).astype(numpy.uint8)


def other_text():
    one, other = (draw(GPU, prompt=text) for text in ("a house in the night", "the water and the sun"))
    apart = numpy.abs(one.astype(float) - other).mean()
    if apart < 1:
        raise Wrong(f"two texts have the same picture: {apart} apart")
    return f"the pictures of two texts are {apart:.1f} apart"


part("pictures")
register("picture", same)
register("flash_attention", functools.partial(same, flash=True))
register("guidance", functools.partial(same, cfg_scale=3.0, negative_prompt="the day", sample_steps=1))
register("other_text", other_text)

part("more")
register("quantized", functools.partial(same, allowed=0.1, kind=sd.SDType.Q8_0))
register("from_picture", functools.partial(same, start=colours(), strength=0.6))
register("other_sampler", functools.partial(same, sample_method=sd.SampleMethod.DPMPP2M, sample_steps=3))

if __name__ == "__main__":
    main()
