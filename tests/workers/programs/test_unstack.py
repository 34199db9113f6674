"""Stacks of layers that are split into separate arrays: which stacks, and the same images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from models import registry
from models.interface.pipeline import Pipeline
from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import Layout
from models.spec.lora import RequestedLora
from models.spec.quality_presets import Quality, StepCache
from tests.families.adapters import Loras, asking, filled, merged
from tests.parallel.layouts import denoise
from tests.parity.tiny import make_flux
from workers.programs.compiler import Compiler
from workers.programs.unstack import stacks, unstack
from workers.slice.mesh import make_mesh
from workers.slice.mesh_shape import MeshShape

CLOSE = 1e-5
"""Relative tolerance after two steps: layers outside a loop may be fused differently."""
MERGED = 1e-4
"""Relative tolerance after two steps: W x + B A x sums in another order than (W + B A) x."""


@dataclass(frozen=True)
class LikeGpus(Layout):
    """Layout of CPUs whose programs are traced as for GPUs."""

    @property
    def platform(self) -> str:
        return "gpu"


def layout(kind: type[Layout], **sizes: int) -> Layout:
    shape = MeshShape(sizes).over(max(1, int(np.prod(list(sizes.values())))))
    return kind(make_mesh(shape, jax.devices()[: shape.devices]), xla_kernel)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_flux(tmp_path_factory.mktemp("apart")))


def flux(folder: str) -> Pipeline:
    qualities = {"cached": Quality(step_cache=StepCache(kind="first-block", threshold=1e-9))}
    return registry.load("flux", folder, "float32", {}, qualities=qualities)


def test_only_denoising_kernels_on_gpus_are_unstacked(folder: str) -> None:
    pipeline = flux(folder)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(pipeline.weights)]

    def chosen(by: Layout) -> set[str]:
        return {
            name for name, is_chosen in zip(names, stacks(pipeline, by), strict=True) if is_chosen
        }

    selected = chosen(layout(LikeGpus))
    assert len(selected) == 12 + 5  # q, k, v, out, up, down of both streams; of a single block
    assert all("transformer" in name and "kernel" in name for name in selected)
    assert chosen(layout(LikeGpus, tensor=2)) == selected
    assert not chosen(layout(LikeGpus, fsdp=2)) and not chosen(layout(Layout))
    limits = pipeline.spec.limits.model_copy(update={"max_frames": 81})
    pipeline.spec = pipeline.spec.model_copy(update={"limits": limits})
    assert not chosen(layout(LikeGpus)), "a video's layers stay in a loop"


def test_a_stack_becomes_its_layers_and_is_freed() -> None:
    mesh = layout(Layout, tensor=2).mesh
    numbers = np.arange(24.0).reshape(3, 2, 4)
    stack = jax.device_put(numbers, NamedSharding(mesh, PartitionSpec(None, None, "tensor")))
    layers = unstack(stack)
    assert stack.is_deleted()
    assert (np.asarray(layers) == numbers).all() and len(layers) == 3
    assert {layer.sharding.spec for layer in layers} == {PartitionSpec(None, "tensor")}
    assert unstack(stack) is layers, "networks that share a stack share its layers"
    place = NamedSharding(mesh, PartitionSpec())
    shapes = unstack(jax.ShapeDtypeStruct((3, 2, 4), jnp.float32, sharding=place))
    assert [shape.shape for shape in shapes] == [(2, 4)] * 3


@pytest.mark.parametrize("quality", ["exact", "cached"])
def test_unstacked_layers_give_the_same_image(folder: str, quality: str) -> None:
    """Also with a step cache, whose first block runs separately."""

    def rows(by: Layout) -> Iterator[Any]:
        pipeline = flux(folder)
        fields = {"prompt": "a red circle", "width": 48, "height": 80, "seed": 1}
        fields |= {"num_inference_steps": 2, "quality": quality}
        prepared = pipeline.prepare({**pipeline.spec.defaults, **fields}, {})
        return denoise(pipeline, prepared, by)

    for looped, one_by_one in zip(rows(layout(Layout)), rows(layout(LikeGpus)), strict=True):
        if isinstance(looped, dict):
            same = np.asarray(looped["latents"])
            actual = np.asarray(one_by_one["latents"])
            np.testing.assert_allclose(actual, same, atol=CLOSE * np.abs(same).max())


def test_adapter_banks_are_not_unstacked(folder: str, tmp_path: Path) -> None:
    """The layer of a bank is a number in the program.

    The image equals that of merged weights in a loop.
    """
    loras = Loras(flux(folder), tmp_path)
    requested = [loras.make("a", 20), loras.make("b", 4, share=0.5)]
    fields = {"prompt": "a red circle", "width": 48, "height": 80, "seed": 1}
    fields |= {"num_inference_steps": 2}

    def latents(kind: type[Layout], pipeline: Pipeline, *adapters: RequestedLora) -> np.ndarray:
        request = asking({**pipeline.spec.defaults, **fields}, *adapters)
        *_, row, _ = denoise(pipeline, place(pipeline.prepare(request, {})), layout(kind))
        return np.asarray(row["latents"])

    banked, place = filled(flux(folder), loras, requested, 4)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(banked.weights)]
    apart = stacks(banked, layout(LikeGpus))
    assert sum(apart) == 12 + 5, "as without banks"
    assert not any("bank" in name for name, is_apart in zip(names, apart, strict=True) if is_apart)
    actual = latents(LikeGpus, banked, *requested)
    fused = merged(flux(folder), [(loras.read(lora), 1.0) for lora in requested])
    same, plain = latents(Layout, fused), latents(Layout, flux(folder))
    np.testing.assert_allclose(actual, same, rtol=0, atol=MERGED * np.abs(same).max())
    assert np.abs(plain - same).max() > 0.01 * np.abs(same).max(), "the adapters do not show"


def test_program_takes_unstacked_layers_and_returns_changes(folder: str) -> None:
    pipeline = flux(folder)
    compiler = Compiler(pipeline, layout(LikeGpus))
    assert sum(isinstance(leaf, tuple) for leaf in compiler.weights.common) == 17
    prepared = pipeline.prepare({**pipeline.spec.defaults, "prompt": "", "seed": 0}, {})
    row = compiler.encoding(prepared.inputs).row
    step = prepared.steps[0]
    traced = compiler.tracer.step(step.program, step.values, row)
    assert compiler.changes(traced, row) == {"['latents']", "['denoised']"}
