"""Caching of work per scheduler class: annotations and histories are read once."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from models.interface.solver_step import first_history, history
from models.sampling.registry import for_request

UNIPC = {"_class_name": "UniPCMultistepScheduler", "use_flow_sigmas": True, "flow_shift": 3}


def called(function: Callable[..., Any], *args: Any) -> set[str]:
    """Names of all functions that a call runs."""
    profile = cProfile.Profile()
    profile.runcall(function, *args)
    codes = (entry.code for entry in profile.getstats())
    return {code.co_name for code in codes if not isinstance(code, str)}


@pytest.mark.parametrize("options", [{}, {"name": "dpmpp_2m", "use_karras_sigmas": True}])
def test_no_annotation_is_read_again(options: dict[str, Any]) -> None:
    for_request(UNIPC, options)
    names = called(for_request, UNIPC, options)
    assert "check_options" in names and "get_type_hints" not in names


def test_a_history_is_traced_once() -> None:
    scheduler = for_request(UNIPC, {})
    first = first_history(scheduler.solver)
    repeated = for_request(UNIPC, {})
    assert "eval_shape" not in called(first_history, repeated.solver)
    assert set(first) == {"history.corrected", "history.previous_1", "history.previous_2"}
    begun = history(first, jnp.ones((2, 3)))
    assert set(begun) == {"corrected", "previous_1", "previous_2"}
    assert all(leaf.shape == (2, 3) and not np.any(leaf) for leaf in begun.values())
