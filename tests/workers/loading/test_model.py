"""Loading of a model onto its mesh slice: settings that apply, and settings that are rejected."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from models.weights.loader import is_matrix
from models.weights.sharing import PlacedArrays
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from tests.workers.flux import REQUEST
from workers.loading import layout as slice
from workers.loading import model as loading
from workers.plan.estimate import RESERVE, estimate
from workers.plan.offload import ALL_ON_DEVICE, Residency, residencies
from workers.plan.search import NothingFits
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


def test_loading_warnings_are_in_the_registered_spec(
    flux_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The spec lists the warnings of loading the model's own file, which `GET /v1/models` shows."""
    folder = shutil.copytree(flux_folder, tmp_path / "marked")
    file = next((folder / "vae").glob("*.safetensors"))
    save_file(load_file(file) | {"__32x32__": np.zeros(2), "step": np.asarray(7)}, file)
    pipeline, _ = loading.load(
        "flux", pool(), ModelSettings(source=str(folder), dtype="float32"), jax.devices()[:1]
    )
    (warning,) = pipeline.spec.warnings
    assert warning.startswith(f"{file.name}: ignored, since they are not weights: ")
    assert {"__32x32__", "step"} == {*warning.rpartition(": ")[2].split(", ")}
    assert warning in caplog.text


def test_arrays_are_loaded_to_their_sharding(model: ModelSettings) -> None:
    pipeline, opened = loading.load(
        "flux", pool(mesh={"fsdp": 2, "context": -1}), model, jax.devices()[:4]
    )
    assert opened.layout.mesh.shape["fsdp"] == 2
    assert opened.layout.mesh.shape["ulysses"] * opened.layout.mesh.shape["ring"] == 2
    kernel = pipeline.weights.transformer["latents_in"]["kernel"][...]
    assert {shard.data.shape for shard in kernel.addressable_shards} != {kernel.shape}
    assert len(kernel.sharding.device_set) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mesh": {"cfg": 3}}, r"pools\.flux: ici cfg 3 makes 3 devices, but there are 8"),
        ({"mesh": {"tensor": 8}}, r"tensor 8 does not divide \d+ attention heads"),
        ({"mesh": {"data": 8}, "slots": 4}, "4 slots cannot be divided evenly over data 8"),
        (
            {"mesh": {"context": 8}, "per_device_batch_size": 0.2},
            "0.2 on 8 devices is a batch of 1.6, which is not whole",
        ),
        ({"table": {"head": ["tensor"]}}, "logical axis 'head' does not exist: batch"),
        ({"table": {"heads": ["tensors"]}}, "mesh axis 'tensors' does not exist: data"),
    ],
)
def test_invalid_slice_is_refused_with_numbers(
    model: ModelSettings, sketch: Sketch, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        loading.open_slice("flux", pool(**settings), model, [sketch], jax.devices())


def test_the_fit_of_previews_is_kept(model: ModelSettings, tmp_path: Path) -> None:
    """The fit runs the encoder for each of 27 colours, once on each layout."""
    single, pair = jax.devices()[:1], jax.devices()[:2]
    pipeline, _ = loading.load("flux", pool(), model, single, ProgramFolder(tmp_path, single))
    fitted = pipeline.weights.preview

    def no_encoder(colour: np.ndarray) -> jax.Array:
        raise AssertionError("the encoder is not to run again")

    planned = loading.plan_slice("flux", pool(), model, single, ProgramFolder(tmp_path, single))
    again = loading.files_of(planned, PlacedArrays()).preview(no_encoder, fitted["kernel"].shape[0])
    for name in ("kernel", "bias"):
        actual, expected = nnx.state(again)[name][...], fitted[name][...]
        assert np.array_equal(actual, expected) and actual.sharding == expected.sharding
    wide = pool(mesh={"context": 2})
    other = loading.plan_slice("flux", wide, model, pair, ProgramFolder(tmp_path, pair))
    with pytest.raises(AssertionError, match="again"):
        loading.files_of(other, PlacedArrays()).preview(no_encoder, fitted["kernel"].shape[0])


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
def test_invalid_warm_up_request_is_named(
    model: ModelSettings, wrong: dict[str, Any], before: list[dict[str, Any]]
) -> None:
    (field,) = wrong
    settings = model.model_copy(update={"warmup": [*before, wrong]})
    with pytest.raises(ConfigError, match=rf"models\.flux\.warmup: {field}: "):
        loading.plan_slice("flux", pool(), settings, jax.devices()[:1])


def test_automatic_mesh_is_logged_with_its_reason(
    model: ModelSettings, sketch: Sketch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    opened = loading.open_slice("flux", pool(), model, [sketch], jax.devices())
    assert opened.layout.mesh.size == 8
    assert str(opened.chosen.shape) in caplog.text and opened.chosen.why in caplog.text


def test_memory_is_checked_before_loading(model: ModelSettings, sketch: Sketch) -> None:
    huge = pool(mesh={"context": 8}, slots=2**40)
    with pytest.raises(
        ConfigError,
        match=r"too many, [1-9]\d* fit: .* needs about [\d.]+ GiB .* take fewer slots",
    ):
        loading.open_slice("flux", huge, model, [sketch], jax.devices())


@dataclass(frozen=True)
class Device:
    """Simulated device with the attributes that decide the choice of a slice."""

    memory_bytes: int
    process_index: int = 0
    platform: str = "gpu"
    device_kind: str = "NVIDIA L4"
    client: ClassVar[Any] = SimpleNamespace(runtime_type="pjrt_ifrt")

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": self.memory_bytes}


@pytest.mark.parametrize(("batching", "launch"), [("exact", 1), ("fast", None)])
def test_slots_decide_no_program(model: ModelSettings, batching: str, launch: int | None) -> None:
    """Memory for two rows makes two slots by default, and more are rejected.

    Encoders never move to the host, and images are never decoded in tiles, to make room for slots.
    """
    config = model.model_copy(
        update={"batching": batching, "warmup": [{"width": 512, "height": 512}]}
    )
    (sketch,), _, _ = loading.sketches_of(pool(), config)
    need = estimate(sketch, MeshShape().over(1), CHIPS["l4"], 2, launch=launch)
    used = need.total_bytes - need.memory["reserve"]
    devices: Any = [Device(int(used / (1 - RESERVE)) + 1)]
    chosen = slice.choose(pool(), config, sketch, devices)
    assert (chosen.slots, chosen.residency) == (2, ALL_ON_DEVICE)
    assert slice.choose(pool(slots=2), config, sketch, devices) == chosen
    assert slice.choose(pool(slots=1), config, sketch, devices).residency == ALL_ON_DEVICE
    for four_slots in ({"slots": 4}, {"per_device_batch_size": 4}):
        with pytest.raises(
            ValueError, match=r"4 slots are too many, 2 fit: .* save memory"
        ) as failure:
            slice.choose(pool(**four_slots), config, sketch, devices)
        assert not isinstance(failure.value, NothingFits), "that would try tiles"


def test_a_default_second_pass_has_room(model: ModelSettings) -> None:
    """Memory for two rows of the first pass holds fewer rows of the larger second pass."""
    first = {"width": 256, "height": 256}
    once = model.model_copy(update={"warmup": [first]})
    twice = once.model_copy(update={"defaults": {"hires": {"scale": 2}}})
    small, both = (loading.sketches_of(pool(), variant)[0][0] for variant in (once, twice))
    need = estimate(small, MeshShape().over(1), CHIPS["l4"], 2, launch=1)
    devices: Any = [Device(int((need.total_bytes - need.memory["reserve"]) / (1 - RESERVE)) + 1)]
    assert slice.choose(pool(), once, small, devices).slots == 2
    with pytest.raises(NothingFits):
        slice.choose(pool(), twice, both, devices)
    large = model.model_copy(update={"warmup": [{"width": 512, "height": 512}]})
    with pytest.raises(NothingFits):
        slice.choose(pool(), large, loading.sketches_of(pool(), large)[0][0], devices)


def test_host_encoders_give_the_same_image(model: ModelSettings, sketch: Sketch) -> None:
    """Layers are copied one at a time, so that encoders need almost no device memory."""
    pool_settings = pool(mesh={"fsdp": 2, "context": 2})
    offloaded = model.model_copy(update={"encoders_on_host": True})
    rows = []
    for settings in (model, offloaded):
        pipeline, opened = loading.load("flux", pool_settings, settings, jax.devices()[:4])
        for leaf in nnx.to_flat_state(pipeline.weights.t5).leaves:
            on_host = settings is offloaded and is_matrix(leaf.axes)
            assert leaf.sharding.memory_kind == ("pinned_host" if on_host else "device")
        assert jax.tree.leaves(pipeline.weights.transformer)[0].sharding.memory_kind == "device"
        compiler = Compiler(pipeline, opened.layout)
        inputs = pipeline.prepare({**pipeline.spec.defaults, **REQUEST}, {}).inputs
        program = compiler.tracer.encode(inputs).lower().compile()
        rows.append(program(compiler.weights.common, dict(inputs)))
    for leaf, other in zip(*map(jax.tree.leaves, rows), strict=True):
        # another program: other operations are fused, so sums round differently
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-5)


def test_networks_are_offloaded_before_refusal(model: ModelSettings, sketch: Sketch) -> None:
    chip, shape = chip_of(jax.devices()), MeshShape().over(1)
    offloaded, *_ = (choice for choice in residencies(sketch, None, None) if choice.on_host)
    assert offloaded.on_host == {"clip", "t5"} and not offloaded.swapped

    def needs(residency: Residency) -> int:
        result = estimate(sketch, shape, chip, 1, residency=residency)
        return result.total_bytes - result.memory["reserve"]

    between = (needs(ALL_ON_DEVICE) + needs(offloaded)) / 2
    tight = replace(chip, memory_bytes=int(between / (1 - RESERVE)))
    assert not estimate(sketch, shape, tight, 1).fits
    assert estimate(sketch, shape, tight, 1, residency=offloaded).fits


def test_flags_and_precision_are_set_before_jax_and_logged(
    model: ModelSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("XLA_FLAGS", "--by_hand=1")
    config: Any = jax.config
    before = config.jax_default_matmul_precision
    try:
        loading.set_up(pool(precision="highest", flags=["--a=2"]), model, None)
        assert config.jax_default_matmul_precision == "highest"
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
    pool_settings = pool() if by_hand else pool(flags=[tuned])
    with pytest.raises(ConfigError, match=r'models\.flux\.batching = "exact" needs .*=0, not .*=4'):
        loading.check_flags(pool_settings, model, "nvidia", "flux")
    fast = model.model_copy(update={"batching": "fast"})
    loading.check_flags(pool_settings, fast, "nvidia", "flux")
