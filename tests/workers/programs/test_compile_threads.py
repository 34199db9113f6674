"""Order of compilation: programs that cannot wait are compiled first."""

from __future__ import annotations

import threading

import pytest

from tests.workers.polling import DEADLINE_S
from workers.programs.compile_threads import CompileThreads


def test_urgent_compilations_go_first_then_the_oldest() -> None:
    threads, gate, order = CompileThreads(1), threading.Event(), []
    first = threads.submit(lambda: gate.wait(DEADLINE_S))
    while not first.running():
        pass
    later = [threads.submit(lambda n=n: order.append(n), can_wait=n < 2) for n in range(4)]
    dropped = threads.submit(lambda: order.append(9))
    assert dropped.cancel()
    gate.set()
    for future in later:
        future.result(DEADLINE_S)
    assert order == [2, 3, 0, 1]
    threads.close()


def test_one_thread_is_reserved_for_urgent_programs() -> None:
    threads, gate = CompileThreads(2), threading.Event()
    slow = [threads.submit(lambda: gate.wait(DEADLINE_S), can_wait=True) for _ in range(3)]
    assert threads.submit(lambda: 1).result(DEADLINE_S) == 1
    assert [future.running() for future in slow] == [True, False, False]
    gate.set()
    assert all(future.result(DEADLINE_S) for future in slow)
    threads.close()


def test_errors_are_raised_to_the_programs_caller() -> None:
    threads = CompileThreads(2)
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result(DEADLINE_S)
    assert threads.submit(lambda: 1).result(DEADLINE_S) == 1
    threads.close()


def test_closed_threads_drop_queued_programs() -> None:
    threads, gate = CompileThreads(1), threading.Event()
    first = threads.submit(lambda: gate.wait(DEADLINE_S))
    while not first.running():
        pass
    waiting = threads.submit(lambda: 1)
    threads.close()
    assert waiting.cancelled()
    gate.set()
    assert first.result(DEADLINE_S)
