"""Frequency of snapshots: as often as their measured cost allows, and no more often."""

from __future__ import annotations

from tests.workers.engine.test_batching import row, shape
from workers.engine.row import Row
from workers.pool.snapshot_budget import Budget

SHARE = 0.01


def keeping(budget: Budget, image_row: Row, step_s: float, cost_s: float, steps: int) -> list[int]:
    """Return the steps after which a snapshot was taken. Each snapshot takes `cost_s`."""
    account, taken = budget.account(image_row.device_seconds), []
    for step in range(1, steps + 1):
        image_row.advance(None, step_s, 1)
        if account.pays(image_row, size=1000):
            account.spend(image_row, cost_s)
            taken.append(step)
    return taken


def test_snapshots_cost_at_most_their_share() -> None:
    for step_s, cost_s in ((0.01, 0.002), (0.1, 0.5), (3.0, 1.5)):
        budget = Budget(SHARE)
        keeping(budget, row(shape(1)), step_s, cost_s, 1000)  # the costs are known from here on
        steps = 20_000
        taken = keeping(budget, row(shape(1)), step_s, cost_s, steps)
        assert len(taken) * cost_s <= SHARE * steps * step_s
        assert (len(taken) + 1) * cost_s >= SHARE * steps * step_s * 0.99, "it could be more often"


def test_first_snapshot_waits_until_steps_pay_for_it() -> None:
    budget = Budget(SHARE)
    first = keeping(budget, row(shape(1)), 0.1, 0.5, 1000)[0]
    assert first * 0.1 * SHARE >= budget.expected("of no snapshot yet", 1000)
    second = keeping(budget, row(shape(1)), 0.1, 0.5, 1000)[0]
    assert second * 0.1 * SHARE >= 0.5


def test_slow_store_reduces_the_snapshot_rate() -> None:
    budget = Budget(SHARE)
    often = keeping(budget, row(shape(1)), 0.1, 0.1, 10_000)
    seldom = keeping(budget, row(shape(1)), 0.1, 2.0, 10_000)
    assert len(seldom) * 2.0 <= SHARE * 10_000 * 0.1 + 2.0, "only the first was not foreseen"
    assert len(seldom) < len(often) / 10


def test_earlier_claims_do_not_pay_for_this_one() -> None:
    budget, image_row = Budget(SHARE), row(shape(1))
    keeping(budget, image_row, 0.1, 0.5, 1000)
    account = budget.account(image_row.device_seconds)
    assert not account.pays(image_row, size=1000)


def test_suspension_is_allowed_within_its_share() -> None:
    """A snapshot takes 0.5 s, and so does encoding the prompt.

    They pay after 100 s of this claim, regardless of earlier snapshots.
    """
    budget, image_row = Budget(SHARE), row(shape(1))
    keeping(budget, image_row, 0.1, 0.5, 2000)
    image_row.programs.encode_times.observe(0.5)
    account = budget.account(image_row.device_seconds)
    image_row.advance(None, 99.0, 1)
    account.spend(image_row, 0.5)
    assert not account.pays_suspension(image_row, size=1000)
    image_row.advance(None, 2.0, 1)
    assert account.pays_suspension(image_row, size=1000)
    assert not Budget(0).account(0.0).pays_suspension(image_row, size=1000), (
        "only a drain keeps anything"
    )


def test_zero_budget_takes_no_snapshots() -> None:
    assert keeping(Budget(0), row(shape(1)), 10.0, 1e-6, 1000) == []


def test_larger_state_has_a_higher_expected_cost() -> None:
    budget = Budget(SHARE)
    assert budget.expected("a", 10**8) > 10 * budget.expected("a", 10**3)
