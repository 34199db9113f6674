"""Models of the tests' shared system: a tiny checkpoint of each kind, taking turns in one pool."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models import registry
from models.loading.sources import SHAPES
from tests.families.adapters import Loras
from tests.families.suite import EVERY, SUITE
from tests.models.sdxl.original_writer import write_original
from tests.parity.tiny_sdxl import make_sdxl
from tests.parity.tiny_wan import make_wan

CLIP = {"width": 32, "height": 48, "num_frames": 5, "fps": 8, "num_inference_steps": 2}
"""Defaults of the video models."""
CONTROLS = ("edges", "depth")
EXACT = "flux"
"""Model with a preset and adapters, in bfloat16."""
FAST = "flux-fast"
"""Model defined as another one with an adapter."""
PAGES, STEPS = 4, 4
CACHED = {"step_cache": {"kind": "first-block", "threshold": 0.2}}


def checkpoints(root: Path) -> dict[str, Path]:
    """Make the checkpoints of all models except `tiny`; returns their folders by name."""
    checkpoint_folders = {
        "videos": make_wan(root / "videos"),
        "vace": EVERY["wan-vace"].least(root / "vace"),
        "controlled": EVERY["sdxl-controlnet"].make(root / "controlled"),
        "klein": EVERY["flux2-edit"].make(root / "klein"),
        "tune": make_sdxl(root / "tune"),
        EXACT: with_defaults(root / EXACT, EXACT),
    }
    for name in ("videos", "vace"):
        (checkpoint_folders[name] / "atelier.json").write_text(json.dumps({"defaults": CLIP}))
    return checkpoint_folders


def with_defaults(folder: Path, family: str) -> Path:
    """Make a checkpoint of a family whose defaults are those of a small request."""
    request = SUITE[family].smallest_request
    SUITE[family].least(folder)
    defaults = {field: request[field] for field in request if field not in ("seed", "num_images")}
    (folder / "atelier.json").write_text(json.dumps({"defaults": defaults}))
    return folder


def preset(family: str) -> dict[str, Any]:
    return {"quality": {"cached": CACHED}} if SUITE[family].step_caches else {}


def adapters(folders: Mapping[str, Path], root: Path) -> dict[str, Path]:
    """Make adapters for these checkpoints by name: three of Flux, one of each other family."""
    return {
        name: path
        for family, folder in folders.items()
        for name, path in _adapters(
            folder, root, family, ["a", "b", "c"] if family == "flux" else ["a"]
        )
    }


def _adapters(
    folder: Path, root: Path, family: str, names: list[str]
) -> Iterator[tuple[str, Path]]:
    loras = Loras(registry.load(family, str(folder), "float32", {}, reader=SHAPES), root)
    for number, name in enumerate(names):
        lora = loras.make(f"{family}-{name}", rank=(4, 20, 16)[number])
        yield lora.name, Path(loras.paths[lora.digest])


def with_adapter(files: Mapping[str, Path]) -> dict[str, Any]:
    """Return the settings of the model that is Flux with an adapter."""
    defaults = {"num_inference_steps": STEPS}
    lora = {"lora": str(files["flux-b"]), "lora_scale": 0.5}
    return {FAST: {"base": "flux", **lora, "defaults": defaults}}


def named_adapters(files: Mapping[str, Path]) -> dict[str, Any]:
    """Return the settings of all adapters except the one that a tenant uploads."""
    return {
        name: {"source": str(path), "model": name.partition("-")[0], "trigger": f"word of {name}"}
        for name, path in files.items()
        if name != "flux-c"
    }


def settings(folders: Mapping[str, Path], files: Mapping[str, Path], hook: str) -> dict[str, str]:
    """Return the environment variables of the system.

    Args:
        folders: checkpoints of all models, by name.
        files: adapters of Flux, by name.
        hook: address of the safety hook.
    """
    models: dict[str, Any] = {
        name: {"source": str(folder), "dtype": "float32", "warmup": []}
        for name, folder in folders.items()
    }
    models["controlled"] |= {
        "controls": {name: str(folders["controlled"] / "controls" / name) for name in CONTROLS},
        "max_controls": len(CONTROLS),
    }
    models[EXACT] |= {"dtype": "bfloat16", "lora_pages": PAGES, **preset(EXACT)}
    # Files that the checkpoint lacks are read from the folder of its name next to it.
    tune = folders["tune"]
    models["tune"]["source"] = str(write_original(tune, tune.with_suffix(".safetensors")))
    first, *further = folders
    pool = {"model": first, "by_turns": further, "slots": 2}
    return {
        "ATELIER_MODELS": json.dumps(models | with_adapter(files)),
        "ATELIER_POOLS": json.dumps({"all": pool}),
        "ATELIER_LORAS": json.dumps(named_adapters(files)),
        "ATELIER_SAFETY": json.dumps({"url": hook, "timeout_s": 3600}),
    }
