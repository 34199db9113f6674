from __future__ import annotations

import numpy as np
import pytest

from models.wan.experts import Experts, must_swap

GIB = 2**30
BOTH = frozenset({"transformer", "transformer_2"})


def test_the_high_noise_expert_serves_down_to_the_boundary_and_at_it() -> None:
    experts = Experts(BOTH, 875.0)
    served = [experts.at(np.float32(t)) for t in (999, 875, 874.99, 0)]
    assert served == ["transformer", "transformer", "transformer_2", "transformer_2"]


def test_first_expert_runs_all_steps_without_boundary() -> None:
    assert Experts(BOTH, None).at(np.float32(0)) == "transformer"


def test_a_step_of_an_absent_expert_is_named() -> None:
    single = Experts(frozenset({"transformer"}), 900.0)
    with pytest.raises(ValueError, match=r"timestep 20 is transformer_2's \(boundary 900"):
        single.at(np.float32(20))


@pytest.mark.parametrize(
    ("experts", "rest", "limit", "swapped"),
    [
        # Wan 2.2 A14B in bfloat16: 26.6 GiB per expert, 11 GiB of text encoder and VAE
        ((27 * GIB, 27 * GIB), 11 * GIB, 141 * GIB, False),
        ((27 * GIB, 27 * GIB), 11 * GIB, 80 * GIB, True),
        ((27 * GIB,), 11 * GIB, 32 * GIB, False),
        ((27 * GIB, 27 * GIB), 11 * GIB, None, False),
        ((4, 4), 0, 10, False),
        ((4, 4), 1, 10, True),
    ],
)
def test_experts_swap_if_the_device_cannot_hold_both(
    experts: tuple[int, ...], rest: int, limit: int | None, swapped: bool
) -> None:
    assert must_swap(experts, rest, limit) is swapped
