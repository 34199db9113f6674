"""Leader: the first process of a slice, which makes the others repeat its launches in order.

Every process stores its part of the rows by number, while the leader's engine refers to them.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jax
import numpy as np

from models.interface.pipeline import PreparedRow, PyTree
from models.interface.step_program import StepProgram
from workers.multihost.followers import Followers
from workers.multihost.handshake import Handshake, outline
from workers.programs.bucket_programs import BucketPrograms, Program
from workers.programs.row_tree import leaves_by_name, with_leaves
from workers.programs.step_latency import BatchLayout

T = TypeVar("T")


class Handle:
    """Number of a value in all processes of a slice; they drop the value with this handle."""

    def __init__(self, number: int, dropped: deque[int]) -> None:
        self.number = number
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append(self.number)


class RemoteValue:
    """Row, or modulations of a row, that all processes of a slice hold, with its handle."""

    def __init__(self, row: PyTree, handle: Handle) -> None:
        self.row = row
        self.handle = handle


class Leader:
    """Implementation of `workers.programs.launcher.Launcher` for several processes.

    An error of any program ends the slice, because the state of the other processes is unknown.
    """

    def __init__(self, followers: Followers, terms: Handshake) -> None:
        self._followers = followers
        self._order = threading.Lock()
        """Held while a launch is sent to all followers and made here."""
        self._numbers = itertools.count()
        self._buckets: WeakKeyDictionary[BucketPrograms, Handle] = WeakKeyDictionary()
        followers.send("terms", terms.as_json())

    def on_loss(self, callback: Callable[[Exception], None]) -> None:
        """Register a callback for the loss of a follower."""
        self._followers.on_loss(callback)

    def on_stop(self, *, drain: Callable[[], Any], stop_now: Callable[[], Any]) -> None:
        """Register callbacks for stop signals that other processes of the slice receive."""
        self._followers.on_stop(drain=drain, stop_now=stop_now)

    def growing(self, programs: BucketPrograms, prepared: PreparedRow, larger: bool) -> None:
        """Make the followers compile the same programs for an image."""
        if programs not in self._buckets:
            self._buckets[programs] = self._handle()
        number = self._buckets[programs].number
        fields = {"programs": number, "larger": larger, **outline(prepared)}
        self._followers.send("grow", fields)

    def encode(self, programs: BucketPrograms, program: Program) -> Program:
        """Wrap the `encode` program so that the followers run it, too."""
        launch = self._launches("encode", programs)

        def encode(weights: list[Any], inputs: Mapping[str, np.ndarray]) -> RemoteValue:
            row = self._handle()
            first = launch({"row": row.number}, inputs, lambda: program(weights, inputs))
            return RemoteValue(first, row)

        return encode

    def modulations(
        self, programs: BucketPrograms, step_program: StepProgram, program: Program
    ) -> Program:
        """Wrap the modulations' program so that the followers run it, too."""
        launch = self._launches("conditions", programs, phase=str(step_program))

        def modulations(
            weights: list[Any], row: RemoteValue, values: Mapping[str, np.ndarray]
        ) -> RemoteValue:
            after = self._handle()
            fields = {"row": row.handle.number, "after": after.number}
            tree = launch(fields, values, lambda: program(weights, row.row, values))
            return RemoteValue(tree, after)

        return modulations

    def step(
        self,
        programs: BucketPrograms,
        step_program: StepProgram,
        batch_layout: BatchLayout,
        program: Program,
    ) -> Program:
        """Wrap a step's program so that the followers run it, too."""
        launch = self._launches(
            "step", programs, phase=str(step_program), batch_layout=batch_layout
        )

        def step(
            weights: list[Any],
            rows: Sequence[RemoteValue],
            values: Mapping[str, np.ndarray],
            modulations: Sequence[RemoteValue] = (),
            places: np.ndarray | None = None,
        ) -> tuple[tuple[RemoteValue, ...], jax.Array]:
            states, trees = (tuple(value.row for value in held) for held in (rows, modulations))
            conditions_at = () if places is None else (trees, places)
            after = [self._handle() for _ in rows]
            fields = {
                "rows": [held.handle.number for held in rows],
                "conditions": [held.handle.number for held in modulations],
                "places": [] if places is None else places.tolist(),
                "after": [handle.number for handle in after],
            }
            states, digests = launch(
                fields, values, lambda: program(weights, states, values, *conditions_at)
            )
            return tuple(map(RemoteValue, states, after)), digests

        return step

    def show(self, programs: BucketPrograms, what: str, program: Program) -> Program:
        """Wrap a decoder or preview program so that the followers run it, too."""
        launch = self._launches("show", programs, shown=what)

        def show(weights: list[Any], held: RemoteValue) -> PyTree:
            fields = {"row": held.handle.number}
            return launch(fields, {}, lambda: program(weights, held.row))

        return show

    def write(self, program: Program) -> Program:
        """Wrap the write of adapter pages; each array is sent over the connection."""

        def write(place: int, pages: Sequence[int], array: np.ndarray) -> None:
            fields = {"place": place, "pages": list(pages)}
            arrays = {"array": array}
            with self._order:
                self._launch("write", fields, arrays, lambda: program(place, pages, array))

        return write

    def leaves(self, row: PyTree) -> Mapping[str, jax.Array]:
        """Return the leaves of a row on this process."""
        return leaves_by_name(row.row)

    def restore(self, row: PyTree, leaves: Mapping[str, np.ndarray]) -> PyTree:
        """Return a row with these leaves, on every process of the slice."""
        after = self._handle()
        fields = {"row": row.handle.number, "after": after.number}
        with self._order:
            restored = self._launch("restore", fields, leaves, lambda: with_leaves(row.row, leaves))
        return RemoteValue(restored, after)

    def wait(self, results: PyTree) -> PyTree:
        """Wait until a program's results are computed; an error ends the slice."""
        self._computed(results.row if isinstance(results, RemoteValue) else results)
        return results

    def fetch(self, results: PyTree) -> PyTree:
        """Copy arrays to the host, which are replicated on each device."""
        return jax.tree.map(np.asarray, self._computed(results))

    def _launches(self, kind: str, programs: BucketPrograms, **place: Any) -> Callable[..., Any]:
        """Return a function that launches one program here and in the followers.

        Its first launch waits until all have compiled it. In their first collective, processes wait
        for each other no longer than its library's timeout (Gloo: 30 s).
        """
        handle = self._buckets[programs]  # keeps it alive while other buckets share the program
        is_compiled = False

        def launch(
            fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray], call: Callable[[], T]
        ) -> T:
            nonlocal is_compiled
            which = {"program": kind, "programs": handle.number, **place}
            with self._order:
                if not is_compiled:
                    self._followers.request("await", which, arrays)
                    is_compiled = True
                return self._launch(kind, {**which, **fields}, arrays, call)

        return launch

    def _launch(
        self,
        kind: str,
        fields: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        call: Callable[[], T],
    ) -> T:
        """Send a program launch to the followers, and perform it here."""
        self._followers.send(kind, fields, arrays)
        try:
            return call()
        except Exception as error:
            raise self._followers.fail(error) from error

    def _computed(self, results: PyTree) -> PyTree:
        try:
            return jax.block_until_ready(results)
        except Exception as error:
            raise self._followers.fail(error) from error

    def _handle(self) -> Handle:
        return Handle(next(self._numbers), self._followers.dropped)
