# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Models of transformers and diffusers in Flax on the GPU against JAX's CPU back end.

Usage: models.py [CHECK...]. Prints a line for each check. The models have the architectures of the
well-known ones, few layers, and weights from a seed: nothing is downloaded.
"""

import functools

import jax
import jax.numpy as jnp
import numpy
from checks import Wrong, check, equal, main, near, part

GPU, CPU = jax.devices("rocm")[0], jax.devices("cpu")[0]
TOKENS = numpy.random.default_rng(1).integers(3, 200, (2, 12)).astype(numpy.int32)


def on(device, function, *arguments):
    """What the function gives there."""
    arguments = jax.device_put(arguments, device)
    with jax.default_device(device):
        given = jax.jit(function)(*arguments)
    for array in jax.tree.leaves(given):
        if array.devices() != {device}:
            raise Wrong(f"{array.devices()} instead of {device}")
    return given


def both(function, *arguments, allowed=1e-4):
    got, wanted = (jax.tree.leaves(on(device, function, *arguments)) for device in (GPU, CPU))
    compared = [near(a, b, allowed) for a, b in zip(got, wanted, strict=True)]
    return compared[0] if len(compared) == 1 else f"{compared[0]}, and {len(compared) - 1} more arrays"


def made(kind, configuration, **options):
    """The model with weights, which the CPU draws from a seed."""
    with jax.default_device(CPU):
        return kind(configuration, seed=3, **options)


def greedy(model, device):
    """The likeliest tokens after the prompts."""
    parameters = jax.device_put(model.params, device)

    def forward(parameters, tokens, length):
        logits = model.module.apply({"params": parameters}, *inputs(tokens)).logits
        return jnp.argmax(logits[jnp.arange(2), length - 1], axis=-1)

    def inputs(tokens):
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return tokens, jnp.ones_like(tokens), places

    with jax.default_device(device):
        step = jax.jit(forward)
        tokens = jax.device_put(jnp.zeros((2, 28), jnp.int32).at[:, :12].set(TOKENS), device)
        for length in range(12, 28):
            tokens = tokens.at[:, length].set(step(parameters, tokens, length))
        return numpy.asarray(tokens)


def writer(model):
    """Logits, and 16 tokens."""
    places = numpy.broadcast_to(numpy.arange(12), TOKENS.shape)
    logits = both(
        lambda parameters, tokens: model.module.apply(
            {"params": parameters}, tokens, jnp.ones_like(tokens), places
        ).logits,
        model.params,
        TOKENS,
    )
    return f"logits: {logits}; tokens: {equal(greedy(model, GPU), greedy(model, CPU))}"


part("transformers")


@check
def gpt2():
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    return writer(
        made(FlaxGPT2LMHeadModel, GPT2Config(vocab_size=200, n_positions=64, n_embd=64, n_layer=2, n_head=4))
    )


@check
def llama():
    from transformers import FlaxLlamaForCausalLM, LlamaConfig

    configuration = LlamaConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return writer(made(FlaxLlamaForCausalLM, configuration, input_shape=(1, 12)))


@check
def bert():
    from transformers import BertConfig, FlaxBertModel

    model = made(
        FlaxBertModel,
        BertConfig(vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128),
    )
    return both(lambda parameters, tokens: tuple(model(tokens, params=parameters)[:2]), model.params, TOKENS)


@check
def vit():
    from transformers import FlaxViTModel, ViTConfig

    model = made(
        FlaxViTModel,
        ViTConfig(
            image_size=32,
            patch_size=8,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
        ),
    )
    image = numpy.random.default_rng(2).standard_normal((1, 3, 32, 32)).astype(numpy.float32)
    return both(lambda parameters, image: model(image, params=parameters)[0], model.params, image)


@check
def t5():
    from transformers import FlaxT5ForConditionalGeneration, T5Config

    model = made(
        FlaxT5ForConditionalGeneration,
        T5Config(vocab_size=200, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0),
    )
    return both(
        lambda parameters, tokens: model(tokens, decoder_input_ids=tokens[:, :5], params=parameters)[0],
        model.params,
        TOKENS,
    )


@check
def whisper():
    from transformers import FlaxWhisperForConditionalGeneration, WhisperConfig

    configuration = WhisperConfig(
        vocab_size=200,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=20,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    model = made(FlaxWhisperForConditionalGeneration, configuration, input_shape=(1, 16, 40))
    sound = numpy.random.default_rng(2).standard_normal((2, 16, 40)).astype(numpy.float32)
    return both(
        lambda parameters, sound, tokens: model(sound, decoder_input_ids=tokens, params=parameters)[0],
        model.params,
        sound,
        TOKENS[:, :6],
    )


part("training")


@check
def gpt2_gradient():
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    model = made(FlaxGPT2LMHeadModel, GPT2Config(vocab_size=120, n_positions=16, n_embd=32, n_layer=1, n_head=2))
    places = numpy.broadcast_to(numpy.arange(12), TOKENS.shape)

    def loss(parameters, tokens):
        logits = model.module.apply({"params": parameters}, tokens, jnp.ones_like(tokens), places).logits
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)
        return -chosen.mean()

    return both(jax.grad(loss), model.params, TOKENS % 120)


@check
def training():
    """Ten steps of Adam on a small network of convolutions."""
    import flax.linen as linen
    import optax

    class Network(linen.Module):
        @linen.compact
        def __call__(self, image):
            image = linen.relu(linen.Conv(8, (3, 3))(image))
            image = linen.avg_pool(image, (2, 2), (2, 2))
            image = linen.relu(linen.Conv(12, (3, 3))(image))
            return linen.Dense(10)(image.reshape(image.shape[0], -1))

    network, optimizer = Network(), optax.adam(1e-2)
    generator = numpy.random.default_rng(4)
    images = generator.standard_normal((8, 12, 12, 1)).astype(numpy.float32)
    labels = generator.integers(0, 10, 8).astype(numpy.int32)
    with jax.default_device(CPU):
        weights = network.init(jax.random.key(0), images)

    def losses(device):
        with jax.default_device(device):
            here, pictures, classes = jax.device_put((weights, images, labels), device)
            state = optimizer.init(here)

            @jax.jit
            def step(here, state):
                def loss(here):
                    return optax.softmax_cross_entropy_with_integer_labels(
                        network.apply(here, pictures), classes
                    ).mean()

                value, slope = jax.value_and_grad(loss)(here)
                changes, state = optimizer.update(slope, state)
                return optax.apply_updates(here, changes), state, value

            seen = []
            for _ in range(10):
                here, state, value = step(here, state)
                seen.append(float(value))
        return numpy.array(seen)

    got, wanted = losses(GPU), losses(CPU)
    if not wanted[-1] < wanted[0] / 2:
        raise Wrong(f"the CPU learns nothing: {wanted}")
    return f"losses {wanted[0]:.3f} to {wanted[-1]:.3f}: {near(got, wanted, 1e-3)}"


part("diffusers")


def unet_of(**options):
    from diffusers import FlaxUNet2DConditionModel

    return FlaxUNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(32, 64),
        layers_per_block=1,
        attention_head_dim=8,
        cross_attention_dim=32,
        **options,
    )


@functools.cache
def unet_weights():
    with jax.default_device(CPU):
        return unet_of().init_weights(jax.random.key(1))


@check
def unet():
    """Stable Diffusion's UNet in small."""
    network = unet_of()
    generator = numpy.random.default_rng(5)
    image = generator.standard_normal((2, 4, 16, 16)).astype(numpy.float32)
    text = generator.standard_normal((2, 7, 32)).astype(numpy.float32)
    return both(
        lambda weights, image, text: network.apply({"params": weights}, image, jnp.full(2, 500), text).sample,
        unet_weights(),
        image,
        text,
    )


@check
def vae():
    """Stable Diffusion's decoder of images in small."""
    from diffusers import FlaxAutoencoderKL

    network = vae_of(FlaxAutoencoderKL)
    with jax.default_device(CPU):
        weights = network.init_weights(jax.random.key(2))
    latent = numpy.random.default_rng(6).standard_normal((1, 4, 8, 8)).astype(numpy.float32)
    return both(
        lambda weights, latent: network.apply({"params": weights}, latent, method=network.decode).sample,
        weights,
        latent,
    )


def vae_of(kind):
    return kind(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(32, 64),
        latent_channels=4,
        norm_num_groups=8,
        sample_size=32,
    )


@check
def stable_diffusion():
    """The whole pipeline: text encoder, four steps of DDIM with guidance, decoder."""
    from diffusers import FlaxAutoencoderKL, FlaxDDIMScheduler, FlaxStableDiffusionPipeline
    from transformers import CLIPTextConfig, FlaxCLIPTextModel

    text_encoder = made(
        FlaxCLIPTextModel,
        CLIPTextConfig(
            vocab_size=200,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=12,
            eos_token_id=2,
        ),
    )
    decoder = vae_of(FlaxAutoencoderKL)
    scheduler = FlaxDDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", set_alpha_to_one=False
    )
    with jax.default_device(CPU):
        weights = {
            "text_encoder": text_encoder.params,
            "unet": unet_weights(),
            "vae": decoder.init_weights(jax.random.key(2)),
            "scheduler": scheduler.create_state(),
        }
    pipeline = FlaxStableDiffusionPipeline(
        vae=decoder,
        text_encoder=text_encoder,
        tokenizer=None,
        unet=unet_of(),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
    )
    pictures = []
    for device in (GPU, CPU):
        with jax.default_device(device):
            here = jax.device_put(weights, device)
            prompts, nothing = (
                jax.device_put(tokens, device) for tokens in (TOKENS[:1], numpy.full((1, 12), 2, numpy.int32))
            )
            picture = pipeline(
                prompt_ids=prompts,
                params=here,
                prng_seed=jax.device_put(jax.random.PRNGKey(7), device),
                num_inference_steps=4,
                height=32,
                width=32,
                guidance_scale=jnp.float32(7.5),
                neg_prompt_ids=nothing,
                jit=False,
            ).images
            pictures.append(numpy.asarray(picture))
    if numpy.ptp(pictures[1]) < 0.05:
        raise Wrong("the CPU's picture is of one colour")
    return near(*pictures, 1e-3)


if __name__ == "__main__":
    main()
