from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from queue import SimpleQueue

import numpy as np
import pytest

from tests.workers.multihost.connection_pair import SILENCE_S, ends
from workers.engine.array_framing import Message
from workers.engine.errors import EngineFailed
from workers.multihost.connection import Connection
from workers.multihost.followers import Followers

Group = tuple[Followers, list[Connection]]
TELLING, TURNS, BURST = 3, 100, 200
"""Numbers of threads, turns and dropped rows that make two threads meet between reading and
clearing the rows."""


@pytest.fixture
def group() -> Iterator[Group]:
    """Yield two followers and their own ends of the connections."""
    pairs = [ends() for _ in range(2)]
    followers = Followers([near for near, _ in pairs], SILENCE_S)
    yield followers, [far for _, far in pairs]
    followers.on_loss(
        lambda error: None
    )  # else the end of these connections would end this process
    for pair in pairs:
        for line in pair:
            line.close()


def test_all_followers_get_the_same_messages(group: Group) -> None:
    followers, lines = group
    followers.dropped.extend([3, 5])
    followers.send("step", {"x": 1}, {"a": np.ones(2)})
    followers.send("beat", {})
    for line in lines:
        message = line.receive()
        assert (message.kind, message.fields) == ("step", {"x": 1, "drop": [3, 5]})
        assert (message.arrays["a"] == 1).all()
        assert line.receive().fields == {"drop": []}, "what is dropped is told once"


def test_dropped_rows_are_sent_once_by_any_thread(group: Group) -> None:
    """Beats report dropped rows, too."""
    followers, (line, other) = group
    dropped: list[int] = []

    def read(line: Connection, received: list[int]) -> None:
        while (message := line.receive()).kind != "end":
            received.extend(message.fields["drop"])

    def send() -> None:
        for _ in range(TURNS):
            followers.dropped.extend(next(numbers) for _ in range(BURST))
            followers.send("beat", {})

    numbers = count()
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as threads:
            reading = [threads.submit(read, line, dropped), threads.submit(read, other, [])]
            telling = [threads.submit(send) for _ in range(TELLING)]
            try:
                for future in telling:
                    future.result()
            finally:
                followers.send("end", {})
            for future in reading:
                future.result()
    finally:
        sys.setswitchinterval(switching)
    assert sorted(dropped) == [*range(TELLING * TURNS * BURST)]


def test_lost_follower_is_reported_once_and_ends_all(group: Group) -> None:
    followers, (first, second) = group
    losses: SimpleQueue[Exception] = SimpleQueue()
    followers.on_loss(losses.put)
    second.close()
    assert isinstance(losses.get(timeout=SILENCE_S / 2), EngineFailed)
    first.close()
    with pytest.raises(EngineFailed, match="connection to there is lost"):
        while True:
            followers.send("beat", {}, {"a": np.zeros(10_000)})
    assert losses.empty()


def test_late_listener_gets_an_earlier_loss(group: Group) -> None:
    followers, _ = group
    followers.on_loss(lambda error: None)
    followers.end_slice("a program failed")
    losses: list[Exception] = []
    followers.on_loss(losses.append)
    assert "a program failed" in str(losses[0])


def test_failure_is_reported_to_all_followers(group: Group) -> None:
    followers, (first, second) = group
    losses: SimpleQueue[Exception] = SimpleQueue()
    followers.on_loss(losses.put)
    second.send(Message("failed", {"why": "it ran out of memory"}))
    why = "there failed: it ran out of memory"
    assert str(losses.get(timeout=SILENCE_S / 2)) == f"the slice ends: {why}"
    assert first.receive().fields["why"] == why


def test_secondary_failure_is_not_reported_as_the_cause(group: Group) -> None:
    followers, (first, _) = group
    followers.on_loss(lambda error: None)
    first.close()
    assert "connection to there is lost" in str(
        followers.fail(RuntimeError("connection closed by peer"))
    )


def test_stop_signal_of_a_follower_reaches_the_leader(group: Group) -> None:
    followers, (first, second) = group
    stops: SimpleQueue[str] = SimpleQueue()
    first.send(Message("stop", {"now": False}))
    followers.on_stop(drain=lambda: stops.put("drain"), stop_now=lambda: stops.put("stop now"))
    assert stops.get(timeout=SILENCE_S) == "drain"
    second.send(Message("stop", {"now": True}))
    assert stops.get(timeout=SILENCE_S) == "stop now"
