"""LoRA adapters of a checkpoint's pipelines: their layers, and switches between images."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from models.adapters.files.adapter import KernelShape, LayerPosition
from models.adapters.files.alphas import WRAPPED
from models.adapters.files.name_table import Layers, Names, NetworkNames
from models.adapters.files.peft_folder import METADATA, folder_config
from models.interface.adapters import requested_adapters
from models.interface.pipeline import Fields
from models.spec.lora import RequestedLora
from workers import metrics
from workers.engine.adapters import LoraFiles, adapter_errors
from workers.engine.errors import GenerationFailed
from workers.programs.step_latency import Recent

LoraPaths = Sequence[tuple[RequestedLora, Path]]
"""Adapters of a request with their files."""
KOHYA = {"unet": ("unet",), "text_encoder": ("te", "te1"), "text_encoder_2": ("te2",)}
"""Words for networks in kohya's keys, which diffusers reads for pipelines with a UNet."""
DENOISERS = ("unet", "transformer")
"""Networks that a file of PEFT may be for, whose keys do not name the network."""


def names_of(pipeline: Any) -> Names:
    """Return the names of the layers that a pipeline's adapters may change, as files have them."""
    kohya = KOHYA if "unet" in pipeline.components else {}
    networks = {name: getattr(pipeline, name, None) for name in pipeline._lora_loadable_modules}
    present = {name: network for name, network in networks.items() if network is not None}
    return Names(tuple(_names(*pair, kohya.get(pair[0], ())) for pair in present.items()))


def _names(name: str, network: torch.nn.Module, words: Sequence[str]) -> NetworkNames:
    """Return a network's layer names in adapter files; CLIP's may begin with `text_model`."""
    dotted = (f"{name}.", f"{name}.text_model.", *((WRAPPED,) if name in DENOISERS else ()))
    underscored = [f"lora_{word}_{middle}" for word in words for middle in ("", "text_model_")]
    return NetworkNames(name, layers_of(network), dotted, tuple(underscored))


def layers_of(network: torch.nn.Module) -> Mapping[str, Layers]:
    """Return the linear layers and convolutions of a network, by name."""
    layers: dict[str, Layers] = {}
    for path, module in network.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d) and weight is not None:
            outputs, inputs, *window = weight.shape
            layers[path] = {LayerPosition(path): KernelShape(inputs, outputs, tuple(window))}
    return layers


@contextmanager
def by_network(path: Path, denoiser: str) -> Iterator[Path]:
    """Yield an adapter's file as diffusers reads it: keys and PEFT's config begin with a network.

    It is a temporary copy of files that PEFT itself saved, and otherwise the file.

    Args:
        denoiser: network of keys that name none.

    Raises: AdapterError: as `folder_config`.
    """
    with safe_open(path, "pt") as file:
        keys, metadata = list(file.keys()), file.metadata() or {}
    config = json.loads(metadata.get(METADATA) or folder_config(path) or "{}")
    is_whole = bool(config) and not all("." in key for key in config)
    if not is_whole and not any(key.startswith(WRAPPED) for key in keys):
        yield path
        return
    arrays = {
        f"{denoiser}.{key.removeprefix(WRAPPED)}" if key.startswith(WRAPPED) else key: array
        for key, array in load_file(path).items()
    }
    config = _config_by_network(config, arrays) if is_whole else config
    with tempfile.TemporaryDirectory(prefix="atelier-") as folder:
        copy = Path(folder) / path.name
        save_file(arrays, copy, metadata | ({METADATA: json.dumps(config)} if config else {}))
        yield copy


def _config_by_network(config: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return PEFT's config of all layers for each network, without options of newer versions."""
    accepted = {entry.name for entry in fields_of(LoraConfig)} - {"target_modules"}
    layers = {tuple(key.partition(".lora_")[0].split(".", 1)) for key in keys}
    options: dict[str, Any] = {}
    for network in sorted({network for network, _ in layers}):
        targets = sorted(layer for of, layer in layers if of == network)
        given = {key: value for key, value in config.items() if key in accepted}
        options |= {f"{network}.{key}": value for key, value in given.items()}
        options[f"{network}.target_modules"] = targets
    return options


class PipelineAdapters:
    """Adapters of the latest image, which stay on the device until an image has others.

    `find` runs in the event loop, and the other methods in the pipeline's thread.
    """

    def __init__(self, model: str, pipeline: Any, files: LoraFiles) -> None:
        self.digests: list[str] = []
        """Digests of the adapters on the device."""
        self._model = model
        self._pipeline = pipeline
        self._files = files
        self._scales: list[float] = []
        self._times = Recent()

    @property
    def load_s(self) -> float:
        """Median seconds of the latest adapter loads; 0 before the first."""
        return self._times.median or 0.0

    async def find(self, fields: Fields, tenant: str) -> LoraPaths:
        """Return a request's adapters with their files. Raises: GenerationFailed."""
        with adapter_errors():
            return [(lora, await self._files(lora, tenant)) for lora in requested_adapters(fields)]

    def switch(self, adapters: LoraPaths) -> None:
        """Load the adapters of an image, and unload those of another.

        Raises: GenerationFailed: the pipeline cannot load a file.
        """
        if [lora.digest for lora, _ in adapters] != self.digests:
            self._unload()
            try:
                with adapter_errors():
                    for lora, file in adapters:
                        self._load(lora.digest, file)
            except GenerationFailed:
                self._unload()
                raise
        self.scale(adapters, 0, 1)

    def scale(self, adapters: LoraPaths, step: int, steps: int) -> None:
        """Set the adapters' scales in a step, counted from 0."""
        scales = [lora.scale(step, steps) for lora, _ in adapters]
        if scales != self._scales:
            self._pipeline.set_adapters(self.digests, scales)
            self._scales = scales

    def _unload(self) -> None:
        if self.digests:
            self._pipeline.unload_lora_weights()
        self.digests, self._scales = [], []

    def _load(self, digest: str, file: Path) -> None:
        began = time.perf_counter()
        self.digests.append(digest)
        denoiser = next(name for name in DENOISERS if name in self._pipeline.components)
        with by_network(file, denoiser) as named:
            self._pipeline.load_lora_weights(named, adapter_name=digest, use_safetensors=True)
        seconds = time.perf_counter() - began
        self._times.observe(seconds)
        metrics.adapter_loaded(self._model, seconds)
