"""Hires fix in the defaults of a model or of a derived model."""

from __future__ import annotations

from typing import Any

import pytest

from models.spec.model_spec import DerivedModel, ModelSpec, Size, Sizes
from models.spec.upscalers import Enlarger, Upscaler
from service.settings.section import ConfigError
from tests.service.standin import SPEC, VIDEO
from workers.loading.hires_defaults import check
from workers.loading.upscalers import with_upscalers

BASE = SPEC.model_copy(update={"defaults": {**SPEC.defaults, "width": 64, "height": 48}})
LISTED = BASE.model_copy(
    update={"sizes": Sizes(mode="listed", listed=(Size(width=64, height=48),))}
)


OWN = Enlarger(scale=2, second={"num_inference_steps": 3})
TWO_STAGES = ModelSpec.model_validate(
    {
        **VIDEO.model_dump(),
        "enlargers": {"own": OWN.model_dump()},
        "defaults": {**VIDEO.defaults, "width": 64, "height": 48},
    }
)
"""Model with a network that enlarges its latents, and no image-to-image."""
WIDE = BASE.model_copy(update={"defaults": {**BASE.defaults, "width": 160}})


def derived(spec: ModelSpec, hires: Any) -> ModelSpec:
    """Return a model whose workers also serve a derived model with this default."""
    variant = DerivedModel(name="fast", defaults={"hires": hires}, loras=())
    return spec.model_copy(update={"derived": (variant,)})


@pytest.mark.parametrize(
    "hires",
    [{}, {"scale": 2}, {"width": 96, "strength": 0.5}, {"upscaler": "lanczos"}, {"height": 96}],
)
def test_supported_default_is_accepted(hires: dict[str, Any]) -> None:
    check(derived(BASE, hires))
    check(BASE.model_copy(update={"defaults": {**BASE.defaults, "hires": hires}}))


@pytest.mark.parametrize("hires", [{}, {"scale": 2}, {"upscaler": "own"}, {"width": 128}])
def test_default_with_the_model_s_own_network(hires: dict[str, Any]) -> None:
    check(derived(TWO_STAGES, hires))
    check(TWO_STAGES.model_copy(update={"defaults": {**TWO_STAGES.defaults, "hires": hires}}))


def test_default_may_name_a_configured_upscaler() -> None:
    photo = {"photo": Upscaler(scale=4, tile=64)}
    check(derived(with_upscalers(BASE, photo), {"upscaler": "photo"}))


@pytest.mark.parametrize(
    ("spec", "hires", "message"),
    [
        (BASE, 2, r"hires: must be an object"),
        (BASE, {"scale": 9}, r"hires\.scale: must be at most 8"),
        (BASE, {"scal": 2}, r"hires\.scal: there is no such field"),
        (BASE, {"strength": 0}, r"hires\.strength: must be more than 0"),
        (BASE, {"num_inference_steps": 51}, r"hires\.num_inference_steps: must be 50 at most"),
        (BASE, {"upscaler": "photo"}, r"hires\.upscaler: must be latent or lanczos"),
        (BASE, {"scale": 2, "width": 128}, r"hires\.scale: set it, or width and height"),
        (BASE, {"scale": 4}, r"hires\.scale: makes 256 x 192: sides of 256 and 16384 pixels"),
        (BASE, {"width": 100}, r"hires\.width: makes 100 x 80: sides must be multiples of 16"),
        (
            BASE,
            {"width": 32},
            r"hires\.width: makes 32 x 32: the first pass's size, 64 x 48, is larger",
        ),
        (LISTED, {"scale": 2}, r"hires\.scale: makes 128 x 96: the model serves only 64 x 48"),
        (WIDE, {}, r"hires\.scale: makes 320 x 96: sides of 256"),
        (TWO_STAGES, {"upscaler": "latent"}, r"hires\.upscaler: must be own"),
        (TWO_STAGES, {"strength": 0.5}, r"hires\.strength: the upscaler 'own' has its own"),
        (TWO_STAGES, {"scale": 1.5}, r"hires\.scale: must make 128x96, 2 times as large"),
        (VIDEO, {"scale": 2}, r"hires: the model does no image to image with a strength"),
        (
            BASE.model_copy(update={"strength_rounds": "down"}),
            {"strength": 0.1},
            r"hires\.strength: leaves none of the 4 steps",
        ),
    ],
)
def test_unsupported_default_names_its_key(spec: ModelSpec, hires: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^models\.fast\.defaults\.{message}"):
        check(derived(spec, hires))
    model = spec.model_copy(update={"defaults": {**spec.defaults, "hires": hires}})
    with pytest.raises(ConfigError, match=rf"^models\.{spec.name}\.defaults\.{message}"):
        check(model)
