"""Hires fix compared with diffusers' two pipelines: text to image, enlargement, image to image.

Each pass has a generator of the same seed, like two requests. Bounds: latents of each step to a
relative 1e-4, images to 60 dB and two grey levels. A decoded image between the passes has 8 bits,
and one level rounded the other way is already a relative 1e-4. Therefore the latents after it are
compared with diffusers' own image as input, and the pixels with Atelier's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import diffusers
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from PIL import Image

from models import registry
from models.interface.image_start import latents_file
from models.spec.hires import with_defaults
from tests import coarse
from tests.parity import sdxl_cases, test_flux
from tests.parity.distances import psnr_db, relative
from tests.parity.programs import Programs
from tests.parity.sdxl_cases import EXACT
from tests.parity.step_latents import StepLatents
from workers.engine.passes import prepared_passes
from workers.programs.second_pass import image_file

# diffusers triggers NumPy's deprecation of torch tensors without the new `__array__` signature.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SEED = 1234
FLUX = {
    "prompt": "a red circle on a blue background",
    "width": 48,
    "height": 80,
    "num_inference_steps": 4,
    "max_sequence_length": 24,
    "guidance_scale": 3.5,
}
SDXL = {name: value for name, value in sdxl_cases.BASE.items() if name != "seed"}
SDXL |= {"num_inference_steps": 5}


@dataclass(frozen=True)
class Kind:
    """Checkpoint, request, and diffusers' pipelines of both passes."""

    make: Callable[[Path], Path]
    first: Any
    second: Any
    request: Mapping[str, Any]


@dataclass(frozen=True)
class TwoPassResult:
    latents: list[np.ndarray]
    """Latents after each step of both passes."""
    image: np.ndarray
    between: np.ndarray | None = None
    """Image of the first pass, if it was decoded."""


KINDS: Mapping[str, Kind] = {
    **{
        f"sdxl {name}": Kind(
            sdxl_cases.CHECKPOINTS[name].make,
            diffusers.StableDiffusionXLPipeline,
            diffusers.StableDiffusionXLImg2ImgPipeline,
            SDXL,
        )
        for name in ("base", "deep")
    },
    **{
        f"flux {name}": Kind(
            test_flux.CHECKPOINTS[name].make,
            diffusers.FluxPipeline,
            diffusers.FluxImg2ImgPipeline,
            FLUX,
        )
        for name in ("dev", "quant conv, four levels")
    },
}


class Pair:
    """One checkpoint, loaded by diffusers and by Atelier."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.kind, self.folder = kind, kind.make(folder)

    @cached_property
    def programs(self) -> Programs:
        with coarse.compiled():
            return Programs(registry.load("tiny", str(self.folder), "float32", {}), coarse.OPTIONS)

    def fields(self, hires: Mapping[str, Any]) -> dict[str, Any]:
        spec = self.programs.pipeline.spec
        fields = {**spec.defaults, **self.kind.request, "seed": SEED}
        return {**fields, "hires": with_defaults(hires, fields, spec.limits.size_multiple_px)}

    def run_atelier(
        self, hires: Mapping[str, Any], between: np.ndarray | None = None
    ) -> TwoPassResult:
        """Run both passes.

        Args:
            between: input image of the second pass; None for Atelier's own.
        """
        pipeline, fields = self.programs.pipeline, self.fields(hires)
        first, second = prepared_passes(pipeline, fields, {})
        assert second is not None
        latents, picture = self.programs.drawn(first.prepared)
        grid = np.zeros((*first.prepared.inputs["noise"].shape[:2], 0))
        if fields["hires"]["upscaler"] == "latent":
            image = latents_file(
                np.asarray(pipeline.spatial({"latents": jnp.asarray(latents[-1]), "grid": grid}))
            )
        else:
            image = image_file(picture if between is None else between)
        latents_of_second, picture = self.programs.drawn(
            pipeline.prepare(second.fields, {"image": image})
        )
        assert len(latents_of_second) == len(second.prepared.steps)
        return TwoPassResult([*latents, *latents_of_second], picture)

    def run_diffusers(self, hires: Mapping[str, Any]) -> TwoPassResult:
        hires_fields = self.fields(hires)["hires"]
        first = self.kind.first.from_pretrained(self.folder)
        config = first.config.get("force_zeros_for_empty_prompt")
        zeros = {} if config is None else {"force_zeros_for_empty_prompt": config}
        second = self.kind.second(**first.components, **zeros)
        latents = StepLatents()

        for pipeline in (first, second):
            pipeline.set_progress_bar_config(disable=True)

        def options() -> dict[str, Any]:
            generator = torch.Generator("cpu").manual_seed(SEED)
            return {"generator": generator, "callback_on_step_end": latents.keep}

        arguments, between = dict(self.kind.request), None
        size = hires_fields["width"], hires_fields["height"]
        if hires_fields["upscaler"] == "latent":
            image = self._enlarged(
                first, first(**arguments, **options(), output_type="latent").images, size
            )
        else:
            decoded = first(**arguments, **options()).images[0]
            image = decoded.resize(size, Image.Resampling.LANCZOS)
            between = np.asarray(decoded)
        is_flux = self.kind.second is diffusers.FluxImg2ImgPipeline
        arguments |= {"width": size[0], "height": size[1]}
        if not is_flux:
            del arguments["width"], arguments["height"]  # image to image uses the size of its image
        arguments |= {name: hires_fields[name] for name in ("strength", "num_inference_steps")}
        output = second(**arguments, image=image, **options())
        return TwoPassResult(latents, np.asarray(output.images[0]), between)

    def _enlarged(self, pipeline: Any, latents: torch.Tensor, size: tuple[int, int]) -> Any:
        """Resize latents as AUTOMATIC1111's "Latent"."""
        if latents.ndim == 3:
            height, width = self.kind.request["height"], self.kind.request["width"]
            latents = pipeline._unpack_latents(latents, height, width, pipeline.vae_scale_factor)
        down = pipeline.vae_scale_factor
        grid = (size[1] // down, size[0] // down)
        return torch.nn.functional.interpolate(latents, size=grid, mode="bilinear")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    return cache(lambda name: Pair(tmp_path_factory.mktemp("hires") / "model", KINDS[name]))


CASES: Mapping[str, Mapping[str, Any]] = {
    "latent": {"scale": 1.5},
    "lanczos": {"scale": 2, "upscaler": "lanczos", "strength": 0.5, "num_inference_steps": 6},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_passes_match_diffusers(
    pairs: Callable[[str], Pair], kind: str, case: str, record_property: Any
) -> None:
    result, expected = pairs(kind).run_atelier(CASES[case]), pairs(kind).run_diffusers(CASES[case])
    from_reference_image = (
        result
        if expected.between is None
        else pairs(kind).run_atelier(CASES[case], expected.between)
    )
    gaps = [
        relative(a, b) for a, b in zip(from_reference_image.latents, expected.latents, strict=True)
    ]
    levels = np.abs(result.image.astype(int) - expected.image).max()
    record_property("latents_relative", max(gaps))
    record_property("psnr_db", psnr_db(result.image, expected.image))
    print(f"latents {max(gaps):.1e}, {psnr_db(result.image, expected.image):.1f} dB, {levels}")
    assert max(gaps) <= EXACT.relative, gaps
    assert psnr_db(result.image, expected.image) >= EXACT.psnr_db
    assert levels <= EXACT.grey_levels
    assert expected.image.std() > 10, "a flat image proves nothing"


def test_shifted_latents_break_parity(
    pairs: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong positions are those of the nearest pixel."""
    from models.interface import image_start

    def nearest(latents: np.ndarray, h: int, w: int) -> np.ndarray:
        rows = np.arange(h) * latents.shape[0] // h
        columns = np.arange(w) * latents.shape[1] // w
        return latents[rows][:, columns]

    pair, case = pairs("flux dev"), CASES["latent"]
    expected = pair.run_diffusers(case)
    monkeypatch.setattr(image_start, "resized", nearest)
    result = pair.run_atelier(case)
    assert max(map(relative, result.latents, expected.latents)) > 10 * EXACT.relative
    assert psnr_db(result.image, expected.image) < EXACT.psnr_db - 10
