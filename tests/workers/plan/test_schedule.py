"""A step's schedule, added up, and the page that it goes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.nn.attention.search import Case as Shape
from tests.workers.plan.test_operations import TEXT
from workers.plan.schedule import CASES, Step, attention_flops, parts
from workers.plan.speed_page import PAGE, table, write

CLOCK_HZ = 70e3
"""At which each operation of the text takes a millisecond."""


def test_a_layer_is_added_up_by_kind() -> None:
    layer, rest = parts(TEXT, CLOCK_HZ, {})
    assert (layer.name, layer.runs, rest.runs) == ("body", 40, 1)
    assert layer.seconds == pytest.approx({"product": 1e-3, "elementwise": 1e-3, "copy": 2e-3})
    assert layer.xla_s == pytest.approx(4e-3) and layer.attention_s == 0
    assert layer.sent_bytes == {"all-to-all": 8 * 128 * 2 * 3 / 4}


def test_attention_takes_as_long_as_its_heads() -> None:
    shape = Shape("bfloat16", 128, 512, 256)
    layer, rest = parts(TEXT, CLOCK_HZ, {shape: 350.0})
    assert layer.attention_s == pytest.approx(2 * 5e-3) and rest.attention_s == 0


def test_a_steps_attention_is_counted_without_padding() -> None:
    """One pass of 24 heads on each of four chips that share the heads of 57 blocks."""
    tokens = 4096 + 512
    assert attention_flops("flux-tensor") == 57 * 4 * tokens**2 * 128 * 24 / 4


def test_the_page_has_each_layer_and_the_step(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("before\n<!-- schedule -->\nold\n<!-- /schedule -->\nbehind\n")
    step = Step("wan", parts(TEXT, CLOCK_HZ, {}))
    write([step], page)
    said = page.read_text()
    assert "old" not in said and said.startswith("before\n") and said.endswith("-->\nbehind\n")
    assert "a layer, x 40 | 1 ms | 1 ms | 2 ms | 4 ms |" in said
    assert "all of a step | 40 ms | 41 ms | 80 ms | 161 ms |" in said
    write([step], page)
    assert page.read_text() == said


def test_a_decode_has_no_layers() -> None:
    """Its loops are chunks of frames and of queries."""
    rows = list(table([Step("sdxl-decode", parts(TEXT, CLOCK_HZ, {}))]))[3:]
    (row,) = rows
    assert row.startswith("| sdxl, v6e:1x1, data 1 | all of a decode | 40 ms |")


def test_a_page_without_a_place_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="<!-- schedule -->"):
        write([Step("wan", parts(TEXT, CLOCK_HZ, {}))], page)
    assert page.read_text() == "nothing"


def test_the_page_that_is_shipped_has_the_place() -> None:
    assert "<!-- schedule -->\n" in PAGE.read_text()
    assert len(list(table([]))) == 3 and set(CASES) >= {"wan", "flux-tensor", "flux-context"}
