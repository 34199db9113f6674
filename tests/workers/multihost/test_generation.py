"""Images of each family on two processes of two devices, compared with one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deploy.local.processes import dies_with_parent
from models.interface.pipeline import Pipeline, generate, split_sound
from tests import coarse, compile_cache
from tests.families.adapters import Loras, asking, merged, scaled
from tests.families.suite import EVERY, images_of, loaded, settings_of
from tests.workers.multihost.generation import FILES, read
from tests.workers.multihost.processes import reserved_port
from tests.workers.multihost.tiny import CFG, asked, assert_same, made, of_suite

DRAW_S = 1800.0
"""Timeout of all cases, on a busy machine."""
RING = {"ici": {"context": 2}, "dcn": {"context": 2}}
"""Keys and values pass from host to host."""
ULYSSES = {**RING, "ring": 1}
"""Tokens are swapped for heads between hosts, too."""

TENSOR = {"ici": {"context": 2}, "dcn": {"tensor": 2}}
"""Sums over heads or the feed-forward's width cross the hosts."""
FSDP = {"ici": {"tensor": 2}, "dcn": {"fsdp": 2}}
"""Weights are gathered from the other host before they are used."""
MESHES = {"cfg": CFG, "tensor": TENSOR, "ring": RING, "fsdp": FSDP}

PICTURES = ("image.png", "mask.png")
FIRST: dict[str, Any] = {FILES: {"image": "image.png"}}
FROM_IMAGE: dict[str, Any] = {**FIRST, "strength": 0.6}
INPAINTING: dict[str, Any] = {
    **FROM_IMAGE,
    FILES: {"image": "image.png", "mask_image": "mask.png"},
}
EXACT: list[dict[str, Any]] = [{}]
EASED: list[dict[str, Any]] = [{}, {"quality": "fast"}]
"""Requests without and with a preset: a guidance interval, and a step cache if supported."""
BANKS = {"lora_pages": 3}
"""Settings of banks without room for all adapters: a later request overwrites earlier pages."""
ADAPTED: list[dict[str, Any]] = [{"loras": {"a": 0.9, "b": -0.7}}, {"loras": {"c": 1.0}}]
"""Requests with adapters, by their scales: a and c have two pages, b has one."""
CASES: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]], dict[str, Any]]] = {
    "flux, cfg": ("flux", CFG, EASED, {}),
    "flux, ring, elastic": ("flux", RING, [{}, {"seed": 4}], {"batching": "fast"}),
    "sdxl, cfg": ("sdxl", CFG, EASED, {}),
    "sdxl, ring": ("sdxl", RING, EXACT, {}),
    "wan, cfg, swapped experts": ("wan", CFG, EASED, {"swap_experts": True}),
    "wan, ulysses": ("wan", ULYSSES, EXACT, {}),
    "flux, tensor": ("flux", TENSOR, [FROM_IMAGE], {}),
    "sdxl, tensor": ("sdxl", TENSOR, [FROM_IMAGE, INPAINTING], {}),
    "wan, tensor, from image": ("wan, from image", TENSOR, [FIRST], {}),
    "flux, fsdp": ("flux", FSDP, EXACT, {}),
    "sdxl, fsdp": ("sdxl", FSDP, EXACT, {}),
    "wan, fsdp": ("wan", FSDP, EXACT, {}),
    "flux, cfg, adapters": ("flux", CFG, ADAPTED, BANKS),
    "sdxl, tensor, adapters": ("sdxl", TENSOR, ADAPTED[:1], BANKS),
    "wan, fsdp, adapters": ("wan", FSDP, ADAPTED[:1], BANKS),
    **{
        f"{name}, {axes}": (name, mesh, EXACT, {})
        for (axes, mesh), name in zip(cycle(MESHES.items()), of_suite())
    },
}
"""Model, mesh, fields in addition to `REQUESTS`, and settings of the model."""


@pytest.fixture(scope="module")
def chosen(request: pytest.FixtureRequest) -> set[str]:
    """Return the names of the cases that this run tests."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    return {item.callspec.params["name"] for item in items if item.module is request.module}


@pytest.fixture(scope="module")
def checkpoints(chosen: set[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {model: made(model, folder / model) for model in {CASES[name][0] for name in chosen}}


@pytest.fixture(scope="module")
def pipelines(checkpoints: dict[str, Path]) -> Callable[[str], Pipeline]:
    """Return a function that loads a model on one device, once."""
    return cache(lambda model: loaded(model, checkpoints[model], "float32"))


@pytest.fixture(scope="module")
def adapters(
    pipelines: Callable[[str], Pipeline], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Loras]:
    """Return a function that makes a family's adapters, one for Wan's other expert."""

    @cache
    def made(family: str) -> Loras:
        loras = Loras(pipelines(family), tmp_path_factory.mktemp("loras"))
        for name, rank in {"a": 20, "b": 4, "c": 32}.items():
            loras.make(name, rank, expert="low" if (family, name) == ("wan", "b") else None)
        return loras

    return made


@pytest.fixture(scope="module")
def drawn(
    chosen: set[str],
    checkpoints: dict[str, Path],
    adapters: Callable[[str], Loras],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Run the cases on a slice. Return the folder with its images, one file per case."""
    folder = tmp_path_factory.mktemp("drawn")
    cases = {
        name: {
            "model": {
                "source": str(checkpoints[family]),
                "dtype": "float32",
                **settings_of(EVERY.get(family), checkpoints[family]),
                **settings,
            },
            "pool": {"model": family, "slots": 2 if settings.get("batching") else 1, "mesh": mesh},
            "requests": [resolved(asked(family, fields), family, adapters) for fields in more],
            "loras": adapters(family).paths if "lora_pages" in settings else {},
        }
        for name, (family, mesh, more, settings) in CASES.items()
        if name in chosen
    }
    (folder / "cases.json").write_text(json.dumps(cases))
    for number, name in enumerate(PICTURES):
        noise_picture(40, 56, number).save(folder / name)
    for model in EVERY:
        for path, file in images_of(model).items():
            (folder / f"{model}.{path}").write_bytes(file)
    for end in started(folder, hosts=2, devices=2):
        assert end == 0, "\n".join(path.read_text() for path in folder.glob("*.log"))
    return folder


def resolved(
    fields: dict[str, Any], family: str, adapters: Callable[[str], Loras]
) -> dict[str, Any]:
    """Return the request with its adapters, as a worker resolves them."""
    if "loras" not in fields:
        return fields
    loras = adapters(family)
    return asking(fields, *(scaled(loras[name], by) for name, by in fields["loras"].items()))


def started(folder: Path, hosts: int, devices: int) -> Iterator[int]:
    """Start the processes, and yield the exit code of each when it has ended."""
    variables = {"JAX_NUM_CPU_DEVICES": str(devices), "XLA_FLAGS": coarse.FLAGS}
    variables |= compile_cache.environment()
    main = (sys.executable, "-m", "tests.workers.multihost.generation")
    arguments = (str(folder / "cases.json"), str(folder))
    processes = []
    with reserved_port() as port:
        for index in range(hosts):
            command = [*main, f"127.0.0.1:{port}", str(hosts), str(index), *arguments]
            with (folder / f"{index}.log").open("w") as log:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **variables},
                    stdout=log,
                    stderr=log,
                    preexec_fn=dies_with_parent(),
                )
            processes.append(process)
        try:
            yield from (process.wait(DRAW_S) for process in reversed(processes))
        finally:
            for process in processes:
                process.kill()
                process.wait()


def noise_picture(width: int, height: int, seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (7, 11, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def expected(
    pipelines: Callable[[str], Pipeline], adapters: Callable[[str], Loras], drawn: Path
) -> Callable[[str, str], np.ndarray]:
    """Return a function that generates a family's request, given as JSON, on one device.

    Adapters are merged into the weights.
    """

    @cache
    def draw(family: str, request: str) -> np.ndarray:
        fields, images = read(json.loads(request), drawn)
        scales = fields.get("loras", {})
        fields = {**fields, "loras": []}
        loras = adapters(family)
        merge = [(loras.read(loras[name]), scale) for name, scale in scales.items()]
        model = merged(pipelines(family), merge)
        frames, _ = split_sound(generate(model, {**model.spec.defaults, **fields}, images))
        return np.asarray(frames)

    return draw


@pytest.mark.timeout(1800)  # all cases run before the first: minutes on a busy machine
@pytest.mark.parametrize("name", CASES)
def test_slice_of_two_processes_matches_one_device(
    name: str, drawn: Path, expected: Callable[[str, str], np.ndarray]
) -> None:
    family, _, more, _ = CASES[name]
    pictures = list(np.load(drawn / f"{name}.npz").values())
    assert len(pictures) >= len(more)
    for index, pixels in enumerate(pictures):
        reference = expected(family, json.dumps(asked(family, more[index % len(more)])))
        assert_same(pixels, reference)
