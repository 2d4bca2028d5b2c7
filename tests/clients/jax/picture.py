# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Draws a picture by Stable Diffusion's pipeline of diffusers, on the GPU that JAX finds first.

Usage: picture.py [FILE]. The architecture is the real one with few channels; weights are random, and
so is the picture. With weights from a directory, `FlaxStableDiffusionPipeline.from_pretrained` makes
the pipeline instead.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy
from diffusers import FlaxAutoencoderKL, FlaxDDIMScheduler, FlaxStableDiffusionPipeline, FlaxUNet2DConditionModel
from transformers import CLIPTextConfig, FlaxCLIPTextModel

TEXT = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)


def main() -> None:
    device = jax.devices()[0]
    print(f"{device.device_kind} ({device.platform})")
    text_encoder = FlaxCLIPTextModel(
        CLIPTextConfig(vocab_size=200, max_position_embeddings=12, eos_token_id=2, **TEXT), seed=3
    )
    unet = FlaxUNet2DConditionModel(
        sample_size=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=TEXT["hidden_size"],
    )
    vae = FlaxAutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(32, 64),
        norm_num_groups=8,
    )
    scheduler = FlaxDDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    weights = {
        "text_encoder": text_encoder.params,
        "unet": unet.init_weights(jax.random.key(1)),
        "vae": vae.init_weights(jax.random.key(2)),
        "scheduler": scheduler.create_state(),
    }
    pipeline = FlaxStableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=None,
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
    )
    # A tokenizer would make these of words.
    prompt, nothing = jnp.array([[1, 17, 42, 99, 2, 2, 2, 2, 2, 2, 2, 2]]), jnp.full((1, 12), 2)
    began = time.monotonic()
    picture = pipeline(
        prompt_ids=prompt,
        neg_prompt_ids=nothing,
        params=weights,
        prng_seed=jax.random.PRNGKey(7),
        num_inference_steps=4,
        height=32,
        width=32,
        guidance_scale=jnp.float32(7.5),
        jit=False,
    ).images[0]
    (picture,) = pipeline.numpy_to_pil(numpy.asarray(picture))
    file = sys.argv[1] if len(sys.argv) > 1 else "/work/picture.png"
    picture.save(file)
    print(f"{file}: {picture.width} x {picture.height}, 4 steps in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
