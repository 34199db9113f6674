"""How long full-size steps may take by the TPU compiler's own schedule.

The programs are lowered, which takes seconds. Those that docs/performance/schedule.json tells of
are not compiled again; by versions that it does not know they are, which takes minutes.
"""

from __future__ import annotations

import pytest

from tools.speed_page import PAGE, table
from workers.plan import record, schedule
from workers.plan.cases import CASES, GUARDED, compiled, fingerprints
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
def steps() -> dict[str, Step]:
    """As the compiler that is installed has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        programs = in_child(fingerprints, [*GUARDED])
        return record.current(record.read(), programs, versions(), _compiled)


def _compiled(name: str) -> Step:
    return schedule.read(name, in_child(compiled, CASES[name]))


def test_products_and_norms_of_a_layer_of_wan(steps: dict[str, Step]) -> None:
    (layer,) = (part for part in steps["wan"].parts if part.runs > 1)
    assert layer.runs == 40
    assert PRODUCTS_S < layer.seconds["product"] < layer.xla_s < LAYER_S


@pytest.mark.parametrize("name", ["wan", "flux-tensor", "flux-context"])
def test_attention_fills_the_matrix_units(name: str, steps: dict[str, Step]) -> None:
    assert LEAST_OF_THE_PEAK < steps[name].attention_peak < MOST_OF_THE_PEAK


@pytest.mark.parametrize("name", ["flux-tensor", "flux-context"])
def test_a_step_of_flux_on_four_chips(name: str, steps: dict[str, Step]) -> None:
    """Collectives are not in it."""
    assert sorted(part.runs for part in steps[name].parts) == [1, 19, 38]
    assert steps[name].xla_s + steps[name].attention_s < STEP_S


def test_a_step_of_sdxl_on_one_chip(steps: dict[str, Step]) -> None:
    """Attention included, whose heads of 64 leave most of the matrix units empty."""
    one = steps["sdxl"]
    assert SDXL_PEAK_S < one.xla_s + one.attention_s < SDXL_STEP_S


def test_the_page_shows_what_is_recorded() -> None:
    shown = PAGE.read_text().partition("<!-- schedule -->\n")[2].partition("<!-- /schedule -->")[0]
    assert shown == "\n".join(table(record.read())) + "\n"
