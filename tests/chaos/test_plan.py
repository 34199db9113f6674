"""Plans and orders are determined by their seed and cover every kind."""

from __future__ import annotations

from tests.chaos import orders, plan


def test_plan_is_determined_by_its_seed() -> None:
    assert plan.make(1, 60, 20) == plan.make(1, 60, 20) != plan.make(2, 60, 20)
    assert orders.make(1, 60, 50) == orders.make(1, 60, 50) != orders.make(2, 60, 50)


def test_every_kind_occurs_before_any_repeats() -> None:
    acts = plan.make(3, 40, 2 * len(plan.ACT_KINDS))
    assert [act.at_s for act in acts] == sorted(act.at_s for act in acts)
    for half in (acts[: len(plan.ACT_KINDS)], acts[len(plan.ACT_KINDS) :]):
        assert {_act_kind(act) for act in half} == {(s.kind, s.targets) for s in plan.ACT_KINDS}


def test_faults_overlap() -> None:
    acts = plan.make(3, 40, 20)
    gaps = [b.at_s - a.at_s for a, b in zip(acts[::2], acts[1::2], strict=True)]
    assert all(0 <= gap <= plan.TOGETHER_S for gap in gaps)


def _act_kind(act: plan.Act) -> tuple[plan.Kind, tuple[str, ...]]:
    (sort_,) = {
        (sort.kind, sort.targets)
        for sort in plan.ACT_KINDS
        if sort.kind is act.kind
        and act.target in sort.targets
        and sort.lasts_s[0] <= act.lasts_s <= sort.lasts_s[1]
    }
    return sort_


def test_orders_are_of_all_kinds() -> None:
    placed = orders.make(4, 60, 400)
    assert {order.tenant for order in placed} == orders.TENANTS.keys()
    assert {order.request for order in placed} == orders.REQUESTS.keys()
    assert {order.deadline_s for order in placed} == {None, orders.LONG_S, orders.SHORT_S}
    assert {order.then for order in placed} == set(orders.FollowUp)
    assert {order.at_once for order in placed if order.repeats} == {False, True}
    assert all(order.key or not order.repeats for order in placed)


def test_storms_are_stopped_at_once() -> None:
    placed = orders.make(4, 60, 3 * orders.STORM)
    assert [order.number for order in placed] == [*range(6 * orders.STORM)]
    storms = placed[3 * orders.STORM :]
    assert len({order.at_s for order in storms}) == 3
    assert {order.then for order in storms} == {orders.FollowUp.CANCELS, orders.FollowUp.DELETES}
