"""Sums of a step's schedule, and the page that shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.tests.tpu.test_operations import TEXT
from lab.tpu.__main__ import main
from lab.tpu.page import table, write
from lab.tpu.record import NOTHING, Record
from lab.tpu.schedule import Attention, Step, attention_flops, flops, parts
from models.nn.kernels.block_size_search import Case as Shape

CLOCK_HZ = 70e3
"""Clock rate at which each operation of the text takes a millisecond."""


def test_a_layer_is_added_up_by_kind() -> None:
    """Includes loops and asynchronous computations."""
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
    """One pass of 24 heads on each of four chips, which share the heads of 57 blocks."""
    tokens = 4096 + 512
    assert attention_flops("flux-tensor") == 57 * 4 * tokens**2 * 128 * 24 / 4


def test_a_steps_work_is_counted_by_kind() -> None:
    """Both prompts of SDXL at 128 x 128 latents: 3 x 3 convolutions, and 1 x 1 convolutions where a
    residual block changes width."""
    flops_by_kind = flops("sdxl")
    level = {320: 128**2, 640: 64**2, 1280: 32**2}
    blocks = [(320, 320)] * 4 + [(320, 640)] + [(640, 640)] * 3 + [(640, 1280)]
    blocks += [(1280, 1280)] * 7 + [(2560, 1280), (1280, 1280)] * 2 + [(1920, 1280), (1280, 1280)]
    blocks += [(1920, 640), (640, 640), (1280, 640), (640, 640), (960, 640), (640, 640)]
    blocks += [(960, 320), (320, 320), (640, 320), (320, 320), (640, 320), (320, 320)]
    count = sum((9 + (into != out)) * level[out] * into * out for into, out in blocks)
    count += 9 * (64**2 * 320**2 + 32**2 * 640**2)  # downsampling by two
    count += 9 * (64**2 * 1280**2 + 128**2 * 640**2)  # upsampling by two
    count += 9 * 128**2 * 320 * 4 * 2  # input and output convolutions
    assert flops_by_kind["conv"] == 2 * 2 * count
    heads = {10: (4096, 5 * 2), 20: (1024, 6 * 10)}
    assert flops_by_kind["attention"] == sum(
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
    text = page.read_text()
    assert "with jax 1, libtpu 2." in text
    assert "old" not in text and text.startswith("before\n") and text.endswith("-->\nbehind\n")
    assert "a layer, x 40 | 1 ms | 2 ms | 1 ms | 2 ms | 6 ms | 10 ms |" in text
    assert "all of a step | 40 ms | 80 ms | 41 ms | 80 ms | 241 ms | 400 ms |" in text
    assert f"| {step.limit:.1%} |" in text
    assert "| 80 | 128 | 512 | 256 | 400 ms |" in text
    write(record, page)
    assert page.read_text() == text


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
        (["wan", "--write", "--no-attention"], "--write needs whole steps"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_compiles(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err


def test_page_without_a_section_is_unchanged(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="<!-- schedule -->"):
        write(NOTHING, page)
    assert page.read_text() == "nothing"
