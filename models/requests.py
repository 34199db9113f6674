"""Request class of each family, with which front ends validate requests. No JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from models.chroma.request import ChromaRequest
from models.flux.request import FluxRequest
from models.flux2.request import Flux2Request
from models.krea2.request import Krea2Request
from models.ltx.request import LTX2Request
from models.qwenimage.request import QwenImageRequest
from models.qwenimage21.request import QwenImage21Request
from models.sdxl.request import SdxlRequest
from models.spec.request import Request
from models.wan.request import WanRequest
from models.zimage.request import ZImageRequest

REQUESTS: Mapping[str, Callable[..., Request]] = {
    "chroma": ChromaRequest,
    "flux": FluxRequest,
    "flux2": Flux2Request,
    "krea2": Krea2Request,
    "ltx": LTX2Request,
    "qwenimage": QwenImageRequest,
    "qwenimage21": QwenImage21Request,
    "sdxl": SdxlRequest,
    "wan": WanRequest,
    "zimage": ZImageRequest,
}
"""Request classes by the `family` of a model's spec."""
