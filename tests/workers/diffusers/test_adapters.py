"""LoRA adapters of diffusers pipelines: images equal direct calls with the same files."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.numpy import load_file, save_file

from models.adapters.files.formats import inspect
from models.adapters.files.name_table import unpacked
from models.adapters.files.peft_folder import METADATA
from models.spec.lora import RequestedLora, ScaleInterval, always
from models.spec.model_spec import ModelSpec
from service.errors.problems import Invalid
from service.jobs.storage.object_store import Store
from service.schemas.request import GenerateRequest
from service.settings.limits import LimitSettings
from service.settings.loras import LoraSettings
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.settings import Settings
from service.validation.resolved_fields import resolve
from tests.workers.diffusers import tiny
from tests.workers.diffusers.direct import called
from tests.workers.diffusers.test_engine import request
from workers.diffusers.adapters import names_of
from workers.diffusers.engine import DiffusersEngine
from workers.diffusers.load import LoadedPipelines, load, with_further_tasks
from workers.diffusers.spec import spec_of
from workers.engine.errors import GenerationFailed
from workers.loading.loras import digest_of
from workers.pool.process import prepared_loras
from workers.programs.aot_cache import NoExecutables

pytestmark = pytest.mark.filterwarnings(
    "ignore:::diffusers", "ignore:::transformers", "ignore:Already found a `peft_config`"
)
RANK = 2


def write(path: Path, pipeline: Any, seed: int, kohya: bool = False) -> Path:
    """Write an adapter that changes the attention of the UNet and of the text encoder."""
    draw = np.random.default_rng(seed).standard_normal
    arrays: dict[str, np.ndarray] = {}
    for network in names_of(pipeline).networks:
        for name, layers in network.names.items():
            if not name.endswith(("to_v", "v_proj", "out_proj")):
                continue
            (shape,) = layers.values()
            down = draw((RANK, shape.in_features)).astype(np.float32)
            up = draw((shape.out_features, RANK)).astype(np.float32)
            if kohya:
                prefix = {"unet": "lora_unet_"}.get(network.network, "lora_te_text_model_")
                key = prefix + name.replace(".", "_")
                arrays |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up}
                arrays[f"{key}.alpha"] = np.array(1.0, np.float32)
            else:
                key = f"{network.network}.{name}"
                arrays |= {f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}
    save_file(arrays, path)
    return path


def entry(path: Path, scales: Sequence[ScaleInterval] = always(0.7)) -> RequestedLora:
    return RequestedLora(
        name=path.name,
        digest=digest_of(path),
        pages=1,
        networks=("unet", "text_encoder"),
        scales=tuple(scales),
    )


@pytest.fixture
def files(pipelines: LoadedPipelines, tmp_path: Path) -> tuple[Path, Path]:
    """Write an adapter in PEFT's format, and one in kohya's, without the ending, as in caches."""
    second = write(tmp_path / "second", pipelines.default, 2, kohya=True)
    return write(tmp_path / "first.safetensors", pipelines.default, 1), second


@pytest.fixture
async def engine(
    pipelines: LoadedPipelines, files: tuple[Path, Path]
) -> AsyncIterator[DiffusersEngine]:
    by_digest = {digest_of(path): path for path in files}

    async def find(lora: RequestedLora, tenant: str) -> Path:
        return by_digest[lora.digest]

    engine = DiffusersEngine(pipelines, find)
    yield engine
    engine.close()
    pipelines.default.unload_lora_weights()


async def generated(
    engine: DiffusersEngine, fields: Mapping[str, Any], *loras: RequestedLora
) -> Any:
    entries = [lora.model_dump(mode="json") for lora in loras]
    return (await engine.generate({**fields, "loras": entries}, {})).pixels


async def test_images_equal_direct_calls_with_the_same_adapters(
    engine: DiffusersEngine,
    pipelines: LoadedPipelines,
    stable_diffusion: Path,
    files: tuple[Path, Path],
) -> None:
    """Adapters are switched between images; an image without any is unchanged by earlier ones."""
    fields = request(pipelines.spec, "text-to-image")
    plain = await generated(engine, fields)
    ones = [entry(files[0])], [entry(files[1])], [entry(files[0], always(-0.4)), entry(files[1])]
    images = [await generated(engine, fields, *loras) for loras in ones]
    assert engine.adapters.digests == [lora.digest for lora in ones[-1]]
    assert np.array_equal(await generated(engine, fields), plain)
    assert engine.adapters.digests == []
    for loras, image in zip(ones, images, strict=True):
        direct = DiffusionPipeline.from_pretrained(stable_diffusion, dtype=torch.float32)
        for lora in loras:
            name = lora.name
            file = str(files[0].with_name(name))
            direct.load_lora_weights(file, adapter_name=name.split(".")[0])
        names = [lora.name.split(".")[0] for lora in loras]
        direct.set_adapters(names, [lora.scales[0].scale for lora in loras])
        assert np.array_equal(image, called(direct, fields))
        assert not np.array_equal(image, plain)


@pytest.mark.parametrize("in_metadata", [False, True])
async def test_folders_of_peft_are_scaled_by_their_config(
    pipelines: LoadedPipelines, tmp_path: Path, in_metadata: bool
) -> None:
    """PEFT's own files name no network, and have alpha in a config, which newer versions extend."""
    whole = load_file(write(tmp_path / "whole.safetensors", pipelines.default, 5))
    plain = {key: array for key, array in whole.items() if key.startswith("unet.")}
    scaled = {key: array * (4 if ".lora_B." in key else 1) for key, array in plain.items()}
    save_file(scaled, tmp_path / "scaled.safetensors")
    config = {"r": RANK, "lora_alpha": 4 * RANK, "target_modules": ["to_v"], "of_2030": 1}
    text = json.dumps(config | {"peft_type": "LORA", "task_type": None})
    if not in_metadata:
        (tmp_path / "adapter_config.json").write_text(text)
    wrapped = {f"base_model.model.{key.removeprefix('unet.')}": plain[key] for key in plain}
    file = tmp_path / "adapter_model.safetensors"
    save_file(wrapped, file, {METADATA: text} if in_metadata else None)
    assert inspect(file, names_of(pipelines.default)).rank == RANK
    by_digest = {digest_of(path): path for path in (file, tmp_path / "scaled.safetensors")}

    async def find(lora: RequestedLora, tenant: str) -> Path:
        return by_digest[lora.digest]

    engine = DiffusersEngine(pipelines, find)
    fields = request(pipelines.spec, "text-to-image")
    images = [await generated(engine, fields, entry(path)) for path in by_digest.values()]
    engine.close()
    pipelines.default.unload_lora_weights()
    assert np.array_equal(*images)
    assert not np.array_equal(images[0], called(pipelines.default, fields))


async def test_scales_change_between_steps(
    engine: DiffusersEngine,
    pipelines: LoadedPipelines,
    stable_diffusion: Path,
    files: tuple[Path, Path],
) -> None:
    fields = request(pipelines.spec, "text-to-image", num_inference_steps=7)  # 8 steps of PNDM
    halves = [ScaleInterval(start=0, stop=0.5, scale=1), ScaleInterval(start=0.5, stop=1, scale=-1)]
    image = await generated(engine, fields, entry(files[0], halves))
    direct = DiffusionPipeline.from_pretrained(stable_diffusion, dtype=torch.float32)
    direct.load_lora_weights(str(files[0]), adapter_name="a")
    original = direct.scheduler.step
    steps = []

    def step(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        steps.append(0)
        direct.set_adapters(["a"], [1.0 if len(steps) < 4 else -1.0])
        return output

    direct.scheduler.step = step
    assert np.array_equal(image, called(direct, fields)) and len(steps) == 8


async def test_file_that_cannot_be_loaded_fails_its_image_only(
    engine: DiffusersEngine, pipelines: LoadedPipelines, files: tuple[Path, Path]
) -> None:
    fields = request(pipelines.spec, "text-to-image")
    plain, bad = await generated(engine, fields), entry(files[0])
    save_file({"unet.some": np.zeros(2, np.float32)}, files[0])
    for _ in range(2):
        with pytest.raises(GenerationFailed) as failed:
            await generated(engine, fields, entry(files[1]), bad)
        assert failed.value.error.code == "lora_gone"
    assert np.array_equal(await generated(engine, fields), plain)


async def test_adapters_of_the_settings(
    stable_diffusion: Path, files: tuple[Path, Path], store: Store, tmp_path: Path
) -> None:
    """Files are checked at the start, and the layers are published for uploads."""
    wrong = tmp_path / "wrong.safetensors"
    matrices = {"A": np.ones((2, 8), np.float32), "B": np.ones((8, 2), np.float32)}
    save_file({f"unet.none.lora_{kind}.weight": array for kind, array in matrices.items()}, wrong)
    kohya = files[1].rename(files[1].with_suffix(".safetensors"))
    sources = {"peft": files[0], "kohya": kohya, "wrong": wrong}
    settings = Settings(
        loras={name: LoraSettings(source=str(path), model="sd") for name, path in sources.items()},
        state_dir=tmp_path / "state",
    )
    model = ModelSettings(source=str(stable_diffusion), dtype="float32", lora_pages=16)
    loaded, pool = load("sd", model), PoolSettings(model="sd")
    names = names_of(loaded.default)
    stored = await prepared_loras(settings, pool, loaded, lambda: names, NoExecutables(), store)
    spec = loaded.spec
    assert {name: lora.rank for name, lora in spec.loras.items()} == dict(peft=2, kohya=2, wrong=0)
    assert "none of its layers" in (spec.loras["wrong"].error or "")
    assert unpacked(spec.lora_layers) == names
    fields = resolved(spec, loras=[{"name": "kohya", "scale": 0.5}])
    assert await stored.find(fields.loras[0], "") == kohya


def resolved(spec: ModelSpec, **fields: Any) -> Any:
    offered = list(spec.loras.values())
    request = GenerateRequest(prompt="a star", **fields)
    return resolve(request, spec, LimitSettings(), loras=offered)


def test_pipeline_without_adapters_refuses_them_by_name(tmp_path: Path) -> None:
    pipeline = tiny.MAKERS["PixArtSigmaPipeline"]()
    pipeline.save_pretrained(tmp_path)
    spec = spec_of("pixart", with_further_tasks(pipeline), tmp_path, {}, True)
    assert "adapters" in spec.lacks
    with pytest.raises(Invalid) as invalid:
        resolved(spec, loras=[{"name": "coral"}])
    (error,) = invalid.value.errors
    assert (error.field, error.message) == (
        "loras",
        "the pipeline of the model 'pixart' loads no adapters",
    )


def test_transformers_have_no_names_of_kohya(tmp_path: Path) -> None:
    """Their keys differ by family, and diffusers reads only some."""
    pipeline = tiny.MAKERS["ChromaPipeline"]()
    names = names_of(pipeline)
    assert names.networks[0].network == "transformer"
    assert not any(network.underscored for network in names.networks)
    key, layers = next(iter(names.networks[0].names.items()))
    (shape,) = layers.values()
    arrays = {"A": np.ones((1, shape.in_features)), "B": np.ones((shape.out_features, 1))}
    file = tmp_path / "a.safetensors"
    save_file(
        {f"transformer.{key}.lora_{k}.weight": v.astype(np.float32) for k, v in arrays.items()},
        file,
    )
    assert inspect(file, names, None, None).networks == ("transformer",)
