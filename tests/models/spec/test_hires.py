"""Hires fix in a model's spec."""

from __future__ import annotations

from models.spec.hires import FIELD
from models.spec.model_spec import ModelSpec
from tests.service.standin import SPEC


def test_a_spec_of_an_older_pool_has_none() -> None:
    """The older spec lacks the field, and its workers would ignore it."""
    assert FIELD in SPEC.fields
    older = SPEC.model_copy(update={"fields": SPEC.fields - {FIELD}})
    assert "strength" in older.fields and "image-to-image" in older.tasks
    assert ModelSpec.model_validate_json(older.model_dump_json()) == older
    assert ModelSpec.model_validate_json(SPEC.model_dump_json()) == SPEC
