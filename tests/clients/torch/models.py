# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Layers, training, and models of transformers and diffusers in PyTorch, on the GPU against the CPU.

Usage: models.py [CHECK...]. Prints a line for each check. The models have the architectures of the
well-known ones, few layers, and weights from a seed: nothing is downloaded.
"""

import copy

import numpy
import torch
import torch.nn.functional as F
from checks import Wrong, check, main, near, part, register
from device import CPU, GPU, compared, moved
from torch import nn

TOKENS = torch.from_numpy(numpy.random.default_rng(1).integers(3, 200, (2, 12)))


def numbers(*shape, seed=1):
    return torch.from_numpy(numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32))


def made(kind, *arguments, **options):
    """A model, in the form for use, with weights from a seed."""
    torch.manual_seed(3)
    return kind(*arguments, **options).eval()


def both(model, use, *arguments, allowed=1e-4):
    """A use of the model on both devices."""
    with torch.no_grad():
        got, wanted = (
            use(copy.deepcopy(model).to(device), *(moved(argument, device) for argument in arguments))
            for device in (GPU, CPU)
        )
    return compared(got, wanted, allowed)


def called(model, *arguments):
    return model(*arguments)


def trained(model, device, inputs, classes, optimizer, steps):
    """The losses of some steps, and the weights after them."""
    here = copy.deepcopy(model).to(device).train()
    chosen = optimizer(here.parameters())
    pictures, labels = inputs.to(device), classes.to(device)
    losses = []
    for _ in range(steps):
        chosen.zero_grad()
        loss = F.cross_entropy(here(pictures), labels)
        loss.backward()
        chosen.step()
        losses.append(loss.detach())
    return torch.stack(losses), [weight.detach() for weight in here.parameters()]


part("layers")


def layer(name, build, *arguments, allowed=1e-4):
    """Its output, and the gradients of its weights."""

    def compare():
        model = made(build).train()
        results = []
        for device in (GPU, CPU):
            here = copy.deepcopy(model).to(device)
            given = here(*(moved(argument, device) for argument in arguments))
            given = given[0] if isinstance(given, tuple) else given
            given.sin().sum().backward()
            results.append([given, [weight.grad for weight in here.parameters()]])
        return compared(*results, allowed)

    register(name, compare)


IMAGE, WORDS = numbers(4, 8, 12, 12), numbers(2, 10, 32)
layer("linear", lambda: nn.Linear(32, 19), WORDS)
layer("convolution_layer", lambda: nn.Conv2d(8, 6, 3, padding=1), IMAGE)
layer("batch_normalization", lambda: nn.BatchNorm2d(8), IMAGE)
layer("layer_normalization", lambda: nn.LayerNorm(32), WORDS)
layer("group_normalization", lambda: nn.GroupNorm(4, 8), IMAGE)
layer("attention", lambda: nn.MultiheadAttention(32, 4, batch_first=True), WORDS, WORDS, WORDS)
layer("encoder", lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), WORDS)
layer("lstm", lambda: nn.LSTM(32, 16, batch_first=True), WORDS)
layer("gru", lambda: nn.GRU(32, 16, batch_first=True), WORDS)
layer("embedding_layer", lambda: nn.Embedding(200, 16), TOKENS)
for activation in (nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Mish, nn.Hardswish):
    layer(f"activation_{activation.__name__.lower()}", lambda kind=activation: nn.Sequential(nn.Linear(32, 8), kind()), WORDS)


@check
def losses():
    scores, classes = numbers(20, 7), torch.arange(20) % 7

    def use(model, scores, classes):
        wanted = F.one_hot(classes, 7).float()
        return [
            F.cross_entropy(scores, classes),
            F.mse_loss(scores, wanted),
            F.binary_cross_entropy_with_logits(scores, wanted),
            F.smooth_l1_loss(scores, wanted),
            F.kl_div(scores.log_softmax(1), wanted.softmax(1), reduction="batchmean"),
        ]

    return both(nn.Identity(), use, scores, classes, allowed=1e-5)


part("training")


class Network(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 12, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(108, 10),
        )  # fmt: skip


def training(name, optimizer, steps=10, allowed=1e-3):
    def compare():
        model = made(Network)
        inputs, classes = numbers(8, 1, 12, 12, seed=4), torch.arange(8)
        got = trained(model, GPU, inputs, classes, optimizer, steps)
        wanted = trained(model, CPU, inputs, classes, optimizer, steps)
        first, last = (float(wanted[0][at]) for at in (0, -1))
        if not last < first * 0.9:
            raise Wrong(f"the CPU learns nothing: {first} to {last}")
        return f"losses {first:.3f} to {last:.3f}: {compared(got, wanted, allowed)}"

    register(name, compare)


training("sgd", lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9))
training("adam", lambda weights: torch.optim.Adam(weights, lr=1e-2))
training("adamw_foreach", lambda weights: torch.optim.AdamW(weights, lr=1e-2, foreach=True))
training("rmsprop", lambda weights: torch.optim.RMSprop(weights, lr=1e-3))


@check
def gpt2_gradient():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = made(GPT2LMHeadModel, GPT2Config(vocab_size=200, n_positions=16, n_embd=32, n_layer=1, n_head=2))
    results = []
    for device in (GPU, CPU):
        here, tokens = copy.deepcopy(model).to(device), TOKENS.to(device)
        here(tokens, labels=tokens).loss.backward()
        results.append([weight.grad for weight in here.parameters()])
    return compared(*results, 1e-4)


part("transformers")


def writer(kind, configuration):
    """Logits, and 16 greedy tokens."""
    model = made(kind, configuration)
    logits = both(model, lambda here, tokens: here(tokens).logits, TOKENS)

    def write(here, tokens):
        for _ in range(16):
            following = here(tokens).logits[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, following], 1)
        return tokens

    return f"logits: {logits}; tokens: {both(model, write, TOKENS, allowed=None)}"


@check
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return writer(GPT2LMHeadModel, GPT2Config(vocab_size=200, n_positions=64, n_embd=64, n_layer=2, n_head=4))


@check
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    configuration = LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return writer(LlamaForCausalLM, configuration)


@check
def bert():
    from transformers import BertConfig, BertModel

    configuration = BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    return both(made(BertModel, configuration), lambda here, tokens: list(here(tokens)[:2]), TOKENS)


@check
def vit():
    from transformers import ViTConfig, ViTModel

    configuration = ViTConfig(
        image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    image = numbers(1, 3, 32, 32, seed=2)
    return both(made(ViTModel, configuration), lambda here, image: here(image).last_hidden_state, image)


part("diffusers")


def unet_of():
    from diffusers import UNet2DConditionModel

    return made(
        UNet2DConditionModel,
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32, attention_head_dim=8, norm_num_groups=8,
    )  # fmt: skip


@check
def unet():
    """Stable Diffusion's UNet in small."""
    image, text = numbers(2, 4, 16, 16, seed=5), numbers(2, 7, 32, seed=6)
    return both(unet_of(), lambda here, image, text: here(image, 500, text).sample, image, text)


def vae_of():
    from diffusers import AutoencoderKL

    return made(
        AutoencoderKL,
        in_channels=3, out_channels=3, block_out_channels=(32, 64), latent_channels=4, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"), sample_size=32,
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
    )  # fmt: skip


@check
def vae():
    """Stable Diffusion's decoder of images in small."""
    return both(vae_of(), lambda here, latent: here.decode(latent).sample, numbers(1, 4, 8, 8, seed=6))


@check
def denoising():
    """Four steps of DDIM with guidance, and the decoder: Stable Diffusion's loop."""
    from diffusers import DDIMScheduler

    network, decoder = unet_of(), vae_of()
    latent, text = numbers(1, 4, 16, 16, seed=7), numbers(2, 7, 32, seed=8)
    pictures = []
    for device in (GPU, CPU):
        here, scheduler = copy.deepcopy(network).to(device), DDIMScheduler(beta_schedule="scaled_linear")
        scheduler.set_timesteps(4)
        image, words = latent.to(device), text.to(device)
        with torch.no_grad():
            for step in scheduler.timesteps:
                without, wanted = here(torch.cat([image, image]), step, words).sample.chunk(2)
                image = scheduler.step(without + 7.5 * (wanted - without), step, image).prev_sample
            pictures.append(copy.deepcopy(decoder).to(device).decode(image).sample.cpu().numpy())
    if numpy.ptp(pictures[1]) < 0.05:
        raise Wrong("the CPU's picture is of one colour")
    return near(*pictures, 1e-3)


if __name__ == "__main__":
    main()
