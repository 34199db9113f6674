"""A step's schedule, added up, and the page that it goes to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.nn.kernels.block_size_search import Case as Shape
from tests.workers.plan.test_operations import TEXT
from tools.speed_page import table, write
from tools.tpu_schedule import main
from workers.plan.record import NOTHING, Record
from workers.plan.schedule import Attention, Step, attention_flops, flops, parts

CLOCK_HZ = 70e3
"""At which each operation of the text takes a millisecond."""


def test_a_layer_is_added_up_by_kind() -> None:
    """With the loops and the asynchronous computations in it."""
    layer, rest = parts(TEXT, CLOCK_HZ, {})
    assert (layer.name, layer.runs, rest.runs) == ("body", 40, 1)
    assert layer.seconds == pytest.approx(
        {"product": 1e-3, "convolution": 2e-3, "elementwise": 1e-3, "copy": 2e-3}
    )
    assert layer.xla_s == pytest.approx(6e-3) and layer.attention_s == 0
    assert layer.sent_bytes == {"all-to-all": 8 * 128 * 2 * 3 / 4}


def test_attention_takes_as_long_as_its_heads() -> None:
    shape = Shape("bfloat16", 128, 512, 256)
    layer, rest = parts(TEXT, CLOCK_HZ, {shape: 350.0})
    assert layer.attention_s == pytest.approx(2 * 5e-3) and rest.attention_s == 0
    assert layer.attention == [Attention(shape, 2, layer.attention_s)]
    assert layer.attention[0].flops == 4 * 2 * 128 * 512 * 256


def test_a_steps_attention_is_counted_without_padding() -> None:
    """One pass of 24 heads on each of four chips that share the heads of 57 blocks."""
    tokens = 4096 + 512
    assert attention_flops("flux-tensor") == 57 * 4 * tokens**2 * 128 * 24 / 4


def test_a_steps_work_is_counted_by_kind() -> None:
    """Of both prompts of SDXL, 128 x 128 latents: 3 x 3 convolutions, and those by 1 x 1 where a
    residual block's width changes."""
    found = flops("sdxl")
    level = {320: 128**2, 640: 64**2, 1280: 32**2}
    blocks = [(320, 320)] * 4 + [(320, 640)] + [(640, 640)] * 3 + [(640, 1280)]
    blocks += [(1280, 1280)] * 7 + [(2560, 1280), (1280, 1280)] * 2 + [(1920, 1280), (1280, 1280)]
    blocks += [(1920, 640), (640, 640), (1280, 640), (640, 640), (960, 640), (640, 640)]
    blocks += [(960, 320), (320, 320), (640, 320), (320, 320), (640, 320), (320, 320)]
    count = sum((9 + (into != out)) * level[out] * into * out for into, out in blocks)
    count += 9 * (64**2 * 320**2 + 32**2 * 640**2)  # half the size
    count += 9 * (64**2 * 1280**2 + 128**2 * 640**2)  # twice the size
    count += 9 * 128**2 * 320 * 4 * 2  # from latents and back
    assert found["conv"] == 2 * 2 * count
    heads = {10: (4096, 5 * 2), 20: (1024, 6 * 10)}
    assert found["attention"] == sum(
        4 * 2 * count * 64 * layers * tokens * (tokens + 77)
        for count, (tokens, layers) in heads.items()
    )


def test_the_page_has_each_layer_and_the_step(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("before\n<!-- schedule -->\nold\n<!-- /schedule -->\nbehind\n")
    shape = Shape("bfloat16", 128, 512, 256)
    step = Step("wan", parts(TEXT, CLOCK_HZ, {shape: 350.0}), 0.0)
    record = Record({"jax": "1", "libtpu": "2"}, {}, {"wan": step})
    write(record, page)
    said = page.read_text()
    assert "with jax 1, libtpu 2." in said
    assert "old" not in said and said.startswith("before\n") and said.endswith("-->\nbehind\n")
    assert "a layer, x 40 | 1 ms | 2 ms | 1 ms | 2 ms | 6 ms | 10 ms |" in said
    assert "all of a step | 40 ms | 80 ms | 41 ms | 80 ms | 241 ms | 400 ms |" in said
    assert f"| {step.limit:.1%} |" in said
    assert "| 80 | 128 | 512 | 256 | 400 ms |" in said
    write(record, page)
    assert page.read_text() == said


def test_layers_that_run_as_often_share_a_row() -> None:
    layer, rest = parts(TEXT, CLOCK_HZ, {})
    other = replace(layer, seconds={**layer.seconds, "copy": 4e-3})
    rows = table(Record({}, {}, {"wan": Step("wan", [layer, other, rest], 0.0)}))
    assert any("a layer, x 80 | 1 ms | 2 ms | 1 ms | 3 ms | 7 ms |" in row for row in rows)


def test_a_step_with_adapters_is_named_so() -> None:
    rows = table(
        Record({}, {}, {"sdxl-lora-64": Step("sdxl-lora-64", parts(TEXT, CLOCK_HZ, {}), 0.0)})
    )
    assert any(row.startswith("| sdxl, v6e:1x1, adapters of rank 64 | ") for row in rows)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["wam"], "no such case: wam; there are wan, flux-tensor"),
        (["wan", "--read", "/nowhere"], "/nowhere has no text of wan: --text keeps one there"),
        (["wan", "--write", "--no-attention"], "--write wants whole steps"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_compiles(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err


def test_a_page_without_a_place_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="<!-- schedule -->"):
        write(NOTHING, page)
    assert page.read_text() == "nothing"
