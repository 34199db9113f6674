"""Pipeline protocol between the engine and every model family.

An image or a video is one *row*. On the host, `prepare` turns a resolved request into NumPy inputs
and a table of steps (per-row values, one entry per step). Device functions are pure and take the
weights as their first argument. The engine therefore decides what is compiled, batched and placed:

    prepare (host) → encode (device) → step × n (device, rows batched) → decode (device)

`modulations` precomputes what depends on time and prompt alone, for many steps of a row at once.
The parameters that only this computation needs are then read once for all of these steps.

A row is a pytree without a batch axis; `step` gets rows stacked on a new leading axis. Everything
that differs between rows of a batch (sigma, guidance, progress, solver history) is row data. Rows
of any progress therefore share one executable.
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


@dataclass(frozen=True)
class RequestWarning:
    """Warning about a request field that has no effect, or a different effect."""

    field: str
    message: str


@dataclass(frozen=True)
class Step:
    """Denoising step of one row, decided on the host before the first step runs."""

    program: StepProgram
    """Program that runs the step: rows of equal bucket and program are batched together."""
    values: Mapping[str, np.ndarray | np.float32]
    """Values of this row (sigma, guidance, the step's noise and so on), all float32. All steps of a
    program have the same names and shapes."""
    work: float = 1.0
    """Work of this step as a multiple of the program's usual work, if it differs by row."""


@dataclass(frozen=True)
class PreparedRow:
    """Image or video prepared for the device."""

    bucket: str
    """Key of the row's compiled shape: rows with equal keys can be batched. Inputs of `encode` may
    still differ in kind, for example with or without an image."""
    inputs: Mapping[str, np.ndarray]
    """Inputs of `encode`: tokens, noise, input image."""
    steps: tuple[Step, ...]
    width: int
    height: int
    seed: int
    warnings: tuple[RequestWarning, ...] = ()
    adapters: tuple[RequestedLora, ...] = ()
    """Adapters whose pages its steps read (models/interface/adapters.py)."""
    step_bucket: str = ""
    """Key of the shapes that its steps receive, shared by rows of other sizes
    (models/interface/token_buckets.py); empty: not shared."""


class Clip(NamedTuple):
    """Video with sound, as `decode` returns it: a pytree."""

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

    NumPy leaves mean that a network's weights are in host memory. The engine transfers them to the
    device for the steps whose program names the network, in place of another host network."""

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        """Tokenize, draw the noise, create the table of steps. NumPy only; may run in any thread.

        Args:
            fields: one image's resolved request: every field of the spec's defaults for the task,
                `prompt`, `seed`. `num_images` is 1 here (the worker creates one row per image).
            images: request images by field name (`image`, `mask_image`, …), as file bytes.

        Raises:
            RequestError: the request is not supported; names the field.
        """
        ...

    def encode(self, weights: PyTree, inputs: Mapping[str, jax.Array]) -> PyTree:
        """Run text and image encoders and create first latents: inputs → a row (no batch axis)."""
        ...

    def modulations(
        self,
        program: StepProgram,
        weights: PyTree,
        row: PyTree,
        values: Mapping[str, jax.Array],
    ) -> PyTree:
        """Precompute the part of several steps that does not depend on the latents.

        Examples are timestep, guidance and pooled text. Every leaf of the values and of the result
        has a leading step axis. None: not worthwhile for this model.

        Args:
            row: leaves that steps change must not be read.
        """
        ...

    def step(
        self,
        program: StepProgram,
        weights: PyTree,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree = None,
    ) -> PyTree:
        """Run one denoising step of a batch: all leaves of rows and values have a leading row axis.

        The program contains everything that tracing needs. A pipeline in another process of the
        slice, which never prepared a request, traces the same program.

        `rows["latents"]` contains the latents; the engine checks them for non-finite values.

        Args:
            modulations: of these rows in this step, with a leading row axis; None: computed here.
        """
        ...

    def decode(self, weights: PyTree, row: PyTree) -> jax.Array | Clip:
        """Decode latents to pixels, uint8 [height, width, 3]; video: [frames, height, width, 3].

        Includes sound if the spec has a `sound_hz`.
        """
        ...

    def spatial(self, row: PyTree) -> jax.Array:
        """Return a row's latents in spatial order: [h, w, c]."""
        ...

    def preview(self, weights: PyTree, row: PyTree) -> jax.Array:
        """Decode a small, cheap preview of an unfinished row, without the VAE."""
        ...


def stack_rows(rows: list[PyTree]) -> PyTree:
    """Stack rows into a batch, each leaf with a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def denoise(pipeline: Pipeline, prepared: PreparedRow) -> Iterator[PyTree]:
    """Yield the row after encoding and after each step, for one image without an engine.

    This is the reference loop: parity tests compare it with diffusers, and engine tests compare the
    engine with it.
    """
    row = jax.jit(pipeline.encode)(pipeline.weights, dict(prepared.inputs))
    yield row
    programs: dict[StepProgram, Callable[..., PyTree]] = {}
    for step in prepared.steps:
        if step.program not in programs:
            programs[step.program] = jax.jit(
                lambda w, r, s, program=step.program: jax.tree.map(
                    lambda leaf: leaf[0], pipeline.step(program, w, stack_rows([r]), s)
                )
            )
        values = {name: np.asarray(value, np.float32)[None] for name, value in step.values.items()}
        row = programs[step.program](pipeline.weights, row, values)
        yield row


def generate(pipeline: Pipeline, fields: Fields, images: Mapping[str, bytes]) -> Any:
    """Generate one image or video without an engine, and return the output of `decode`."""
    *_, row = denoise(pipeline, pipeline.prepare(fields, images))
    return jax.tree.map(np.asarray, jax.jit(pipeline.decode)(pipeline.weights, row))


def split_sound(decoded: Any) -> tuple[Any, Any]:
    """Split the output of `decode` into pixels and sound; None: no sound."""
    return decoded if isinstance(decoded, Clip) else (decoded, None)
