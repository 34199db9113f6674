from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.settings.models import ModelSettings
from tests.workers.diffusers import tiny
from workers.diffusers.engine import DiffusersEngine
from workers.diffusers.load import LoadedPipelines, load


@pytest.fixture(scope="session")
def stable_diffusion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a Stable Diffusion 1.5 checkpoint."""
    return tiny.make("StableDiffusionPipeline", tmp_path_factory.mktemp("sd"))


@pytest.fixture(scope="module")
def pipelines(stable_diffusion: Path) -> LoadedPipelines:
    return load("sd", ModelSettings(source=str(stable_diffusion), dtype="float32"))


@pytest.fixture
async def engine(pipelines: LoadedPipelines) -> AsyncIterator[DiffusersEngine]:
    engine = DiffusersEngine(pipelines)
    yield engine
    engine.close()
