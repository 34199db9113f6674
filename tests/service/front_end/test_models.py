"""A front end's cached copy of the registered models."""

from __future__ import annotations

import pytest

from service.errors.problems import NotFound, Unavailable
from service.front_end.models import Models
from service.jobs.queue import Queue
from tests.service.standin import MODEL, SPEC

LONG_S = 1_000.0


async def test_newly_registered_model_is_found_immediately(queue: Queue) -> None:
    """The copy may be old only for models that it contains."""
    models = Models(queue, LONG_S)
    with pytest.raises(Unavailable, match="no model is registered"):
        await models.get(MODEL)
    await queue.register("pool", SPEC, ready=True)
    assert (await models.get(MODEL)).spec.name == MODEL
    with pytest.raises(NotFound):
        await models.get("another")
    await queue.register("pool two", SPEC.model_copy(update={"name": "another"}), ready=True)
    assert (await models.get("another")).spec.name == "another"
