"""The first process of a slice: what it launches, all others launch too, in the same order.

Its rows are kept by number in every process, for as long as the engine here refers to them.
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

from models.interface.pipeline import Prepared, PyTree
from models.interface.step_program import StepProgram
from workers.multihost.followers import Followers
from workers.multihost.handshake import Handshake, outline
from workers.programs.bucket_programs import BucketPrograms, Program
from workers.programs.row_tree import leaves_by_name, with_leaves
from workers.programs.step_latency import BatchLayout

T = TypeVar("T")


class Handle:
    """A number that all processes know; they forget it when the last reference here has gone."""

    def __init__(self, number: int, dropped: deque[int]) -> None:
        self.number = number
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append(self.number)


class Held:
    """A row, or a row's conditions, and the number."""

    def __init__(self, row: PyTree, handle: Handle) -> None:
        self.row = row
        self.handle = handle


class Leader:
    """Implementation of `workers.programs.launcher.Launcher`.

    Any error of a program ends the slice: how far the other processes came, nobody can say.
    """

    def __init__(self, followers: Followers, terms: Handshake) -> None:
        self._followers = followers
        self._order = threading.Lock()
        """Held while all are told of a launch, and it is launched here."""
        self._numbers = itertools.count()
        self._buckets: WeakKeyDictionary[BucketPrograms, Handle] = WeakKeyDictionary()
        followers.tell("terms", terms.as_json())

    def on_loss(self, tell: Callable[[Exception], None]) -> None:
        """Call back when a follower is lost."""
        self._followers.on_loss(tell)

    def on_stop(self, *, drain: Callable[[], Any], stop_now: Callable[[], Any]) -> None:
        """Call back when another process is told to stop."""
        self._followers.on_stop(drain=drain, stop_now=stop_now)

    def growing(self, programs: BucketPrograms, prepared: Prepared, larger: bool) -> None:
        """Let the followers compile the same."""
        if programs not in self._buckets:
            self._buckets[programs] = self._handle()
        number = self._buckets[programs].number
        fields = {"programs": number, "larger": larger, **outline(prepared)}
        self._followers.tell("grow", fields)

    def encode(self, programs: BucketPrograms, program: Program) -> Program:
        """Return the program with the followers taking part."""
        launch = self._launches("encode", programs)

        def encode(weights: list[Any], inputs: Mapping[str, np.ndarray]) -> Held:
            row = self._handle()
            first = launch({"row": row.number}, inputs, lambda: program(weights, inputs))
            return Held(first, row)

        return encode

    def conditions(self, programs: BucketPrograms, phase: StepProgram, program: Program) -> Program:
        """Return the program with the followers taking part."""
        launch = self._launches("conditions", programs, phase=str(phase))

        def conditions(weights: list[Any], row: Held, values: Mapping[str, np.ndarray]) -> Held:
            after = self._handle()
            fields = {"row": row.handle.number, "after": after.number}
            tree = launch(fields, values, lambda: program(weights, row.row, values))
            return Held(tree, after)

        return conditions

    def step(
        self,
        programs: BucketPrograms,
        phase: StepProgram,
        batch_layout: BatchLayout,
        program: Program,
    ) -> Program:
        """Return the program with the followers taking part."""
        launch = self._launches("step", programs, phase=str(phase), batch_layout=batch_layout)

        def step(
            weights: list[Any],
            rows: Sequence[Held],
            values: Mapping[str, np.ndarray],
            conditions: Sequence[Held] = (),
            places: np.ndarray | None = None,
        ) -> tuple[tuple[Held, ...], jax.Array]:
            states, trees = (tuple(one.row for one in held) for held in (rows, conditions))
            conditions_at = () if places is None else (trees, places)
            after = [self._handle() for _ in rows]
            fields = {
                "rows": [held.handle.number for held in rows],
                "conditions": [held.handle.number for held in conditions],
                "places": [] if places is None else places.tolist(),
                "after": [handle.number for handle in after],
            }
            states, finite = launch(
                fields, values, lambda: program(weights, states, values, *conditions_at)
            )
            return tuple(map(Held, states, after)), finite

        return step

    def show(self, programs: BucketPrograms, what: str, program: Program) -> Program:
        """Return the program with the followers taking part."""
        launch = self._launches("show", programs, shown=what)

        def show(weights: list[Any], held: Held) -> PyTree:
            fields = {"row": held.handle.number}
            return launch(fields, {}, lambda: program(weights, held.row))

        return show

    def write(self, program: Program) -> Program:
        """Return the program with the followers taking part: each array goes by the connection."""

        def write(place: int, pages: Sequence[int], array: np.ndarray) -> None:
            fields = {"place": place, "pages": list(pages)}
            arrays = {"array": array}
            with self._order:
                self._launch("write", fields, arrays, lambda: program(place, pages, array))

        return write

    def leaves(self, row: PyTree) -> Mapping[str, jax.Array]:
        """Return a row's leaves on this process."""
        return leaves_by_name(row.row)

    def restore(self, row: PyTree, leaves: Mapping[str, np.ndarray]) -> PyTree:
        """Return a row with these leaves, on every process."""
        after = self._handle()
        fields = {"row": row.handle.number, "after": after.number}
        with self._order:
            restored = self._launch("restore", fields, leaves, lambda: with_leaves(row.row, leaves))
        return Held(restored, after)

    def wait(self, results: PyTree) -> PyTree:
        """Wait until results are computed."""
        self._computed(results.row if isinstance(results, Held) else results)
        return results

    def fetch(self, results: PyTree) -> PyTree:
        """Return the arrays' values; they lie whole on each device."""
        return jax.tree.map(np.asarray, self._computed(results))

    def _launches(self, kind: str, programs: BucketPrograms, **place: Any) -> Callable[..., Any]:
        """Return what launches one program here and in the followers.

        Its first launch waits until all have compiled it: processes that meet in a collective for
        the first time wait for each other no longer than its library lets them (Gloo: 30 s).
        """
        handle = self._buckets[programs]  # for as long as other buckets have the program, too
        is_compiled = False

        def launch(
            fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray], call: Callable[[], T]
        ) -> T:
            nonlocal is_compiled
            which = {"program": kind, "programs": handle.number, **place}
            with self._order:
                if not is_compiled:
                    self._followers.ask("await", which, arrays)
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
        """Tell the followers, and call: in order."""
        self._followers.tell(kind, fields, arrays)
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
