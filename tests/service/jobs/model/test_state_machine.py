"""State machine of a job: the transition table against the scripts' headers and random histories.
`make lives` searches longer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from service.jobs.model.state_machine import ENDED, TRANSITIONS, Transition
from service.jobs.scripts import composition
from service.schemas.request_parts import END_EVENTS
from service.settings.tenants import TenantSettings
from tests.service.jobs.history import Server
from tests.service.jobs.order_model import Offer
from tests.service.jobs.random_histories import Lives
from tests.service.jobs.strategies import TENANTS

ROOT = Path(__file__).resolve().parents[4]
SCRIPTS = {path.stem: path.read_text() for path in Path(composition.__file__).parent.glob("*.lua")}
IS_LONG = "LIVES" in os.environ
HISTORIES = int(os.environ.get("LIVES", 25))
SEEDS = 20
"""Maximum number of further searches until every transition that does not depend on time has
occurred. Histories depend on the order in which Redis and the test get the processor."""
TRIES = 20
"""Attempts at a history in which no deadline may pass before a worker has the job, on a busy
machine."""
CALLS = 40
"""Maximum number of calls in one history."""
PHASES = [Phase.generate, Phase.shrink] if IS_LONG else [Phase.generate]
"""Hypothesis shrinks a failing history only in long runs, because shrinking may take minutes."""
MOVING = {
    "enqueue": {"accept", "switch"},
    "take": {"claim"},
    "end_job": {"reuse", "finish", "pause", "cancel"},
    "fail_job": {"fail"},
    "requeue": {"retry", "release", "make room", "take back", "excuse"},
    "lose": {"lose", "set aside"},
    "expire": {"expire"},
    "forget": {"forget"},
}
"""Functions of the scripts that move jobs, and the transitions that each performs."""


def test_end_events_equal_the_end_states() -> None:
    assert set(END_EVENTS) == ENDED


def pairs(moves: list[Transition]) -> set[tuple[str, str]]:
    return {
        (str(state or "nothing"), str(m.after or "nothing")) for m in moves for state in m.before
    }


OF_BATCHES = {name for name in SCRIPTS if "batch" in name}
"""Scripts whose headers describe transitions of batches."""


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - OF_BATCHES))
def test_script_headers_match_the_transition_table(name: str) -> None:
    """Headers describe transitions by arrows: `queued or running → canceled`. Expiry is in
    transitions.lua's header for all scripts."""
    header = re.match(r"(--.*\n)+", SCRIPTS[name])
    arrows = re.findall(r"((?:\w+ or )*\w+) → (\w+)", header[0]) if header else []
    documented = {(origin, after) for before, after in arrows for origin in before.split(" or ")}
    documented |= {(state, "nothing") for state in ENDED if ("ended", "nothing") in documented}
    documented -= {("ended", "nothing")}
    moves = [m for m in TRANSITIONS if name in m.scripts and m.name != "expire"]
    if name == "transitions":
        moves = [m for m in TRANSITIONS if m.name == "expire"]
    assert documented == pairs(moves)


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - composition.PREPENDED))
def test_scripts_that_move_jobs_are_in_the_table(name: str) -> None:
    called = set(re.findall(rf"\b({'|'.join(MOVING)})\(", SCRIPTS[name]))
    possible = {move for function in called for move in MOVING[function]}
    moves = {move.name for move in TRANSITIONS if name in move.scripts}
    assert moves <= possible
    assert all(moves & MOVING[function] for function in called)


@pytest.fixture
def server(redis_url: str) -> Iterator[Server]:
    server = Server(redis_url)
    yield server
    server.close()


@pytest.mark.timeout(900)  # in parallel with other tests it mostly waits for Redis
def test_random_histories(server: Server) -> None:
    search(server)
    for number in range(SEEDS):
        if missing(server):
            search(server, number)
    assert not missing(server), "transitions that no history contains"


def search(server: Server, number: int | None = None) -> None:
    """Run random histories: always the same ones, as far as timing allows, or those of a seed."""

    class Here(Lives):
        pass

    Here.server = server
    run_state_machine_as_test(
        Here if number is None else seed(number)(Here),
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=CALLS,
            deadline=None,
            derandomize=number is None and not IS_LONG,
            phases=PHASES,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def missing(server: Server) -> set[tuple[str, str]]:
    """Return the required transitions that no history contained."""
    timed = {"expire", "excuse"}
    ways = {(m.name, script) for m in TRANSITIONS if m.name not in timed for script in m.scripts}
    corrected = {("correct", payer) for payer in ("tenant", "house", "lost")}
    contradicted = (
        {("claim", "in another's way")} if server.contradicted <= HISTORIES // 4 else set()
    )
    return ((ways | corrected) - server.observed.keys()) | contradicted


FIELDS = {
    "bucket": "a", "second": None, "tenant": "t", "priority": 1, "images": 1, "cost": 1.0,
    "deadline": "none", "key": None, "digest": "d", "is_refused": False, "input_bytes": 0,
    "is_audition": False, "drafts": [], "is_reused": False, "avoid": None,
}  # fmt: skip
OFFER = [(0, Offer(slots=1, warm=[], slowness=1.0, is_patient=False))]


def way(machine: Lives, name: str, script: str) -> None:  # noqa: C901 (a case for each state)
    """Run the shortest history in which a script performs the named transition."""
    soon = {**FIELDS, "deadline": "soon"}

    def claimed(fields: dict[str, Any] = FIELDS) -> None:
        machine.put("m", [fields], False)
        machine.claim(OFFER, False)

    match name, script:
        case "finish", _:
            claimed()
            machine.finish(0, 0.5, False)
        case "reuse", _:
            machine.put("m", [{**FIELDS, "is_reused": True, "input_bytes": 2000}], False)
        case "pause", _:
            claimed({**FIELDS, "is_audition": True})
            machine.snapshot(0, [1], False, False)
            machine.finish(0, 0.5, False)
        case "switch", _:
            claimed()
            machine.snapshot(0, [1], False, False)
            machine.give_up(0, "release", False)
            machine.switch(0, "m:m", False)
        case (("fail" | "retry" | "release" | "make room"), _):
            claimed()
            machine.give_up(0, name, False)
        case "take back", _:
            claimed()
            machine.take_back(0, False)
        case (("lose" | "set aside"), _):
            machine.put("m", [FIELDS], False)
            for _ in range(2):
                machine.claim_and_stall(OFFER, 0, [], True, False)
        case "excuse", _:
            machine.put("m", [FIELDS], False)
            machine.reap(False, False, False)
            machine.claim_and_stall(OFFER, 0, [], False, False)
            machine.be_silent()
        case "expire", "claim_jobs":
            claimed({**FIELDS, "deadline": "past"})
        case "expire", "progress":
            claimed(soon)
            machine.progress(0, 1, None, True, False)
        case "expire", "record_snapshots":
            claimed(soon)
            machine.snapshot(0, [1], True, False)
        case "expire", "renew":
            claimed(soon)
            machine.renew([0], False, True, False)
        case "expire", "reap":
            claimed(soon)
            machine.let_time_pass(True)
            machine.reap(False, False, False)
        case "forget", "reap":
            claimed()
            machine.finish(0, 0.5, False)
            machine.reap(True, False, False)
        case _:
            claimed()
            machine.stop(0, script == "delete", False)


@pytest.mark.parametrize(
    "name, script", [(move.name, script) for move in TRANSITIONS for script in move.scripts]
)
def test_random_transitions_keep_the_state_machine_consistent(
    server: Server, name: str, script: str
) -> None:
    """Each script performs its transition as the table states, and Redis's contents stay
    consistent."""

    class Here(Lives):
        pass

    Here.server = server
    for _ in range(TRIES):
        machine = Here()
        machine.start({"max_deaths": 2}, {tenant: TenantSettings() for tenant in TENANTS}, {"m"})
        way(machine, name, script)
        machine.all_is_as_it_should_be()
        machine.teardown()
        if server.observed[name, script]:
            return
    raise AssertionError("it came to another end each time")
