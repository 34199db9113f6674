"""Assignment of the settings' adapters to models and their versions."""

from __future__ import annotations

import pytest

from service.settings.loras import LoraSettings
from service.settings.models import ModelSettings
from service.settings.settings import Settings
from tests.service.standin import SPEC
from workers.loading.loras import default_pages, is_for

R2 = "flux-dev@r2"


@pytest.mark.parametrize(
    ("model", "is_there"),
    [(R2, True), ("flux-dev", True), ("flux-dev@r1", False), ("flux", False), ("r2", False)],
)
def test_an_adapter_is_for_a_model_or_all_its_versions(model: str, is_there: bool) -> None:
    adapter = LoraSettings(source="ink.safetensors", model=model)
    assert is_for(adapter, SPEC.model_copy(update={"name": R2})) == is_there
    models = {name: ModelSettings(source="/weights") for name in (R2, "flux-dev@r1", "flux", "r2")}
    settings = Settings(models=models, loras={"ink": adapter})
    assert bool(default_pages(settings, R2)) == is_there
