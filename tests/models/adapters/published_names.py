"""Layer names of published models from their configs, and safetensors files with given headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.adapters.files.name_table import Names
from models.adapters.layer_names import Spelling, names
from models.flux import key_mapping as flux_names
from models.flux.config import FluxConfig
from models.flux.network import FluxTransformer
from models.flux.published import FLUX_DEV
from models.loading.abstract import abstract_module
from models.sdxl import adapter_names as sdxl_names
from models.sdxl.config import UNetConfig
from models.sdxl.network import UNet
from models.sdxl.published import SDXL_BASE
from models.text.clip import ClipConfig, ClipTextModel, ClipTextModelWithProjection
from models.wan import adapter_names as wan_names
from models.wan.config import WanConfig
from models.wan.network import WanTransformer
from models.wan.published import T2V_14B

_abstract = partial(abstract_module, param_dtype=jnp.bfloat16)


def networks(model: str) -> list[tuple[Spelling, nnx.Module]]:
    """Return the spellings and abstract full-size networks of `flux`, `sdxl` or `wan`."""
    if model == "wan":
        expert = _abstract(WanTransformer, WanConfig.from_dict(T2V_14B))
        return [(spelling, expert) for spelling in wan_names.SPELLINGS]
    published = FLUX_DEV if model == "flux" else SDXL_BASE
    clip = _abstract(ClipTextModel, ClipConfig.from_dict(published["text_encoder"]))
    if model == "flux":
        transformer = FluxConfig.from_dict(published["transformer"])
        modules = [_abstract(FluxTransformer, transformer), clip]
        return list(zip(flux_names.SPELLINGS, modules, strict=True))
    clip_2 = ClipConfig.from_dict(published["text_encoder_2"])
    modules = [
        _abstract(UNet, UNetConfig.from_dict(published["unet"])),
        *(clip, _abstract(ClipTextModelWithProjection, clip_2)),
    ]
    return list(zip(sdxl_names.SPELLINGS, modules, strict=True))


@cache
def published(model: str) -> Names:
    return Names(tuple(names(spelling, network) for spelling, network in networks(model)))


def write(
    file: Path,
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    of_bytes: str = "U8",
) -> Path:
    """Write a valid file. The dtype uint16 represents the bits of bfloat16.

    Args:
        of_bytes: dtype of arrays of uint8.
    """
    kinds = {"f8": "F64", "f4": "F32", "f2": "F16", "u2": "BF16", "u1": of_bytes}
    kinds |= {"i8": "I64", "i4": "I32"}
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for key, array in arrays.items():
        offsets = [offset, offset + array.nbytes]
        kind = kinds[array.dtype.str[1:]]
        header[key] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        offset += array.nbytes
    return write_raw(file, json.dumps(header), b"".join(a.tobytes() for a in arrays.values()))


def write_raw(file: Path, header: str, data: bytes = b"", length: int | None = None) -> Path:
    """Write a file with this header, valid or not."""
    text = header.encode()
    size = len(text) if length is None else length
    file.write_bytes(size.to_bytes(8, "little") + text + data)
    return file
