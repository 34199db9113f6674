"""Messages about wrong types and values, in this project's words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from models.spec.field_types import MAX_SEED, Seed
from models.spec.type_messages import type_message


class Sample(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    seed: Seed = 0
    share: Annotated[float, Field(gt=0, le=1)] = 1
    large: Annotated[float, Field(ge=0.5, lt=1e6)] = 1
    flag: bool = False
    text: Annotated[str, Field(min_length=1, max_length=3)] = "a"
    entries: Annotated[list[int], Field(min_length=1, max_length=2)] = [1]
    kind: Literal["png", "jpeg"] = "png"
    names: dict[str, int] = {}
    inner: Sample | None = None

    @field_validator("seed")
    @classmethod
    def _no_seven(cls, seed: int) -> int:
        if seed == 7:
            raise ValueError("must not be 7")
        return seed


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seed", -1, "must be at least 0"),
        ("seed", MAX_SEED + 1, f"must be at most {2**64 - 1}"),
        ("seed", "1", "must be a whole number"),
        ("seed", 1.5, "must be a whole number"),
        ("seed", 7, "must not be 7"),
        ("share", 0, "must be more than 0"),
        ("share", 2, "must be at most 1"),
        ("share", "x", "must be a number"),
        ("share", float("nan"), "must be a finite number"),
        ("large", 0, "must be at least 0.5"),
        ("large", 1e6, "must be less than 1000000"),
        ("flag", 1, "must be true or false"),
        ("text", 1, "must be a text"),
        ("text", "", "must have at least 1 character"),
        ("text", "four", "must have at most 3 characters"),
        ("entries", 1, "must be a list"),
        ("entries", [], "must have at least 1 entry"),
        ("entries", [1, 2, 3], "must have at most 2 entries"),
        ("kind", "gif", "must be 'png' or 'jpeg'"),
        ("names", [], "must be an object"),
        ("inner", 1, "must be an object"),
        ("other", 1, "there is no such field"),
    ],
)
def test_each_wrong_value_has_a_message(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        Sample.model_validate({field: value})
    (item,) = error.value.errors()
    assert type_message(item) == message


def test_a_type_without_a_message_has_a_general_one() -> None:
    assert "Input" not in type_message({"type": "new_type", "msg": "Input should be new"})
