"""Image pipelines whose prompts are messages encoded by a chat model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32

from models.control.slots import NO_CONTROLS, ControlSlots
from models.interface.apply_presets import quality_of
from models.interface.denoising_pipeline import Draft, flatten_prompts
from models.interface.pipeline import PyTree, Step
from models.interface.step_program import StepProgram
from models.interface.token_buckets import EXTENT, buckets_of, padded_to, size_inputs
from models.nn.layers.row_grids import RowGrids
from models.nn.layers.step_cache import CachedStep
from models.parallel.dtypes import used_dtype
from models.parallel.placement import cast_in_place
from models.sampling.flow_match import FlowMatchEuler
from models.spec.model_spec import ModelSpec
from models.spec.request import FlowRequest
from models.text.tokenizer import ReadTexts, Tokenizer, cut_prompts
from models.vae.config import Tiling
from models.vae.packed_latents import PackedLatentPipeline
from models.vae.references import INPUT, Grid, tokens_and_grids


class ChatNetworks(NamedTuple):
    """One value per network of a checkpoint: modules, graphs or weights."""

    transformer: Any
    text_encoder: Any
    vae: Any
    preview: Any
    vision: Any = None
    """Tower that reads images for the text encoder; None: the checkpoint has none."""
    controls: Any = None
    """List of ControlNets; None if the model has no ControlNets."""


class ChatPipeline(PackedLatentPipeline[ChatNetworks]):
    """Base pipeline for families with a chat model as text encoder."""

    ENCODER: ClassVar[str]
    """Name of the chat model in warnings."""
    CUT: int = 0
    """Number of leading chat tokens that the transformer does not receive."""

    def __init__(
        self,
        spec: ModelSpec,
        modules: ChatNetworks,
        scheduler: FlowMatchEuler,
        tokenizer: Tokenizer,
        vae_tiling: Tiling | None = None,
        controls: ControlSlots = NO_CONTROLS,
    ) -> None:
        transformer = modules.transformer
        super().__init__(spec, modules, used_dtype(transformer.latents_in.kernel), vae_tiling)
        self.config, self.scheduler, self.tokenizer = transformer.config, scheduler, tokenizer
        self.controls = controls
        self.width: int = transformer.latents_in.out_features
        """Features of a token in the transformer."""
        self.latent_channels: int = transformer.latents_in.in_features // self.PATCH**2
        multiple, even = spec.limits.size_multiple_px, self.break_even_tokens
        usual = spec.defaults["width"] * spec.defaults["height"] // multiple**2
        self.buckets = buckets_of(spec, usual, even) if even else None
        self._most_side = spec.limits.max_side_px // multiple

    @property
    def break_even_tokens(self) -> int:
        """Tokens at which attention costs as much as all products, as in `TokenBuckets`.

        0: the family has no token buckets.
        """
        return 0

    @staticmethod
    def pack_on_host(latents: Float32[np.ndarray, "h w c"]) -> Float32[np.ndarray, "tokens patch"]:
        """Pack noise into tokens."""
        raise NotImplementedError

    def build_draft(
        self,
        request: FlowRequest,
        inputs: Mapping[str, np.ndarray],
        steps: tuple[Step, ...],
        tokens: int,
        bucket: str = "",
        head: str = "",
    ) -> Draft:
        """Tokenize the prompts of a request and build its draft.

        Args:
            inputs: other inputs than tokens.
            tokens: number of tokens of the latents, and of references after them.
            bucket: suffix of the bucket's key.
            head: text before each prompt, not counted in the request's limit.
        """
        texts = {field: head + text for field, text in request.prompts.items()}
        limit = request.max_sequence_length + self.CUT + len(self.tokenizer.pieces([head])[0])
        read = self.read_texts(request, texts, limit)
        size, text = f"{request.width}x{request.height}", request.max_sequence_length
        return Draft(
            f"{size},text={text},prompts={len(texts)}{bucket}",
            {**read.inputs, **inputs},
            steps,
            request.width,
            request.height,
            request.seed,
            len(texts),
            tokens,
            read.warnings,
        )

    def read_texts(self, request: Any, texts: Mapping[str, str], limit: int) -> ReadTexts:
        """Tokenize the prompts: `ids`, `read` (False for padding), and the encoder's other inputs.

        Args:
            texts: by request field.
            limit: of tokens of a prompt, markers included.
        """
        ids, mask = self.tokenizer.encode_with_mask([*texts.values()], limit)
        warnings = cut_prompts(self.ENCODER, self.tokenizer, texts, limit)
        return ReadTexts({"ids": ids, "read": mask}, warnings)

    def in_token_bucket(self, draft: Draft, request: FlowRequest, grid: Grid) -> Draft:
        """Pad the tokens of a draft to those of its token bucket, if it has one.

        References have sizes of their own, and a step cache's signal is a mean over tokens.

        Args:
            grid: rows and columns of the VAE's latents.
        """
        if self.buckets is None or max(grid) > self.PATCH * self._most_side:
            return draft
        has_references = any(name.startswith(INPUT) for name in draft.inputs)
        if has_references or quality_of(self.spec, request.quality).step_cache:
            return draft
        tokens = self.buckets.padded_tokens(draft.tokens)
        noise = padded_to(tokens, self.pack_on_host(draft.inputs["noise"]))
        size = f"{draft.width}x{draft.height},"
        kind = f"{draft.bucket.removeprefix(size)},tokens={tokens}"
        inputs = {**draft.inputs, "noise": noise, **size_inputs(grid, (self.PATCH, self.PATCH))}
        return replace(draft, bucket=size + kind, inputs=inputs, step_bucket=kind)

    def predict(
        self,
        program: StepProgram,
        weights: ChatNetworks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts tokens patch"]:
        """Return the velocity for every prompt of every row.

        The transformer receives the latents' tokens, then those of references; the rows' prompt
        inputs; the time's conditioning; the images' grids; and the step cache.
        """
        if modulations is None:
            modulations = self.time_conditioning(weights, values)
        batch, prompts = rows[self.PROMPTS[0]].shape[:2]
        tokens, grids = self._tokens_and_grids(rows, prompts)
        velocity = self.network(weights, "transformer")(
            jnp.repeat(tokens, prompts, axis=0),
            *(flatten_prompts(rows[name]) for name in self.PROMPTS),
            jax.tree.map(partial(jnp.repeat, repeats=prompts, axis=0), modulations),
            grids,
            cache,
            **self.network_inputs(weights, rows, values),
        )
        velocity = velocity[:, : rows["latents"].shape[1]].astype(jnp.float32)
        of_prompts: Array = velocity.reshape(batch, prompts, *velocity.shape[1:])
        if isinstance(grids, RowGrids):
            return grids._replace(extents=rows[EXTENT]).zeroed(of_prompts)
        return of_prompts

    def _tokens_and_grids(
        self, rows: PyTree, prompts: int
    ) -> tuple[Float[Array, "batch image_tokens patch"], tuple[Grid, ...] | RowGrids]:
        """Return the image tokens of rows, and their grids; of padded rows for each prompt."""
        if EXTENT not in rows:
            return tokens_and_grids(rows, self.PATCH)
        tokens = rows["latents"]
        return tokens, RowGrids(rows[EXTENT], tokens.shape[1], self._most_side).repeated(prompts)

    def network_inputs(
        self, weights: ChatNetworks, rows: PyTree, values: Mapping[str, jax.Array]
    ) -> Mapping[str, Any]:
        """Return the transformer's inputs beyond latents, prompts and time; by default none."""
        return {}

    def time_conditioning(self, weights: ChatNetworks, values: Mapping[str, jax.Array]) -> PyTree:
        """Return the transformer's time input, from the inputs of some steps."""
        return values["timestep"]


class ModulatedPipeline(ChatPipeline):
    """Pipeline of a transformer whose modulations are computed from inputs of the steps only."""

    CONDITIONS: ClassVar[tuple[str, ...]] = ("timestep",)
    """Inputs of a step from which the transformer computes its modulations."""

    def modulations(
        self,
        program: StepProgram,
        weights: ChatNetworks,
        row: PyTree,
        values: Mapping[str, jax.Array],
    ) -> PyTree:
        """Compute the modulations of some steps of one row."""
        with self.options(program, values).active():
            return self.time_conditioning(weights, values)

    def time_conditioning(self, weights: ChatNetworks, values: Mapping[str, jax.Array]) -> PyTree:
        """Compute the modulations of each step."""
        transformer = nnx.merge(self.graphs.transformer, cast_in_place(weights.transformer))
        return transformer.conditions(*(values[name] for name in self.CONDITIONS))
