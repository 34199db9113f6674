"""Toy pipeline with two experts in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from models.interface.pipeline import Fields, PyTree
from models.interface.step_program import StepProgram
from tests.workers.toy import DIM, ToyPipeline

SIDE = 512
"""Side of an expert's float32 matrix, which has 1 MiB."""


class Expert(NamedTuple):
    gain: np.ndarray
    ballast: np.ndarray


class TwoExperts(ToyPipeline):
    """Toy pipeline that uses the expert `high` in the first half of its steps, then `low`.

    Both experts are NumPy arrays. Every step waits at the gate, which is open unless a test closes
    it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate.open()
        ballast = np.zeros((SIDE, SIDE), np.float32)
        gains = {"high": np.float32(1), "low": np.float32(-3)}
        experts = {name: Expert(np.full(DIM, gain), ballast + gain) for name, gain in gains.items()}
        self.weights = self.weights | experts

    def step(
        self,
        program: StepProgram,
        weights: PyTree,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree = None,
    ) -> PyTree:
        rows = super().step(StepProgram("gated"), weights, rows, values, modulations)
        if program.network in ("high", "low"):
            expert = weights[program.network]
            gain = expert.gain + expert.ballast[:DIM, 0] - expert.ballast[-DIM:, 1]
            rows = {**rows, "latents": rows["latents"] + 0.1 * gain}
        return rows


def fields(steps: int, seed: int = 0) -> Fields:
    return {
        "phase": "high",
        "second_phase": "low",
        "num_inference_steps": steps,
        "seed": seed,
        "prompt": "a hat",
    }
