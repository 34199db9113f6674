from __future__ import annotations

import threading
from queue import SimpleQueue

import numpy as np
import pytest

from tests.workers.multihost.ends import SILENCE_S, ends
from workers.engine.array_framing import Message
from workers.multihost.connection import BEATS, ConnectionLost, beat, listen, started

SOON_S = 0.5
"""A silence that is waited for."""


def test_messages_of_several_threads_stay_whole() -> None:
    here, there = ends()
    array = np.arange(200_000)  # more than the socket holds: sent in parts

    def talk(number: int) -> None:
        for i in range(10):
            here.send(Message("x", {"from": number, "i": i}, {"a": array + number}))

    threads = [started(lambda n=n: talk(n), "talk") for n in range(3)]
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(30):
        message = there.receive()
        number = message.fields["from"]
        seen[number].append(message.fields["i"])
        assert (message.arrays["a"] == array + number).all()
    assert all(order == list(range(10)) for order in seen.values())
    for thread in threads:
        thread.join()
    here.close()
    there.close()


@pytest.mark.parametrize("who", ["the other", "this"])
def test_a_closed_line_is_heard_of_at_once(who: str) -> None:
    here, there = ends()
    lost: SimpleQueue[ConnectionLost] = SimpleQueue()
    thread = listen(here, lambda message: None, lost.put)
    (here if who == "this" else there).close()
    assert "there is gone" in str(lost.get(timeout=SILENCE_S / 2))
    thread.join()
    with pytest.raises(ConnectionLost, match="there cannot be reached"):
        while True:  # what the system takes before it knows
            here.send(Message("x", {}, {"a": np.zeros(10_000)}))
    here.close()
    there.close()


def test_a_peer_that_says_nothing_counts_as_gone() -> None:
    here, there = ends(SOON_S)
    with pytest.raises(ConnectionLost, match="silent for"):
        here.receive()
    here.close()
    there.close()


class Ended(threading.Event):
    """It is set in three times the silence that counts; what is waited for passes at once."""

    waited_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited_s += timeout
        return self.waited_s > 3 * SILENCE_S


def test_who_beats_is_not_missed() -> None:
    here, there = ends()
    thread = beat(lambda: there.send(Message("beat")), SILENCE_S, Ended())
    for _ in range(3 * BEATS):
        assert here.receive().kind == "beat"
    thread.join()
    here.close()
    there.close()


def test_what_is_no_message_ends_the_line() -> None:
    here, there = ends()
    there.send_packed(b"\x00\x00\x00\x02[]")
    with pytest.raises(ConnectionLost, match="there is gone"):
        here.receive()
    here.close()
    there.close()
