"""Pipelines of images whose prompts are messages that a chat model encodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from models.interface.denoising_pipeline import Draft, each_alone
from models.interface.flow_request import FlowRequest
from models.interface.pipeline import PyTree, Step
from models.interface.step_program import StepProgram
from models.nn.blocks.joint_transformer import Modulations
from models.nn.layers.step_cache import CachedStep
from models.parallel.dtypes import used_dtype
from models.parallel.placement import in_place
from models.sampling.flow_match import FlowMatchEuler
from models.spec.model_spec import ModelSpec
from models.text.tokenizer import Tokenizer, cut_prompts
from models.vae.config import Tiling
from models.vae.packed_latents import PackedLatentPipeline
from models.vae.patches import PATCH
from models.vae.references import tokens_and_grids


class ChatNetworks(NamedTuple):
    """Value a network of a checkpoint: modules, graphs or weights."""

    transformer: Any
    text_encoder: Any
    vae: Any
    preview: Any
    vision: Any = None
    """Tower that reads images for the text encoder; None: there is none."""


class ChatPipeline(PackedLatentPipeline[ChatNetworks]):
    """Part of a family's pipeline that its text encoder makes, a chat model."""

    ENCODER: ClassVar[str]
    """Name of the chat model, for warnings."""
    CUT: ClassVar[int] = 0
    """Tokens at the head of a chat that the transformer is not given."""

    def __init__(
        self,
        spec: ModelSpec,
        modules: ChatNetworks,
        scheduler: FlowMatchEuler,
        tokenizer: Tokenizer,
        vae_tiling: Tiling | None = None,
    ) -> None:
        transformer = modules.transformer
        super().__init__(spec, modules, used_dtype(transformer.latents_in.kernel), vae_tiling)
        self.config, self.scheduler, self.tokenizer = transformer.config, scheduler, tokenizer
        self.width: int = transformer.latents_in.out_features
        """Features of a token in the transformer."""
        self.latent_channels: int = transformer.latents_in.in_features // PATCH**2

    def drafted(
        self,
        request: FlowRequest,
        inputs: Mapping[str, np.ndarray],
        steps: tuple[Step, ...],
        tokens: int,
        bucket: str = "",
        head: str = "",
    ) -> Draft:
        """Tokenize the prompts of a request.

        Args:
            inputs: beside tokens.
            tokens: of the latents, and of what the network sees behind them.
            bucket: end of the bucket's key.
            head: text in front of each prompt, beside the request's limit.
        """
        texts = {field: head + text for field, text in request.prompts.items()}
        limit = request.max_sequence_length + self.CUT + len(self.tokenizer.pieces([head])[0])
        read = self.tokenizer.encode_with_mask([*texts.values()], limit)
        size, text = f"{request.width}x{request.height}", request.max_sequence_length
        return Draft(
            f"{size},text={text},prompts={len(texts)}{bucket}",
            {"ids": read.ids, "read": read.mask, **inputs},
            steps,
            request.width,
            request.height,
            request.seed,
            len(texts),
            tokens,
            cut_prompts(self.ENCODER, self.tokenizer, texts, limit),
        )

    def predict(
        self,
        program: StepProgram,
        weights: ChatNetworks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: PyTree,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts tokens patch"]:
        """Return the velocity for every prompt of every row.

        The transformer is given tokens, those of references behind the drawn; what rows have a
        prompt; what it is told of time; the grids of its images, and the cache of steps.
        """
        if conditions is None:
            conditions = self.told(weights, values["timestep"])
        batch, prompts = rows[self.PROMPTS[0]].shape[:2]
        tokens, grids = tokens_and_grids(rows)
        velocity = self.network(weights, "transformer")(
            jnp.repeat(tokens, prompts, axis=0),
            *(each_alone(rows[name]) for name in self.PROMPTS),
            jax.tree.map(partial(jnp.repeat, repeats=prompts, axis=0), conditions),
            grids,
            cache,
        )
        velocity = velocity[:, : rows["latents"].shape[1]].astype(jnp.float32)
        return velocity.reshape(batch, prompts, *velocity.shape[1:])

    def told(self, weights: ChatNetworks, timestep: Float[Array, " times"]) -> PyTree:
        """Return what the transformer is told of time."""
        return timestep


class ModulatedPipeline(ChatPipeline):
    """Pipeline of a transformer whose `conditions` are modulations, made of time alone."""

    def conditions(
        self,
        program: StepProgram,
        weights: ChatNetworks,
        row: PyTree,
        values: Mapping[str, jax.Array],
    ) -> Modulations:
        """Compute the modulations of some steps of one row."""
        with self.options(program, values).active():
            return self.told(weights, values["timestep"])

    def told(self, weights: ChatNetworks, timestep: Float[Array, " times"]) -> Modulations:
        """Compute the modulations at every time."""
        transformer = nnx.merge(self.graphs.transformer, in_place(weights.transformer))
        found: Modulations = transformer.conditions(timestep)
        return found
