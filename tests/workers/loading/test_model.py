"""A model onto its mesh slice: what the settings say, and what they cannot."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from flax import nnx

from models.weights.loader import is_matrix
from models.weights.sharing import PlacedArrays
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from tests.workers.flux import REQUEST
from workers.loading import layout as slice
from workers.loading import model as loading
from workers.plan.auto_layout import NothingFits
from workers.plan.estimate import RESERVE, estimate
from workers.plan.offload import ALL_ON_DEVICE, Residency, residencies
from workers.plan.trace import Sketch
from workers.programs.compiler import Compiler
from workers.programs.program_folder import ProgramFolder
from workers.slice.chips import CHIPS
from workers.slice.device_chip import chip_of
from workers.slice.mesh_shape import MeshShape


@pytest.fixture(scope="module")
def model(flux_folder: Path) -> ModelSettings:
    return ModelSettings(source=str(flux_folder), dtype="float32")


def pool(**settings: Any) -> PoolSettings:
    return PoolSettings(model="flux", **settings)


@pytest.fixture(scope="module")
def sketch(model: ModelSettings) -> Sketch:
    return loading.sketches_of(pool(), model)[0][0]


def test_arrays_go_straight_to_where_they_lie(model: ModelSettings) -> None:
    pipeline, opened = loading.load(
        "flux", pool(mesh={"fsdp": 2, "context": -1}), model, jax.devices()[:4]
    )
    assert opened.layout.mesh.shape["fsdp"] == 2
    assert opened.layout.mesh.shape["ulysses"] * opened.layout.mesh.shape["ring"] == 2
    kernel = pipeline.weights.transformer["latents_in"]["kernel"][...]
    assert {shard.data.shape for shard in kernel.addressable_shards} != {kernel.shape}
    assert len(kernel.sharding.device_set) == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mesh": {"cfg": 3}}, r"pools\.flux: ici cfg 3 makes 3 devices, but there are 8"),
        ({"mesh": {"tensor": 8}}, r"tensor 8 does not divide \d+ attention heads"),
        ({"mesh": {"data": 8}, "slots": 4}, "4 slots are not dealt out evenly over data 8"),
        (
            {"mesh": {"context": 8}, "per_device_batch_size": 0.2},
            "0.2 on 8 devices is a batch of 1.6, which is not whole",
        ),
        ({"table": {"head": ["tensor"]}}, "logical axis 'head' does not exist: batch"),
        ({"table": {"heads": ["tensors"]}}, "mesh axis 'tensors' does not exist: data"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    model: ModelSettings, sketch: Sketch, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        loading.open_slice("flux", pool(**settings), model, [sketch], jax.devices())


def test_the_fit_of_previews_is_kept(model: ModelSettings, tmp_path: Path) -> None:
    """It takes a run of the encoder for each of 27 colours: once, on each layout."""
    one, two = jax.devices()[:1], jax.devices()[:2]
    pipeline, _ = loading.load("flux", pool(), model, one, ProgramFolder(tmp_path, one))
    fitted = pipeline.weights.preview

    def of_none(colour: np.ndarray) -> jax.Array:
        raise AssertionError("the encoder is not to run again")

    there = loading.planned("flux", pool(), model, one, ProgramFolder(tmp_path, one))
    again = loading.files_of(there, PlacedArrays()).preview(of_none, fitted["kernel"].shape[0])
    for name in ("kernel", "bias"):
        mine, theirs = nnx.state(again)[name][...], fitted[name][...]
        assert np.array_equal(mine, theirs) and mine.sharding == theirs.sharding
    wide = pool(mesh={"context": 2})
    other = loading.planned("flux", wide, model, two, ProgramFolder(tmp_path, two))
    with pytest.raises(AssertionError, match="again"):
        loading.files_of(other, PlacedArrays()).preview(of_none, fitted["kernel"].shape[0])


def test_a_deployment_may_change_rows_of_the_table(model: ModelSettings, sketch: Sketch) -> None:
    changed = pool(mesh={"context": 8}, table={"embed": ["context"], "rows": []})
    layout = loading.open_slice("flux", changed, model, [sketch], jax.devices()).layout
    assert layout.table["embed"] == ("ring", "ulysses")
    assert layout.size("embed") == 8 and layout.size("rows") == 1


def test_a_quarter_of_a_request_on_each_device(model: ModelSettings, sketch: Sketch) -> None:
    quarter = pool(mesh={"context": 4}, per_device_batch_size=0.25)
    assert loading.open_slice("flux", quarter, model, [sketch], jax.devices()[:4]).chosen.slots == 1


@pytest.mark.parametrize("wrong", [{"quality": "none"}, {"width": 33}], ids=str)
@pytest.mark.parametrize("before", [[], [{}]], ids=["first", "second"])
def test_a_warm_up_request_that_cannot_be_made_is_named(
    model: ModelSettings, wrong: dict[str, Any], before: list[dict[str, Any]]
) -> None:
    (field,) = wrong
    asked = model.model_copy(update={"warmup": [*before, wrong]})
    with pytest.raises(ConfigError, match=rf"models\.flux\.warmup: {field}: "):
        loading.planned("flux", pool(), asked, jax.devices()[:1])


def test_left_alone_it_chooses_and_says_why(
    model: ModelSettings, sketch: Sketch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    opened = loading.open_slice("flux", pool(), model, [sketch], jax.devices())
    assert opened.layout.mesh.size == 8
    assert str(opened.chosen.shape) in caplog.text and opened.chosen.why in caplog.text


def test_what_does_not_fit_into_memory_is_refused_before_it_is_loaded(
    model: ModelSettings, sketch: Sketch
) -> None:
    huge = pool(mesh={"context": 8}, slots=2**40)
    with pytest.raises(
        ConfigError,
        match=r"too many, [1-9]\d* fit: .* needs about [\d.]+ GiB .* take fewer slots",
    ):
        loading.open_slice("flux", huge, model, [sketch], jax.devices())


@dataclass(frozen=True)
class Device:
    """As much of one as a slice is chosen by."""

    memory_bytes: int
    process_index: int = 0
    platform: str = "gpu"
    device_kind: str = "NVIDIA L4"
    client: ClassVar[Any] = SimpleNamespace(runtime_type="pjrt_ifrt")

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": self.memory_bytes}


@pytest.mark.parametrize(("batching", "launch"), [("exact", 1), ("fast", None)])
def test_slots_decide_no_program(model: ModelSettings, batching: str, launch: int | None) -> None:
    """Where memory holds two: left open they are two, more are refused, and in no case do encoders
    go to the host or is an image decoded in tiles, which would draw another one."""
    given = model.model_copy(
        update={"batching": batching, "warmup": [{"width": 512, "height": 512}]}
    )
    (sketch,), _, _ = loading.sketches_of(pool(), given)
    need = estimate(sketch, MeshShape().over(1), CHIPS["l4"], 2, launch=launch)
    used = need.total_bytes - need.memory["reserve"]
    devices: Any = [Device(int(used / (1 - RESERVE)) + 1)]
    chosen = slice.choose(pool(), given, sketch, devices)
    assert (chosen.slots, chosen.residency) == (2, ALL_ON_DEVICE)
    assert slice.choose(pool(slots=2), given, sketch, devices) == chosen
    assert slice.choose(pool(slots=1), given, sketch, devices).residency == ALL_ON_DEVICE
    for four in ({"slots": 4}, {"per_device_batch_size": 4}):
        with pytest.raises(ValueError, match=r"4 slots are too many, 2 fit: .* make room") as found:
            slice.choose(pool(**four), given, sketch, devices)
        assert not isinstance(found.value, NothingFits), "that would try tiles"


def test_a_default_second_pass_has_room(model: ModelSettings) -> None:
    """Memory for two rows of the first pass holds fewer of the second, larger one."""
    first = {"width": 256, "height": 256}
    once = model.model_copy(update={"warmup": [first]})
    twice = once.model_copy(update={"defaults": {"hires": {"scale": 2}}})
    small, both = (loading.sketches_of(pool(), one)[0][0] for one in (once, twice))
    need = estimate(small, MeshShape().over(1), CHIPS["l4"], 2, launch=1)
    devices: Any = [Device(int((need.total_bytes - need.memory["reserve"]) / (1 - RESERVE)) + 1)]
    assert slice.choose(pool(), once, small, devices).slots == 2
    with pytest.raises(NothingFits):
        slice.choose(pool(), twice, both, devices)
    large = model.model_copy(update={"warmup": [{"width": 512, "height": 512}]})
    with pytest.raises(NothingFits):
        slice.choose(pool(), large, loading.sketches_of(pool(), large)[0][0], devices)


def test_encoders_in_host_memory_draw_the_same(model: ModelSettings, sketch: Sketch) -> None:
    """A layer at a time; on the device they take next to nothing then."""
    several = pool(mesh={"fsdp": 2, "context": 2})
    beside = model.model_copy(update={"encoders_on_host": True})
    rows = []
    for one in (model, beside):
        pipeline, opened = loading.load("flux", several, one, jax.devices()[:4])
        for leaf in nnx.to_flat_state(pipeline.weights.t5).leaves:
            on_host = one is beside and is_matrix(leaf.axes)
            assert leaf.sharding.memory_kind == ("pinned_host" if on_host else "device")
        assert jax.tree.leaves(pipeline.weights.transformer)[0].sharding.memory_kind == "device"
        compiler = Compiler(pipeline, opened.layout)
        inputs = pipeline.prepare({**pipeline.spec.defaults, **REQUEST}, {}).inputs
        program = compiler.tracer.encode(inputs).lower().compile()
        rows.append(program(compiler.weights.common, dict(inputs)))
    for leaf, other in zip(*map(jax.tree.leaves, rows), strict=True):
        # another program: what is fused differs, and so how sums are rounded
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-5)


def test_what_has_no_room_on_the_device_goes_to_the_host_before_it_is_refused(
    model: ModelSettings, sketch: Sketch
) -> None:
    chip, one = chip_of(jax.devices()), MeshShape().over(1)
    beside, *_ = (way for way in residencies(sketch, None, None) if way.on_host)
    assert beside.on_host == {"clip", "t5"} and not beside.by_turns

    def needs(residency: Residency) -> int:
        found = estimate(sketch, one, chip, 1, residency=residency)
        return found.total_bytes - found.memory["reserve"]

    between = (needs(ALL_ON_DEVICE) + needs(beside)) / 2
    tight = replace(chip, memory_bytes=int(between / (1 - RESERVE)))
    assert not estimate(sketch, one, tight, 1).fits
    assert estimate(sketch, one, tight, 1, residency=beside).fits


def test_flags_and_precision_are_set_before_jax_starts_and_said(
    model: ModelSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("XLA_FLAGS", "--by_hand=1")
    before = jax.config.jax_default_matmul_precision
    try:
        loading.set_up(pool(precision="highest", flags=["--a=2"]), model, None)
        assert jax.config.jax_default_matmul_precision == "highest"
    finally:
        jax.config.update("jax_default_matmul_precision", before)
    assert os.environ["XLA_FLAGS"] == "--a=2 --by_hand=1"
    assert "XLA_FLAGS=--a=2 --by_hand=1" in caplog.text and "highest precision" in caplog.text


@pytest.mark.parametrize("by_hand", [True, False])
def test_flags_that_undo_exact_batching_are_refused(
    model: ModelSettings, monkeypatch: pytest.MonkeyPatch, by_hand: bool
) -> None:
    tuned = "--xla_gpu_autotune_level=4"
    monkeypatch.setenv("XLA_FLAGS", f"--a=1 {tuned}" if by_hand else "--a=1")
    asked = pool() if by_hand else pool(flags=[tuned])
    with pytest.raises(ConfigError, match=r'models\.flux\.batching = "exact" needs .*=0, not .*=4'):
        loading.check_flags(asked, model, "nvidia", "flux")
    fast = model.model_copy(update={"batching": "fast"})
    loading.check_flags(asked, fast, "nvidia", "flux")
