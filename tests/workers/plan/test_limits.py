"""How long full-size steps may take by the TPU compiler's own schedule.

The programs that a test asks for are lowered, which takes seconds. Those that
docs/performance/schedule.json tells of are not compiled again; by versions that it does not know
they are, which takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tools.speed_page import PAGE, table
from workers.plan import record, schedule
from workers.plan.cases import CASES, compiled, fingerprints
from workers.plan.report import versions
from workers.plan.schedule import Step, in_child

pytestmark = pytest.mark.timeout(3600)

PRODUCTS_S = 12e-3
"""Of a layer at the chip's peak, nearly: 18,900 tokens by 6 products 5,120 square and two of 5,120
by 13,824. No schedule is faster."""
LAYER_S = 30e-3
STEP_S = 85e-3
SDXL_STEP_S = 50e-3
SDXL_PEAK_S = 14.7e-3
"""Its operations at the chip's peak. No schedule is faster."""
LEAST_OF_THE_PEAK = 0.45
MOST_OF_THE_PEAK = 2 / 3
"""That heads of 128 leave of units that are 256 wide."""


@pytest.fixture(scope="module")
def step() -> Callable[[str], Step]:
    """Return a step as the compiler that is installed has it."""

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
    assert LEAST_OF_THE_PEAK < step(name).attention_peak < MOST_OF_THE_PEAK


@pytest.mark.parametrize("name", ["flux-tensor", "flux-context"])
def test_a_step_of_flux_on_four_chips(name: str, step: Callable[[str], Step]) -> None:
    """Collectives are not in it."""
    assert sorted(part.runs for part in step(name).parts) == [1, 19, 38]
    assert step(name).xla_s + step(name).attention_s < STEP_S


def test_a_step_of_sdxl_on_one_chip(step: Callable[[str], Step]) -> None:
    """Attention included, whose heads of 64 leave most of the matrix units empty."""
    one = step("sdxl")
    assert SDXL_PEAK_S < one.xla_s + one.attention_s < SDXL_STEP_S


def test_the_page_shows_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the whole steps' shares of the peak, whose FLOPs are counted in traces."""
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
