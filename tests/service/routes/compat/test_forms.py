"""Fields of `POST /v1/generate` in forms, whose values are texts."""

from __future__ import annotations

from typing import Any

import pytest

from service.routes.compat.forms import typed


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("prompt", "[a] {b}", "[a] {b}"),
        ("seed", "7", 7),
        ("scheduler", "Euler a", "Euler a"),
        ("scheduler", '{"name": "euler"}', {"name": "euler"}),
        ("scheduler", "{euler", "{euler"),
        ("quality", '{"min_psnr_db": 40}', {"min_psnr_db": 40}),
        ("quality", "exact", "exact"),
        ("loras", '[{"name": "ink"}]', [{"name": "ink"}]),
    ],
)
def test_a_text_is_a_value_of_its_field(name: str, text: str, value: Any) -> None:
    assert typed(name, text) == value
