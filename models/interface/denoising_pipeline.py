"""Base class of all families' pipelines, with hooks that each family implements.

plan_request (host) → embed → predict × n → decode (device)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Shaped

from models.interface.adapters import encoder_inputs, row_adapters, with_adapters
from models.interface.apply_presets import apply_optimizations, quality_of
from models.interface.pipeline import Clip, Fields, PreparedRow, PyTree, RequestWarning, Step
from models.interface.solver_step import history, restore_outside_mask, solver_step
from models.interface.step_program import StepProgram
from models.interface.token_buckets import size_leaves
from models.nn.layers.step_cache import CachedStep, cache_input, cached_step, updated_cache
from models.parallel.placement import gather_for_use
from models.parallel.trace_options import TraceOptions, trace_options
from models.sampling.guidance import classifier_free, of_first_prompt
from models.sampling.solver import SolverOutput
from models.spec.model_spec import ModelSpec
from models.spec.request import Request, read_request

Networks = TypeVar("Networks", bound=tuple[Any, ...])
"""Named tuple with one entry per network; None: the checkpoint lacks the network."""


@dataclass(frozen=True)
class Draft:
    """Prepared image or video before presets change its steps."""

    bucket: str
    inputs: Mapping[str, np.ndarray]
    steps: tuple[Step, ...]
    width: int
    height: int
    seed: int
    prompts: int
    """Prompts that the network evaluates: 2 with a negative prompt."""
    tokens: int = 0
    """Tokens of the latents, for step caches; 0: not applicable to the family."""
    warnings: tuple[RequestWarning, ...] = ()
    step_bucket: str = ""
    """Key of the shapes that its steps receive, as in `PreparedRow`."""
    cached_tokens: int = 0
    """Tokens that a step cache stores; 0: `tokens`."""
    uncached: frozenset[str] = frozenset()
    """Networks whose steps always run in full, without a step cache."""


class DenoisingPipeline(ABC, Generic[Networks]):
    """Implementation of `models.interface.pipeline.Pipeline`, based on a family's hooks.

    Every row contains `latents` and `denoised` (the last step's estimate of the clean latents),
    both float32, the solver's `history`, and prompt embeddings. The first axis of embeddings is the
    prompt; the second entry is the negative prompt.
    """

    REQUEST: ClassVar[Callable[..., Request]]
    """Request class of the family."""
    PROMPTS: ClassVar[tuple[str, ...]]
    """Leaves of a row with an entry per prompt."""
    ENCODERS: ClassVar[tuple[str, ...]] = ()
    """Names of the text encoders that adapters may change."""
    SPELLINGS: ClassVar[tuple[Any, ...]] = ()
    """Naming schemes of its networks' layers in adapter files, as in `models.adapters.layer_names`.
    """
    SCALE: ClassVar[str] = "guidance_scale"
    """Name of the classifier-free guidance scale in a step's values."""

    def __init__(self, spec: ModelSpec, modules: Networks) -> None:
        split = [(None, None) if module is None else nnx.split(module) for module in modules]
        kind: Any = type(modules)
        self.spec = spec
        self.graphs: Networks = kind(*(graph for graph, _ in split))
        self.weights: Networks = kind(*(weights for _, weights in split))

    @abstractmethod
    def plan_request(self, request: Any, images: Mapping[str, bytes]) -> Draft:
        """Create a request's tokens, noise and table of steps. NumPy only.

        Args:
            request: of the class `REQUEST`.

        Raises: RequestError: the request is not supported; names the field.
        """

    @abstractmethod
    def embed(self, weights: Networks, inputs: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Return the family's part of a row: first latents and conditioning."""

    @abstractmethod
    def predict(
        self,
        program: StepProgram,
        weights: Networks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree,
        cache: CachedStep | None,
    ) -> Float[Array, "batch prompts ..."]:
        """Return the network's output for every prompt of every row, in one call, float32."""

    @abstractmethod
    def decode(self, weights: Networks, row: PyTree) -> jax.Array | Clip:
        """Decode a row: uint8 [height, width, 3]; of video [frames, height, width, 3].

        If the spec's `has_alpha` is true, images have four channels.
        """

    @abstractmethod
    def preview(self, weights: Networks, row: PyTree) -> jax.Array:
        """Decode a row's estimate of the clean latents, small and without the VAE."""

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        """Validate and prepare a request, and apply its preset and adapters to its steps."""
        request = self.read(fields)
        draft, quality = self.plan_request(request, images), quality_of(self.spec, request.quality)
        adapters, part = request.adapters, request.progressive
        before = part.before if part else 0
        inputs = {**draft.inputs, **encoder_inputs(adapters, self.ENCODERS)}
        if quality.step_cache:
            cached = draft.cached_tokens or draft.tokens
            inputs |= cache_input(draft.prompts, cached, quality.depth)
        steps = apply_optimizations(draft.steps, quality, draft.uncached, before)
        steps = with_adapters(steps, adapters, before)
        return PreparedRow(
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

    def read(self, fields: Fields) -> Request:
        """Parse a resolved request as the family's request class. Raises: RequestError."""
        return read_request(self.REQUEST, fields)

    def encode(self, weights: Networks, inputs: Mapping[str, jax.Array]) -> PyTree:
        """Create a row from a request's inputs."""
        with replace(trace_options(), adapters=row_adapters(inputs, rows=1)).active():
            row = self.embed(weights, inputs)
        return {
            "denoised": jnp.zeros_like(row["latents"]),
            "history": history(inputs, row["latents"]),
            **size_leaves(inputs),
            **row,
        }

    def modulations(
        self,
        program: StepProgram,
        weights: Networks,
        row: PyTree,
        values: Mapping[str, jax.Array],
    ) -> PyTree:
        """Return None: by default nothing is precomputed, since it would save too little."""

    def step(
        self,
        program: StepProgram,
        weights: Networks,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree = None,
    ) -> PyTree:
        """Run the network, guidance and the solver once for a batch of rows."""
        visible = rows if program.guided else of_first_prompt(rows, *self.PROMPTS)
        cache = cached_step(program.cache, rows, values)
        with self.options(program, values).active():
            output = self.predict(program, weights, visible, values, modulations, cache)
        stepped = self.advance(program, rows, self.guide(output, values), values)
        return {**rows, **stepped._asdict(), **updated_cache(cache)}

    def options(self, program: StepProgram, values: Mapping[str, jax.Array]) -> TraceOptions:
        """Return the trace options of a step's network."""
        return replace(trace_options(), quant=program.quant, adapters=row_adapters(values))

    def guide(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Apply guidance if the output has two prompts."""
        if output.shape[1] == 1:
            return output[:, 0]
        return self.combine_prompts(output, values)

    def combine_prompts(
        self, output: Float[Array, "batch prompts ..."], values: Mapping[str, jax.Array]
    ) -> Float[Array, "batch ..."]:
        """Apply classifier-free guidance: extrapolate from the negative prompt's prediction."""
        scale = values[self.SCALE][:, *(None,) * (output.ndim - 2)]
        return classifier_free(output[:, 0], output[:, 1], scale)

    def advance(
        self,
        program: StepProgram,
        rows: PyTree,
        output: Float[Array, "batch ..."],
        values: Mapping[str, jax.Array],
    ) -> SolverOutput:
        """Run the solver, and restore the image outside a mask."""
        stepped = solver_step(program, rows["latents"], output, rows["history"], values)
        return restore_outside_mask(stepped, rows, values) if "clean" in rows else stepped

    def spatial(self, row: PyTree) -> Float[Array, "*shape"]:
        """Return a row's latents in spatial order; flat latents (LTX) unchanged."""
        latents: Array = row["latents"]
        return latents

    def network(self, weights: Networks, name: str) -> Any:
        """Return a network with its weights gathered; None: the checkpoint lacks the network."""
        graph, state = getattr(self.graphs, name), getattr(weights, name)
        return None if graph is None else nnx.merge(graph, gather_for_use(state))


def flatten_prompts(x: Shaped[Array, "rows prompts ..."]) -> Shaped[Array, "both ..."]:
    """Flatten the axes of rows and prompts into one batch axis."""
    return x.reshape(-1, *x.shape[2:])
