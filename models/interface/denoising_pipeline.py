"""Base of the pipelines of all families; a family fills in the hooks.

lay_out (host) → embed → predict × n → decode (device)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Shaped

from models.interface.adapters import (
    encoder_inputs,
    requested_adapters,
    row_adapters,
    with_adapters,
)
from models.interface.apply_presets import apply_levers, quality_of
from models.interface.pipeline import Clip, Fields, Prepared, PyTree, RequestWarning, Step
from models.interface.progressive import part_of
from models.interface.solver_step import around_the_mask, history, solver_step
from models.interface.step_program import StepProgram
from models.interface.token_buckets import size_leaves
from models.nn.layers.step_cache import CachedStep, cache_input, cached_step, updated_cache
from models.parallel.placement import gathered
from models.parallel.trace_options import TraceOptions, trace_options
from models.sampling.guidance import classifier_free, of_first_prompt
from models.sampling.solver import Stepped
from models.spec.model_spec import ModelSpec

Networks = TypeVar("Networks", bound=tuple[Any, ...])
"""Named tuple with one entry a network; None: the checkpoint has none of that name."""


@dataclass(frozen=True)
class Draft:
    """Image or video as its family lays it out, before presets change its steps."""

    bucket: str
    inputs: Mapping[str, np.ndarray]
    steps: tuple[Step, ...]
    width: int
    height: int
    seed: int
    prompts: int
    """Prompts that the network answers: 2 with the negative one."""
    tokens: int = 0
    """Tokens of the latents, for step caches; 0: the family has none."""
    warnings: tuple[RequestWarning, ...] = ()
    step_bucket: str = ""
    """Key of what its steps see, as of `Prepared`."""
    uncached: frozenset[str] = frozenset()
    """Networks whose steps have no step cache and run whole."""


class DenoisingPipeline(ABC, Generic[Networks]):
    """Implementation of `models.interface.pipeline.Pipeline` for a family that fills in its hooks.

    Every row has latents and denoised (the last step's estimate of the clean latents), both
    float32; history, the solver's; and the embeddings of its prompts, whose first axis is the
    prompts, of which the second is the negative one.
    """

    PROMPTS: ClassVar[tuple[str, ...]]
    """Leaves of a row that have an entry for each of its prompts."""
    ENCODERS: ClassVar[tuple[str, ...]] = ()
    """Names of the text encoders that adapters may change."""
    SPELLINGS: ClassVar[tuple[Any, ...]] = ()
    """Spellings of its networks' layers in files of adapters, as `models.adapters.layer_names`."""
    SCALE: ClassVar[str] = "guidance_scale"
    """Entry of a step's values that is the scale of classifier-free guidance."""

    def __init__(self, spec: ModelSpec, modules: Networks) -> None:
        split = [(None, None) if module is None else nnx.split(module) for module in modules]
        kind: Any = type(modules)
        self.spec = spec
        self.graphs: Networks = kind(*(graph for graph, _ in split))
        self.weights: Networks = kind(*(weights for _, weights in split))

    @abstractmethod
    def lay_out(self, fields: Fields, images: Mapping[str, bytes]) -> Draft:
        """Read a request and make tokens, noise and the table of steps. NumPy only.

        Raises: RequestError: the request cannot be served; names the field.
        """

    @abstractmethod
    def embed(self, weights: Networks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Return the family's part of a row: first latents, embeddings, conditions."""

    @abstractmethod
    def predict(
        self,
        program: StepProgram,
        weights: Networks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: PyTree,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts ..."]:
        """Return the network's output for every prompt of every row, in one call, float32."""

    @abstractmethod
    def decode(self, weights: Networks, row: PyTree) -> jax.Array | Clip:
        """Decode a row: uint8 [height, width, 3]; of video [frames, height, width, 3]."""

    @abstractmethod
    def preview(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode a row's estimate of the clean latents, small and without the VAE."""

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> Prepared:
        """Lay out a request, with its steps as its preset runs them."""
        draft, quality = self.lay_out(fields, images), quality_of(self.spec, fields)
        adapters, part = requested_adapters(fields), part_of(fields)
        before = part.before if part else 0
        inputs = {**draft.inputs, **encoder_inputs(adapters, self.ENCODERS)}
        if quality.step_cache:
            inputs |= cache_input(draft.prompts, draft.tokens, quality.depth)
        steps = apply_levers(draft.steps, quality, draft.uncached, before)
        steps = with_adapters(steps, adapters, before)
        return Prepared(
            ",".join(filter(None, (draft.bucket, quality.key))),
            inputs,
            steps[: part.steps] if part else steps,
            draft.width,
            draft.height,
            draft.seed,
            draft.warnings,
            adapters,
            ",".join(filter(None, (draft.step_bucket, draft.step_bucket and quality.key))),
        )

    def encode(self, weights: Networks, inputs: Mapping[str, jax.Array]) -> PyTree:
        """Make one row of a request's inputs."""
        with replace(trace_options(), adapters=row_adapters(inputs, rows=1)).active():
            row = self.embed(weights, inputs)
        return {
            "denoised": jnp.zeros_like(row["latents"]),
            "history": history(inputs),
            **size_leaves(inputs),
            **row,
        }

    def conditions(
        self,
        program: StepProgram,
        weights: Networks,
        row: PyTree,
        values: Mapping[str, jax.Array],
    ) -> PyTree:
        """Return None: what depends on time and prompt alone is too little to compute ahead."""

    def step(
        self,
        program: StepProgram,
        weights: Networks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: PyTree = None,
    ) -> PyTree:
        """Run the network, guidance and the solver once for a batch of rows."""
        seen = rows if program.guided else of_first_prompt(rows, *self.PROMPTS)
        cache = cached_step(program.cache, rows, values)
        with self.options(program, values).active():
            output = self.predict(program, weights, seen, values, conditions, cache)
        stepped = self.advance(program, rows, self.guide(output, values), values)
        return {**rows, **stepped._asdict(), **updated_cache(cache)}

    def options(self, program: StepProgram, values: Mapping[str, jax.Array]) -> TraceOptions:
        """Return the options to trace a step's network with."""
        return replace(trace_options(), quant=program.quant, adapters=row_adapters(values))

    def guide(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Join the predictions with and without the prompt, where there are two."""
        if output.shape[1] == 1:
            return output[:, 0]
        return self.joined(output, values)

    def joined(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Extrapolate from the negative prompt's prediction towards and beyond the prompt's."""
        scale = values[self.SCALE][:, *(None,) * (output.ndim - 2)]
        return classifier_free(output[:, 0], output[:, 1], scale)

    def advance(
        self,
        program: StepProgram,
        rows: PyTree,
        output: Float[Array, "batch ..."],
        values: Mapping[str, jax.Array],
    ) -> Stepped:
        """Take the solver's step, outside a mask back to the image that is kept."""
        stepped = solver_step(program, rows["latents"], output, rows["history"], values)
        return around_the_mask(stepped, rows, values) if "clean" in rows else stepped

    def spatial(self, row: PyTree) -> Float[Array, "h w c"]:
        """Return a row's latents where they lie in its image."""
        latents: Array = row["latents"]
        return latents

    def network(self, weights: Networks, name: str) -> Any:
        """Return a network with its weights gathered; None: the checkpoint has none such."""
        graph, state = getattr(self.graphs, name), getattr(weights, name)
        return None if graph is None else nnx.merge(graph, gathered(state))


def each_alone(x: Shaped[Array, "rows prompts ..."]) -> Shaped[Array, "both ..."]:
    """Flatten each prompt of each row into a row of its own."""
    return x.reshape(-1, *x.shape[2:])
