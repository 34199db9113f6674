"""SDXL pipeline for the engine: pure functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.control.by_row import HINTS, residuals
from models.interface.denoising_pipeline import DenoisingPipeline, Draft, flatten_prompts
from models.interface.image_start import clean_latents
from models.interface.images import to_uint8
from models.interface.pipeline import PyTree
from models.interface.step_program import StepProgram
from models.nn.layers.step_cache import CachedStep, initial_cache
from models.parallel.dtypes import used_dtype
from models.sampling.base import per_row
from models.sampling.guidance import classifier_free, rescale
from models.sdxl import image_prompts
from models.sdxl.adapter_names import SPELLINGS
from models.sdxl.conditioning import encode_text
from models.sdxl.controlling import hints, run_of
from models.sdxl.controlnet import ControlNet
from models.sdxl.network import Residuals
from models.sdxl.prepare import Preparation
from models.sdxl.prompts import IDS, VECTORS, WEIGHTS
from models.sdxl.refining import PREFIX, REFINER
from models.sdxl.request import SdxlRequest


class SdxlNetworks(NamedTuple):
    """Networks of an SDXL pipeline, as modules, graphs or weights."""

    unet: Any
    clip: Any
    clip_2: Any
    vae: Any
    preview: Any
    controls: Any = None
    """List of ControlNets; None if the model has no ControlNets."""
    image_prompts: Any = None
    refiner: Any = None
    """UNet that runs the last steps; None without a refiner."""
    refiner_clip: Any = None
    refiner_clip_2: Any = None


class SdxlPipeline(DenoisingPipeline[SdxlNetworks]):
    """Pipeline of SDXL: text and images to images.

    Leaves of a row:
    - latents and denoised [h, w, c]; step_cache, if enabled;
    - prompt_embeds [prompts, tokens, text], pooled_embeds [prompts, pooled], time_ids [prompts,
      numbers];
    - inpainting: mask [h, w, 1], and clean and noise, or masked [h, w, c], depending on the UNet;
    - distilled guidance: timestep_cond [features];
    - image prompts: image_prompts, a tree of [prompts, layers, tokens, width];
    - ControlNets: hints [slots, h, w, first];
    - a refiner's texts: refiner_prompt_embeds, refiner_pooled_embeds and refiner_time_ids.
    """

    TEXTS = ("prompt_embeds", "pooled_embeds", "time_ids")
    REFINERS_TEXTS = (f"{PREFIX}prompt_embeds", f"{PREFIX}pooled_embeds", f"{PREFIX}time_ids")
    REQUEST = SdxlRequest
    PROMPTS = (*TEXTS, "image_prompts", *REFINERS_TEXTS)
    ENCODERS = ("clip", "clip_2")
    SPELLINGS = SPELLINGS

    def __init__(self, preparation: Preparation, modules: SdxlNetworks) -> None:
        super().__init__(preparation.spec, modules)
        self.preparation = preparation
        self.latent_space = preparation.latent_space
        self.dtype = used_dtype(modules.unet.conv_in.kernel)

    def plan_request(self, request: SdxlRequest, images: Mapping[str, bytes]) -> Draft:
        """Tokenize the prompts, draw the noise, and plan the steps."""
        return self.preparation.plan_request(request, images)

    def embed(self, weights: SdxlNetworks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Encode prompts and images, and build the first latents."""
        latents = inputs["noise_scale"] * inputs["noise"]
        masks, clean = self._encode_images(weights, inputs)
        if clean is not None:
            latents = inputs["clean_scale"] * clean + latents
        row = {
            "latents": latents,
            **self._encode_texts(weights, inputs),
            **self._encode_texts(weights, inputs, PREFIX),
            **masks,
            **image_prompts.encode_image_prompts(self.network(weights, "image_prompts"), inputs),
            **initial_cache(inputs, self.preparation.unet.inner_features, self.dtype),
        }
        if "timestep_cond" in inputs:
            row["timestep_cond"] = inputs["timestep_cond"]
        if self.graphs.controls is not None:
            slots = self.preparation.controls.count
            row[HINTS] = hints(self._controlnets(weights), inputs, slots, latents)
        return row

    def predict(
        self,
        program: StepProgram,
        weights: SdxlNetworks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts h w latent"]:
        """Run the UNet, or the refiner, for every prompt of every row."""
        if program.network == REFINER:
            return self._refine(weights, rows, values)
        unet = self.network(weights, "unet")
        batch, prompts = rows["prompt_embeds"].shape[:2]

        def each_prompt(x: Array) -> Array:
            return jnp.repeat(x, prompts, axis=0)

        latents = rows["latents"] * per_row(values["input_scale"], rows["latents"])
        control = self._control(weights, rows, values, latents)
        if "masked" in rows:
            latents = jnp.concatenate([latents, rows["mask"], rows["masked"]], axis=-1)
        output: Array = unet(
            each_prompt(latents),
            each_prompt(values["timestep"]),
            *(flatten_prompts(rows[name]) for name in self.TEXTS),
            each_prompt(rows["timestep_cond"]) if "timestep_cond" in rows else None,
            image_prompts.of_layers(rows),
            control,
            cache,
        )
        return output.astype(jnp.float32).reshape(batch, prompts, *output.shape[1:])

    def _refine(
        self, weights: SdxlNetworks, rows: PyTree, values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch prompts h w latent"]:
        """Run the refiner UNet, which takes text conditioning only."""
        refiner = self.network(weights, REFINER)
        batch, prompts = rows[self.REFINERS_TEXTS[0]].shape[:2]
        latents = rows["latents"] * per_row(values["input_scale"], rows["latents"])
        output: Array = refiner(
            jnp.repeat(latents, prompts, axis=0),
            jnp.repeat(values["timestep"], prompts, axis=0),
            *(flatten_prompts(rows[name]) for name in self.REFINERS_TEXTS),
        )
        return output.astype(jnp.float32).reshape(batch, prompts, *output.shape[1:])

    def _control(
        self,
        weights: SdxlNetworks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        latents: Float[Array, "batch h w latent"],
    ) -> Residuals | None:
        """Return the ControlNets' residuals; None if the model has no ControlNets."""
        if self.graphs.controls is None:
            return None
        prompts = rows["prompt_embeds"].shape[1]

        def each_prompt(x: Array) -> Array:
            return jnp.repeat(x[:, None], prompts, axis=1)

        inputs = (each_prompt(latents), each_prompt(values["timestep"]))
        conditions = tuple(rows[name] for name in self.TEXTS)
        runs = [run_of(network) for network in self._controlnets(weights)]
        output: Residuals = residuals(runs, rows, values, (*inputs, *conditions))
        return output

    def _controlnets(self, weights: SdxlNetworks) -> nnx.List[ControlNet]:
        """Return the ControlNets with sharded weights, which are gathered when each one runs."""
        merged: nnx.List[ControlNet] = nnx.merge(self.graphs.controls, weights.controls)
        return merged

    def combine_prompts(
        self, output: Float[Array, "batch prompts h w latent"], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch h w latent"]:
        """Apply classifier-free guidance, then rescale the result by `guidance_rescale`."""
        positive = output[:, 0]
        scale = per_row(values["guidance_scale"], positive)
        guided = classifier_free(positive, output[:, 1], scale)
        return rescale(guided, positive, values["guidance_rescale"])

    def decode(self, weights: SdxlNetworks, row: PyTree) -> jax.Array:
        """Decode a row's latents to pixels with the VAE."""
        return to_uint8(self.latent_space.decode(self.graphs.vae, weights.vae, row["latents"]))

    def preview(self, weights: SdxlNetworks, row: PyTree) -> jax.Array:
        """Decode the estimate of the clean latents with a linear map."""
        return to_uint8(self.network(weights, "preview")(row["denoised"]))

    def _encode_texts(
        self, weights: SdxlNetworks, inputs: Mapping[str, jax.Array], prefix: str = ""
    ) -> dict[str, jax.Array]:
        """Return the concatenated hidden states, the last encoder's pooled output, and the sizes.

        Args:
            prefix: input prefix of the refiner; empty result if its inputs are missing.
        """
        selected = {
            name.removeprefix(prefix): value
            for name, value in inputs.items()
            if name.startswith(prefix)
        }
        if IDS[0] not in selected:
            return {}
        networks = [self.network(weights, prefix + name) for name in self.ENCODERS]
        encoders = [network for network in networks if network is not None]
        encoded = [
            encode_text(
                encoder,
                selected[ids],
                selected["layers"],
                selected.get(token_weights),
                selected.get(vectors),
            )
            for encoder, ids, token_weights, vectors in zip(
                encoders, IDS, WEIGHTS, VECTORS, strict=False
            )
        ]
        embeds = jnp.concatenate([hidden for hidden, _ in encoded], axis=-1)
        active, pooled = selected["active_prompts"], encoded[-1][1]
        texts = (
            jnp.where(active[:, None, None], embeds, 0),
            jnp.where(active[:, None], pooled, 0),
            selected["time_ids"],
        )
        return {prefix + name: value for name, value in zip(self.TEXTS, texts, strict=True)}

    def _encode_images(
        self, weights: SdxlNetworks, inputs: Mapping[str, jax.Array]
    ) -> tuple[dict[str, jax.Array], jax.Array | None]:
        """Return a row's mask leaves, and the clean latents of an input image, if any."""

        def sample(name: str) -> Float[Array, "h w latent"]:
            pixels, noise = inputs[name], inputs[f"{name}_noise"]
            return self.latent_space.encode(self.graphs.vae, weights.vae, pixels, noise)

        space = self.latent_space
        if "mask" not in inputs:
            return {}, clean_latents(inputs, lambda *_: space.normalize(sample("image")))
        clean = space.scale(sample("image")) if "image" in inputs else None
        masks = {"mask": inputs["mask"]}
        if "masked_image" in inputs:
            return masks | {"masked": space.scale(sample("masked_image"))}, clean
        assert clean is not None  # a UNet without mask channels needs the image
        return masks | {"clean": clean, "noise": inputs["noise"]}, clean
