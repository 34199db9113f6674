"""Encoding in two programs: the conditioning that all seeds share, and the rest of the row.

The conditioning is mostly the text encoders' output. It can be reused for images that differ in the
noise only (workers/engine/prompt_cache.py). The two programs are always separate, whether it is
reused or not, so that reuse changes no bit of an image.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.stages import Traced

from models.interface.pipeline import PyTree
from models.parallel import jax_internals
from workers.programs.bucket_programs import Program

NOISE = "noise"
"""Part of the names of inputs that differ by seed."""
MAX_INPUT_BYTES = 64 << 20
"""Maximum size of the inputs of a reusable part: prompts and reference images, but no videos, whose
conditioning is too large to keep."""

Inputs = Mapping[str, np.ndarray]
Recall = Callable[[Inputs, Callable[[], PyTree]], PyTree]
"""Function that returns the conditioning for these inputs. Its second argument computes it."""


class PromptPart(NamedTuple):
    """Part of a row that depends on weights and on inputs without noise: the encoded prompt."""

    entries: tuple[str, ...]
    """Names of the row's entries; empty: nothing is worth reusing."""
    inputs: tuple[str, ...]
    """Names of the inputs that they depend on."""


def prompt_part(traced: Traced, inputs: Inputs) -> PromptPart:
    """Return the reusable part of an encode program, (weights, inputs) → row."""
    program, names = traced.jaxpr.jaxpr, sorted(inputs)
    weights = len(program.invars) - len(names)
    entries = [path[0].key for path, _ in jax.tree.leaves_with_path(traced.out_info)]
    part: dict[str, list[str]] = {}
    for entry in dict.fromkeys(entries):
        _, used = jax_internals.dce_jaxpr(program, [name == entry for name in entries])
        read = [name for name, is_used in zip(names, used[weights:], strict=True) if is_used]
        if any(used[:weights]) and read and _is_reusable(inputs, read):
            part[entry] = read
    return PromptPart(tuple(part), tuple(sorted({name for read in part.values() for name in read})))


def _is_reusable(inputs: Inputs, read: Collection[str]) -> bool:
    has_noise = any(NOISE in name for name in read)
    return not has_noise and sum(inputs[name].nbytes for name in read) <= MAX_INPUT_BYTES


def computed(inputs: Inputs, compute: Callable[[], PyTree]) -> PyTree:
    """Compute the prompt's encoding: the `Recall` without a cache."""
    return compute()


def whole_program(program: Program) -> Program:
    """Return an encode program without a reusable part: (weights, inputs, recall) → row."""

    def encode(weights: list[Any], inputs: Inputs, recall: Recall = computed) -> PyTree:
        return program(weights, inputs)

    return _composed(encode, program)


def joined_program(conditioning: Program, rest: Program, part: PromptPart) -> Program:
    """Join the programs of both parts of `encode`: (weights, inputs, recall) → row."""

    def encode(weights: list[Any], inputs: Inputs, recall: Recall = computed) -> PyTree:
        read = {name: inputs[name] for name in part.inputs}
        shared = recall(read, lambda: conditioning(weights, inputs))
        return {**rest(weights, inputs), **shared}

    return _composed(encode, conditioning, rest)


def _composed(encode: Program, *parts: Program) -> Program:
    """Record the compiled programs that an encode function runs."""
    encode.parts = parts  # type: ignore[attr-defined]
    return encode


def compiled_programs(program: Program) -> list[Any]:
    """Return the compiled programs that a program consists of."""
    program = inspect.unwrap(program)
    parts = getattr(program, "parts", None)
    return (
        [program] if parts is None else [each for part in parts for each in compiled_programs(part)]
    )
