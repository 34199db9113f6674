"""Layers apart: which stacks, what becomes of them, and the same images."""

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
"""Relative, after two steps: layers that are no loop may be fused otherwise."""
MERGED = 1e-4
"""Relative, after two steps: W x + B A x is added up otherwise than (W + B A) x."""


@dataclass(frozen=True)
class LikeGpus(Layout):
    """CPUs, whose programs are traced as for GPUs."""

    @property
    def platform(self) -> str:
        return "gpu"


def layout(kind: type[Layout], **sizes: int) -> Layout:
    whole = MeshShape(sizes).over(max(1, int(np.prod(list(sizes.values())))))
    return kind(make_mesh(whole, jax.devices()[: whole.devices]), xla_kernel)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_flux(tmp_path_factory.mktemp("apart")))


def flux(folder: str) -> Pipeline:
    qualities = {"cached": Quality(step_cache=StepCache(kind="first-block", threshold=1e-9))}
    return registry.load("flux", folder, "float32", {}, qualities=qualities)


def test_kernels_of_denoising_blocks_alone_and_on_gpus_alone(folder: str) -> None:
    pipeline = flux(folder)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(pipeline.weights)]

    def chosen(by: Layout) -> set[str]:
        return {name for name, is_one in zip(names, stacks(pipeline, by), strict=True) if is_one}

    found = chosen(layout(LikeGpus))
    assert len(found) == 12 + 5  # q, k, v, out, up, down of both streams; of a single block
    assert all("transformer" in name and "kernel" in name for name in found)
    assert chosen(layout(LikeGpus, tensor=2)) == found
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
    assert [one.shape for one in shapes] == [(2, 4)] * 3


@pytest.mark.parametrize("quality", ["exact", "cached"])
def test_the_same_picture(folder: str, quality: str) -> None:
    """With a step cache too, whose first block runs by itself."""

    def rows(by: Layout) -> Iterator[Any]:
        pipeline = flux(folder)
        fields = {"prompt": "a red circle", "width": 48, "height": 80, "seed": 1}
        fields |= {"num_inference_steps": 2, "quality": quality}
        prepared = pipeline.prepare({**pipeline.spec.defaults, **fields}, {})
        return denoise(pipeline, prepared, by)

    for looped, one_by_one in zip(rows(layout(Layout)), rows(layout(LikeGpus)), strict=True):
        if isinstance(looped, dict):
            same = np.asarray(looped["latents"])
            found = np.asarray(one_by_one["latents"])
            np.testing.assert_allclose(found, same, atol=CLOSE * np.abs(same).max())


def test_adapters_are_read_from_banks_that_stay_whole(folder: str, tmp_path: Path) -> None:
    """Which layer of a bank is read is a number in the program; as merged into a loop's weights."""
    loras = Loras(flux(folder), tmp_path)
    asked = [loras.make("a", 20), loras.make("b", 4, share=0.5)]
    fields = {"prompt": "a red circle", "width": 48, "height": 80, "seed": 1}
    fields |= {"num_inference_steps": 2}

    def latents(kind: type[Layout], pipeline: Pipeline, *adapters: RequestedLora) -> np.ndarray:
        request = asking({**pipeline.spec.defaults, **fields}, *adapters)
        *_, row, _ = denoise(pipeline, place(pipeline.prepare(request, {})), layout(kind))
        return np.asarray(row["latents"])

    banked, place = filled(flux(folder), loras, asked, 4)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(banked.weights)]
    apart = stacks(banked, layout(LikeGpus))
    assert sum(apart) == 12 + 5, "as without banks"
    assert not any("bank" in name for name, one in zip(names, apart, strict=True) if one)
    found = latents(LikeGpus, banked, *asked)
    fused = merged(flux(folder), [(loras.read(lora), 1.0) for lora in asked])
    same, without = latents(Layout, fused), latents(Layout, flux(folder))
    np.testing.assert_allclose(found, same, rtol=0, atol=MERGED * np.abs(same).max())
    assert np.abs(without - same).max() > 0.01 * np.abs(same).max(), "the adapters do not show"


def test_a_program_takes_the_layers_and_says_what_it_changes(folder: str) -> None:
    pipeline = flux(folder)
    compiler = Compiler(pipeline, layout(LikeGpus))
    assert sum(isinstance(leaf, tuple) for leaf in compiler.weights.common) == 17
    prepared = pipeline.prepare({**pipeline.spec.defaults, "prompt": "", "seed": 0}, {})
    row = compiler.encoding(prepared.inputs).row
    step = prepared.steps[0]
    traced = compiler.tracer.step(step.phase, step.values, row)
    assert compiler.changes(traced, row) == {"['latents']", "['denoised']"}
