"""Limits of full-size steps' durations by the TPU compiler's schedule.

Lowering a test's programs takes seconds. Programs recorded in docs/performance/schedule.json are
not compiled; for unrecorded versions they are, which takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from lab.tpu import record, schedule
from lab.tpu.cases import CASES, compiled, fingerprints
from lab.tpu.page import PAGE, table
from lab.tpu.schedule import Step, in_child
from workers.plan.report import versions

pytestmark = pytest.mark.timeout(3600)

PRODUCTS_S = 12e-3
"""Approximate time of a layer's products at the chip's peak, a lower bound of any schedule: 18,900
tokens by six products of 5,120 x 5,120 and two of 5,120 x 13,824."""
LAYER_S = 30e-3
STEP_S = 85e-3
SDXL_STEP_S = 50e-3
SDXL_PEAK_S = 14.7e-3
"""Time of SDXL's operations at the chip's peak, a lower bound of any schedule."""
MIN_SHARE_OF_PEAK = 0.45
MAX_SHARE_OF_PEAK = 2 / 3
"""Share of 256-wide matrix units that heads of 128 can use."""


@pytest.fixture(scope="module")
def step() -> Callable[[str], Step]:
    """Function that returns a case's step by the installed compiler."""

    @cache
    def current(name: str) -> Step:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAX_PLATFORMS", "cpu")
            programs = in_child(fingerprints, [name])
            return record.current(record.read(), programs, versions(), _compiled)[name]

    return current


def _compiled(name: str) -> Step:
    return schedule.read(name, in_child(compiled, CASES[name]))


def test_products_and_norms_of_a_layer_of_wan(step: Callable[[str], Step]) -> None:
    (layer,) = (part for part in step("wan").parts if part.runs > 1)
    assert layer.runs == 40
    assert PRODUCTS_S < layer.seconds["product"] < layer.xla_s < LAYER_S


@pytest.mark.parametrize("name", ["wan", "flux-tensor", "flux-context"])
def test_attention_fills_the_matrix_units(name: str, step: Callable[[str], Step]) -> None:
    assert MIN_SHARE_OF_PEAK < step(name).attention_peak < MAX_SHARE_OF_PEAK


@pytest.mark.parametrize("name", ["flux-tensor", "flux-context"])
def test_a_step_of_flux_on_four_chips(name: str, step: Callable[[str], Step]) -> None:
    """Step of Flux on four chips, by the compiler's schedule, without collectives."""
    assert sorted(part.runs for part in step(name).parts) == [1, 19, 38]
    assert step(name).xla_s + step(name).attention_s < STEP_S


def test_a_step_of_sdxl_on_one_chip(step: Callable[[str], Step]) -> None:
    """Step of SDXL on one chip, by the compiler's schedule, with attention, whose heads of 64 leave
    most of the matrix units empty."""
    step_of_sdxl = step("sdxl")
    assert SDXL_PEAK_S < step_of_sdxl.xla_s + step_of_sdxl.attention_s < SDXL_STEP_S


def test_the_page_shows_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Excludes the steps' shares of the peak, whose FLOPs are counted in traces."""
    monkeypatch.setattr(Step, "limit", 0.0)
    assert [*map(_without_share, shown())] == [*map(_without_share, recorded())]


def test_the_page_shows_shares_of_the_peak() -> None:
    assert shown() == recorded()


def shown() -> list[str]:
    """Lines of the page's table."""
    text = PAGE.read_text().partition("<!-- schedule -->\n")[2].partition("<!-- /schedule -->")[0]
    return text.splitlines()


def recorded() -> list[str]:
    return "\n".join(table(record.read())).splitlines()


def _without_share(line: str) -> str:
    return line.rpartition(" | ")[0] if "| all of a step |" in line else line
