"""Small pipeline with injectable faults.

It implements the real protocol with real device programs: the engine cannot distinguish it from a
model. Its faults are genuine: too little memory, NaN in the latents, a slow step, a slow
compilation.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.interface.pipeline import Fields, PreparedRow, PyTree, RequestWarning, Step
from models.interface.step_program import StepProgram
from models.spec.model_spec import Limits, ModelSpec
from models.spec.request import RequestError
from tests.workers.polling import DEADLINE_S

DIM = 16
IMPOSSIBLE = 1 << 22
"""Side of a float32 matrix of 64 TiB, more than any address space."""

NOISE = np.float32(0.5)
"""Scale of a noisy step's noise, relative to the initial noise."""

DEFAULTS = {
    "prompt": "",
    "seed": 0,
    "width": 32,
    "height": 16,
    "num_frames": None,
    "fps": 8,
    "num_inference_steps": 4,
    "guidance_scale": 2.0,
    "phase": "plain",
    "second_phase": None,
    "nan_at": -1,
    "encode": "plain",
    "decode": "plain",
}
SPEC = ModelSpec(
    name="toy",
    family="toy",
    tasks=("text-to-image",),
    fields=frozenset(DEFAULTS),
    defaults=DEFAULTS,
    limits=Limits(
        size_multiple_px=8,
        min_side_px=8,
        max_side_px=64,
        max_pixels=64 * 64,
        max_frames=16,
        max_steps=50,
        max_images=8,
        max_sequence_length=8,
    ),
    bucket_fields=("width", "height"),
    fingerprint="toy",
)


class Gate:
    """Gate where steps of the phase "gated" wait, in the device's time, until they may pass."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.passes = threading.Semaphore(0)
        self.count = 0

    def __call__(self, value: np.ndarray) -> np.ndarray:
        self.count += 1
        self.entered.release()
        assert self.passes.acquire(timeout=DEADLINE_S), "nobody opened the gate"
        return np.asarray(value)

    def open(self, steps: int = 10_000) -> None:
        self.passes.release(steps)

    def close(self) -> None:
        while self.passes.acquire(blocking=False):
            pass

    def wait(self) -> None:
        """Wait until one more step has reached the gate."""
        assert self.entered.acquire(timeout=DEADLINE_S), "no step came to the gate"


class ToyPipeline:
    """Toy pipeline with these phases of a step, named by the network of its program.

    Phases:
        plain: no fault.
        noisy: adds its own noise.
        double: evaluates twice.
        gated: waits at `gate`.
        told: uses modulations computed in advance.
        greedy: has no memory for more than one row.
        hopeless: has no memory for any row.
        single: compiles for one row only.
        flawed: does not compile the first time.
        slow-to-compile: waits for `compile_gate`.
        slow-together: does so for larger batches.
    """

    spec = SPEC

    def __init__(self) -> None:
        # NumPy's numbers: JAX compiles its generators, and XLA's options may change between toys.
        random = np.random.RandomState(0).randn(3, DIM, DIM).astype(np.float32)
        into, back, out = jnp.asarray(random / DIM**0.5)
        self.weights = {"in": into, "back": back, "out": out[:, :3]}
        self.flaws = 0
        self.gate = Gate()
        self.images: Mapping[str, bytes] = {}
        """Images of the last request."""
        self.compile_gate = threading.Event()
        """Gate where the phase "slow-to-compile" waits when it is traced."""
        self.waits_to_compile = threading.Event()
        """Set when a trace waits at `compile_gate`."""

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        self.images = images
        fields = {**DEFAULTS, **fields}
        if fields["width"] % 8:
            raise RequestError("width", f"must be a multiple of 8, not {fields['width']}")
        tokens = fields["width"] * fields["height"] // 64
        noise = np.random.RandomState(fields["seed"] % 2**32).randn(tokens, DIM).astype(np.float32)
        text = np.frombuffer(fields["prompt"].encode().ljust(DIM)[:DIM], np.uint8)
        inputs = {"noise": noise, "text": text.astype(np.int32)}
        for stage in ("encode", "decode"):
            if fields[stage] == "hopeless":
                inputs[f"hopeless_{stage}"] = np.ones((), np.float32)
        if fields["num_frames"] is not None:
            inputs["clock"] = np.zeros((fields["num_frames"], 0), np.float32)
        size = f"{fields['width']}x{fields['height']}x{fields['num_frames']},{fields['decode']}"
        steps = self._steps(fields, noise.shape)
        unread = fields["prompt"][DIM:]
        warnings = (RequestWarning("prompt", f"not read: {unread!r}"),) if unread else ()
        size_px = fields["width"], fields["height"]
        return PreparedRow(size, inputs, steps, *size_px, fields["seed"], warnings)

    def _steps(self, fields: Fields, shape: tuple[int, ...]) -> tuple[Step, ...]:
        count = fields["num_inference_steps"]
        sigmas = np.linspace(1, 0, count + 1, dtype=np.float32)
        second = fields["second_phase"] or fields["phase"]
        random = np.random.RandomState(fields["seed"] % 2**31 + 1)
        phases = [fields["phase"]] * ((count + 1) // 2) + [second] * (count // 2)
        programs = {phase: StepProgram(phase) for phase in {*phases}}
        guidance, well, poisoned = map(np.float32, (fields["guidance_scale"], 0, np.nan))
        return tuple(
            Step(
                programs[phase],
                {
                    "sigma": sigma,
                    "sigma_next": sigma_next,
                    "guidance": guidance,
                    "poison": poisoned if i == fields["nan_at"] else well,
                    **({"noise": _noise(random, shape)} if phase == "noisy" else {}),
                },
            )
            for i, (phase, sigma, sigma_next) in enumerate(
                zip(phases, sigmas[:-1], sigmas[1:], strict=True)
            )
        )

    def encode(self, weights: PyTree, inputs: Mapping[str, jax.Array]) -> PyTree:
        latents = inputs["noise"]
        if "hopeless_encode" in inputs:
            latents = latents + impossible(inputs["hopeless_encode"])
        row = {"latents": latents, "prompt": jnp.tanh(inputs["text"] / 64) @ weights["in"]}
        return row | {name: inputs[name] for name in ("hopeless_decode", "clock") if name in inputs}

    def modulations(
        self, program: StepProgram, weights: PyTree, row: PyTree, values: Mapping[str, jax.Array]
    ) -> PyTree:
        """Return the term that the phase "told" adds to the hidden layer."""
        if program.network != "told":
            return None
        return {"hint": values["guidance"][:, None] * row["prompt"]}

    def step(
        self,
        program: StepProgram,
        weights: PyTree,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree = None,
    ) -> PyTree:
        phase = program.network
        column = {name: values[name][:, None, None] for name in values if name != "noise"}
        latents = rows["latents"] + column["poison"]
        if phase == "noisy":
            latents = latents + NOISE * values["noise"]
        if phase == "slow-to-compile" or (phase == "slow-together" and len(latents) > 1):
            self.waits_to_compile.set()
            assert self.compile_gate.wait(DEADLINE_S)
        if phase == "single" and len(latents) > 1:
            raise MemoryError("the compiler's own")
        if phase == "flawed":
            self.flaws += 1
            assert self.flaws > 1
        if phase == "gated":
            latents = jax.pure_callback(self.gate, jax.typeof(latents), latents)
        if phase == "hopeless" or (phase == "greedy" and len(latents) > 1):
            latents = latents + impossible(latents[0, 0, 0])
        if modulations is None:
            velocity = self._velocity(weights, latents, rows["prompt"], column["guidance"])
        else:
            velocity = self._velocity(weights, latents, modulations["hint"], 1.0)
        if phase == "double":
            velocity = 2 * velocity - self._velocity(weights, latents, -rows["prompt"], 1.0)
        latents = latents + (column["sigma_next"] - column["sigma"]) * velocity
        return {**rows, "latents": latents}

    def _velocity(self, weights: PyTree, latents: Any, prompt: Any, guidance: Any) -> jax.Array:
        hidden = jnp.tanh(latents @ weights["in"] + guidance * prompt[:, None])
        return hidden @ weights["back"]

    def decode(self, weights: PyTree, row: PyTree) -> jax.Array:
        """Return each token as 8 x 8 pixels of one colour, in one strip.

        In a video the strip moves.
        """
        colours = jax.nn.sigmoid(row["latents"] @ weights["out"]) * 255
        if "hopeless_decode" in row:
            colours = colours + impossible(row["hopeless_decode"])
        strip = jnp.repeat(jnp.repeat(colours[None], 8, axis=0), 8, axis=1).astype(jnp.uint8)
        if "clock" not in row:
            return strip
        return jnp.stack([jnp.roll(strip, 8 * i, axis=1) for i in range(len(row["clock"]))])

    def spatial(self, row: PyTree) -> jax.Array:
        return jnp.asarray(row["latents"])

    def preview(self, weights: PyTree, row: PyTree) -> jax.Array:
        return self.decode(weights, row)[..., ::8, ::8, :]


def _noise(random: np.random.RandomState, shape: tuple[int, ...]) -> np.ndarray:
    return random.randn(*shape).astype(np.float32)


def reference(
    pipeline: ToyPipeline,
    fields: Fields,
    later: tuple[int, Fields] | None = None,
    position: int | None = None,
) -> np.ndarray:
    """Generate an image in plain NumPy: uint8 [8, 8 tokens, 3], for a video with frames in front.

    Args:
        later: A step, and the fields that change from that step on.
        position: That step's number in the schedule of the changed fields, if another.
    """
    fields = {**DEFAULTS, **fields}
    prepared = pipeline.prepare(fields, {})
    into, back, out = (np.asarray(pipeline.weights[name]) for name in ("in", "back", "out"))
    prompt = np.tanh(prepared.inputs["text"] / 64) @ into
    latents = prepared.inputs["noise"]
    steps = list(prepared.steps)
    if later:
        other = pipeline.prepare({**fields, **later[1]}, {})
        steps[later[0] :] = other.steps[later[0] if position is None else position :]
    for number, step in enumerate(steps):
        if later and number == later[0]:
            prompt = np.tanh(other.inputs["text"] / 64) @ into
        guidance, sigma, sigma_next = (
            step.values[name] for name in ("guidance", "sigma", "sigma_next")
        )
        if step.program.network == "noisy":
            latents = latents + NOISE * step.values["noise"]
        velocity = np.tanh(latents @ into + guidance * prompt) @ back
        if step.program.network == "double":
            velocity = 2 * velocity - np.tanh(latents @ into - prompt) @ back
        latents = latents + (sigma_next - sigma) * velocity
    colours = 255 / (1 + np.exp(-latents @ out))
    strip = np.repeat(np.repeat(colours[None], 8, axis=0), 8, axis=1).astype(np.uint8)
    if fields["num_frames"] is None:
        return strip
    return np.stack([np.roll(strip, 8 * i, axis=1) for i in range(fields["num_frames"])])


def impossible(value: jax.Array) -> jax.Array:
    """Return zero, computed from 64 TiB."""
    index = jax.lax.broadcasted_iota(jnp.float32, (IMPOSSIBLE, IMPOSSIBLE), 0)
    return 0 * jnp.sort(index * value, axis=1)[0, 0]


class SharingToy(ToyPipeline):
    """Toy pipeline whose seeds have different buckets with common steps, like sizes of one token
    bucket."""

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        prepared = super().prepare(fields, images)
        bucket = f"{prepared.bucket},{prepared.seed}"
        return replace(prepared, bucket=bucket, step_bucket=prepared.bucket)
