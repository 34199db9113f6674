"""The protocol every family fulfils: what the engine asks of a model.

An image or a video is one *row*. On the host, `prepare` turns a resolved request into NumPy inputs
and a table of steps (per-row values, one entry a step). On the device, pure functions take the
weights as their first argument, so that the engine decides what is compiled, batched and placed:

    prepare (host) → encode (device) → step × n (device, rows batched) → decode (device)

What a step is told by its time and its prompt alone, `conditions` computes ahead, for many steps of
a row at once: the parameters that only this needs are then read once for all of them.

A row is a pytree without a batch axis; `step` gets rows stacked on a new leading axis. Everything
that differs between neighbours (sigma, guidance, progress, solver history) is row data, so rows of
any progress share one executable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from models.interface.step_program import StepProgram
from models.spec.lora import RequestedLora
from models.spec.model_spec import ModelSpec

PyTree = Any
Fields = Mapping[str, Any]


class RequestError(ValueError):
    """A request that this model cannot serve. `field` names what is wrong with it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True)
class RequestWarning:
    """Warning about a field of a request without effect, or with another than it names."""

    field: str
    message: str


@dataclass(frozen=True)
class Step:
    """Denoising step of one row, decided on the host before the first one runs."""

    phase: StepProgram
    """Program that runs it: rows of one bucket and phase are batched together."""
    values: Mapping[str, np.ndarray | np.float32]
    """Values of this row (sigma, guidance, the step's noise and so on), all float32; the same names
    and shapes in all steps of a phase."""
    work: float = 1.0
    """Work of this step, where it differs by row: as a multiple of the program's usual one."""


@dataclass(frozen=True)
class Prepared:
    """Image or video, ready for the device."""

    bucket: str
    """Key of the row's compiled shape: rows with equal keys can be batched. (Inputs of `encode`
    may still differ in kind: with or without an image.)"""
    inputs: Mapping[str, np.ndarray]
    """Tokens, noise, input image: all that `encode` reads."""
    steps: tuple[Step, ...]
    width: int
    height: int
    seed: int
    warnings: tuple[RequestWarning, ...] = ()
    adapters: tuple[RequestedLora, ...] = ()
    """Adapters whose pages its steps read (models/interface/adapters.py)."""
    step_bucket: str = ""
    """Key of the shapes that its steps see, where rows of other sizes have the same
    (models/interface/token_buckets.py); empty: the bucket's rows alone."""


class Clip(NamedTuple):
    """Video with its sound, as `decode` returns it: a pytree."""

    pixels: Any
    """uint8 [frames, height, width, 3]."""
    sound: Any
    """float32 [channels, samples] of -1 to 1, at the spec's `sound_hz`."""


@runtime_checkable
class Pipeline(Protocol):
    """Loaded model. All device functions are pure and may be jitted by the caller."""

    spec: ModelSpec
    weights: PyTree
    """Parameters as a pytree of arrays by network; first argument of every device function.

    Where a network's leaves are NumPy arrays, its weights lie on the host: the engine brings them
    to the device for the steps whose program names it, in place of another such network's.
    """

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> Prepared:
        """Tokenize, draw the noise, lay out the steps. NumPy only; may run in any thread.

        Args:
            fields: one image's resolved request: every field of the spec's defaults for the
                task, `prompt`, `seed`; `num_images` is 1 here (the pool makes one row an image).
            images: request images by field name (`image`, `mask_image`, …), as file bytes.

        Raises:
            RequestError: the request cannot be served; names the field.
        """
        ...

    def encode(self, weights: PyTree, inputs: Mapping[str, jax.Array]) -> PyTree:
        """Text encoders, image encoder, first latents: inputs → one row (no batch axis)."""
        ...

    def conditions(
        self,
        program: StepProgram,
        weights: PyTree,
        row: PyTree,
        values: Mapping[str, jax.Array],
    ) -> PyTree:
        """Precompute the part of several steps that does not depend on the latents.

        Such as timestep, guidance and pooled text: every leaf of values and of the result has a
        leading step axis. None: not worth it here.

        Args:
            row: no leaf that steps change may be read.
        """
        ...

    def step(
        self,
        program: StepProgram,
        weights: PyTree,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        conditions: PyTree = None,
    ) -> PyTree:
        """Run one denoising step of a batch: every leaf of rows and values has a leading row axis.

        The program says all that tracing needs: a pipeline that never prepared a request, in
        another process of its slice, traces the same.

        `rows["latents"]` holds the latents; the engine checks them for non-finite values.

        Args:
            conditions: of these rows in this step, with a leading row axis; None: computed here.
        """
        ...

    def decode(self, weights: PyTree, row: PyTree) -> jax.Array | Clip:
        """Latents → pixels, uint8 [height, width, 3]; of video [frames, height, width, 3].

        With its sound, where the spec has a `sound_hz`.
        """
        ...

    def spatial(self, row: PyTree) -> jax.Array:
        """A row's latents where they lie in its image: [h, w, c]."""
        ...

    def preview(self, weights: PyTree, row: PyTree) -> jax.Array:
        """A small, cheap image of an unfinished row, as `decode` gives it: no VAE."""
        ...


def stack_rows(rows: list[PyTree]) -> PyTree:
    """Rows → one batch, each leaf with a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def denoise(pipeline: Pipeline, prepared: Prepared) -> Iterator[PyTree]:
    """The row after encoding and after each step, one image alone, with no engine around it.

    The plain reference loop: parity tests hold it against diffusers, engine tests hold the engine
    against it.
    """
    row = jax.jit(pipeline.encode)(pipeline.weights, dict(prepared.inputs))
    yield row
    programs: dict[StepProgram, Callable[..., PyTree]] = {}
    for step in prepared.steps:
        if step.phase not in programs:
            programs[step.phase] = jax.jit(
                lambda w, r, s, phase=step.phase: jax.tree.map(
                    lambda leaf: leaf[0], pipeline.step(phase, w, stack_rows([r]), s)
                )
            )
        values = {name: np.asarray(value, np.float32)[None] for name, value in step.values.items()}
        row = programs[step.phase](pipeline.weights, row, values)
        yield row


def generate(pipeline: Pipeline, fields: Fields, images: Mapping[str, bytes]) -> Any:
    """Generate one image or video, start to end, without an engine; return what `decode` does."""
    *_, row = denoise(pipeline, pipeline.prepare(fields, images))
    return jax.tree.map(np.asarray, jax.jit(pipeline.decode)(pipeline.weights, row))


def parted(decoded: Any) -> tuple[Any, Any]:
    """Return what `decode` returned as pixels and sound; None: it has none."""
    return decoded if isinstance(decoded, Clip) else (decoded, None)
