from __future__ import annotations

import threading
from queue import SimpleQueue

import numpy as np
import pytest

from tests.workers.multihost.connection_pair import SILENCE_S, ends
from workers.engine.array_framing import Message
from workers.multihost.connection import BEATS, ConnectionLost, beat, listen, started

SOON_S = 0.5
"""Timeout of a connection that a test waits for."""


def test_messages_of_several_threads_stay_whole() -> None:
    near, far = ends()
    array = np.arange(200_000)  # more than the socket's buffer: sent in parts

    def talk(number: int) -> None:
        for i in range(10):
            near.send(Message("x", {"from": number, "i": i}, {"a": array + number}))

    threads = [started(lambda n=n: talk(n), "talk") for n in range(3)]
    orders: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(30):
        message = far.receive()
        number = message.fields["from"]
        orders[number].append(message.fields["i"])
        assert (message.arrays["a"] == array + number).all()
    assert all(order == list(range(10)) for order in orders.values())
    for thread in threads:
        thread.join()
    near.close()
    far.close()


@pytest.mark.parametrize("who", ["the other", "this"])
def test_closed_connection_is_noticed_at_once(who: str) -> None:
    near, far = ends()
    losses: SimpleQueue[ConnectionLost] = SimpleQueue()
    thread = listen(near, lambda message: None, losses.put)
    (near if who == "this" else far).close()
    assert "connection to there is lost" in str(losses.get(timeout=SILENCE_S / 2))
    thread.join()
    with pytest.raises(ConnectionLost, match="there cannot be reached"):
        while True:  # what the kernel accepts before it reports the loss
            near.send(Message("x", {}, {"a": np.zeros(10_000)}))
    near.close()
    far.close()


def test_silent_peer_is_lost() -> None:
    near, far = ends(SOON_S)
    with pytest.raises(ConnectionLost, match="silent for"):
        near.receive()
    near.close()
    far.close()


class Ended(threading.Event):
    """Event that is set after three timeouts of a connection. Its waits return at once."""

    waited_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited_s += timeout
        return self.waited_s > 3 * SILENCE_S


def test_heartbeats_prevent_a_timeout() -> None:
    near, far = ends()
    thread = beat(lambda: far.send(Message("beat")), SILENCE_S, Ended())
    for _ in range(3 * BEATS):
        assert near.receive().kind == "beat"
    thread.join()
    near.close()
    far.close()


def test_invalid_message_closes_the_connection() -> None:
    near, far = ends()
    far.send_packed(b"\x00\x00\x00\x02[]")
    with pytest.raises(ConnectionLost, match="connection to there is lost"):
        near.receive()
    near.close()
    far.close()
