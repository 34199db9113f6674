"""Families as values: the checkpoints that each supports, and the published ones. No JAX.

`models/<family>/family.py` defines a family's value, which `models.registry` lists. Only loading a
checkpoint imports the family's networks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from models.interface.pipeline import Pipeline

Config = Mapping[str, Any]
ConfigFiles = Mapping[str, Config]
"""Path in a checkpoint's folder → contents of that JSON file."""

LoadOption = Literal[
    "swap_experts",
    "image_prompts",
    "controls",
    "refiner",
    "latent_upsampler",
    "token_buckets",
    "pipeline",
]
"""Options of `models.registry.load` that only some families have.

`swap_experts` keeps experts in host memory. The others are fields of
`models.loading.sources.Reading`.
"""


@dataclass(frozen=True)
class SingleFiles:
    """Single weight files of a family; a *base* provides configs and tokenizers."""

    from_base: tuple[str, ...] = ()
    """Patterns of the base's folders whose weights a file may lack."""
    transformer_keys: str = ""
    """First parts of the transformer's keys after a prefix, for messages; empty: not used."""
    usual: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Folder of the base whose weights only some files lack → prefixes of keys of files with them.
    """
    bases: Mapping[str, str] = field(default_factory=dict)
    """Prefix of a key → hub id of the base of files with such a key, unless a base is given. The
    empty prefix is for all files without a prefix of any family."""

    def patterns(self, keys: Collection[str]) -> tuple[str, ...]:
        """Return patterns of the base checkpoint's files that a file with these keys may need."""
        lacking = (
            folder
            for folder, prefixes in self.usual.items()
            if not any(key.startswith(prefixes) for key in keys)
        )
        return tuple(f"{folder}/*.safetensors" for folder in (*self.from_base, *lacking))


@dataclass(frozen=True)
class PublishedCheckpoint:
    """Config files of a published checkpoint, with those of networks next to it.

    Written to a folder, the files equal the checkpoint's folder without weights and vocabularies.
    Paths are relative to that folder.
    """

    files: ConfigFiles
    image_prompts: Mapping[str, str] = field(default_factory=dict)
    """Paths of networks for image prompts, by name."""
    controls: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """ControlNets by kind of control image: the path `source`, and a union's `mode`."""
    refiner: str | None = None
    """Path of the refiner."""


@dataclass(frozen=True)
class Family:
    """Model family: models with one network architecture, and how they are loaded."""

    name: str
    """Name in specs, metrics and settings, and of the folder."""
    title: str
    """Name of the models in messages."""
    pipelines: Mapping[str, str]
    """Class of diffusers' pipeline, as in `model_index.json` → module whose `load` supports it."""
    options: frozenset[LoadOption] = frozenset()
    """Options that `load` accepts in addition to those of all families."""
    single_files: SingleFiles | None = None
    """Support for single weight files; None: none."""
    published: Mapping[str, PublishedCheckpoint] = field(default_factory=dict)
    """Published checkpoints by the names that `atelier plan --model` accepts."""

    def loader(self, class_name: str) -> Callable[..., Pipeline]:
        """Import the function that loads checkpoints of a pipeline class."""
        load: Callable[..., Pipeline] = import_module(self.pipelines[class_name]).load
        return load


def config_files(
    pipeline: str, scheduler: Config, networks: Mapping[str, Config], **index: Any
) -> ConfigFiles:
    """Return the config files of a checkpoint.

    Args:
        pipeline: class of its pipeline.
        networks: configs of its networks by folder.
        index: further entries of `model_index.json`, which override those of networks.
    """
    entries: dict[str, Any] = {name: ("", "") for name in networks}
    entries["scheduler"] = ("diffusers", scheduler["_class_name"])
    return {
        "model_index.json": {"_class_name": pipeline, **entries, **index},
        "scheduler/scheduler_config.json": scheduler,
        **{f"{name}/config.json": config for name, config in networks.items()},
    }


def with_control(model: ConfigFiles, config: Config, *modes: str) -> PublishedCheckpoint:
    """Return a published model's configs with those of a ControlNet.

    Args:
        config: of the ControlNet.
        modes: kinds of control images of a union; none: canny edges only, no union.
    """
    folder = "controlnet"
    return PublishedCheckpoint(
        {**model, f"{folder}/config.json": config},
        controls={mode: {"source": folder, "mode": mode} for mode in modes}
        or {"canny": {"source": folder}},
    )
