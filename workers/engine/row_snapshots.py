"""Snapshots of an engine's rows: taken beside their steps, and taken up by another engine."""

from __future__ import annotations

import logging
from dataclasses import replace

import jax

from models.interface.pipeline import PyTree
from workers.engine.passes import ImagePass
from workers.engine.row import Checked, Row
from workers.engine.snapshot import RowSnapshot, UnfitSnapshot, check_fit, needed
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.launcher import Launcher

log = logging.getLogger(__name__)


class RowSnapshots:
    """Snapshots of rows that a launcher's processes hold.

    Args:
        exactly: keep what an image needs to go on to the same bits.
    """

    def __init__(self, launcher: Launcher, exactly: bool) -> None:
        self._launcher = launcher
        self._exactly = exactly

    def take(self, row: Row) -> RowSnapshot:
        """Copy what another engine needs to go on with this row."""
        checked = row.checked
        leaves = self._leaves(row, checked.state).items()
        copied = {name: self._launcher.fetch(leaf) for name, leaf in leaves}
        return RowSnapshot(row.before + checked.done, checked.device_seconds, copied)

    def bytes(self, row: Row) -> int | None:
        """Return the bytes that `take` copies; None: a part lies on devices of other hosts."""
        leaves = self._leaves(row, row.known).values()
        here = all(leaf.is_fully_addressable or leaf.is_fully_replicated for leaf in leaves)
        return sum(leaf.nbytes for leaf in leaves) if here else None

    def take_up(
        self, programs: BucketPrograms, one: ImagePass, start: Checked, snapshot: RowSnapshot
    ) -> Checked:
        """Return where the image begins: after the steps done before, if they were its own.

        Raises: UnfitSnapshot: they were not, and a second pass cannot begin without its first.
        """
        row, steps = self._launcher.leaves(start.state), one.prepared.steps
        snapshot = replace(snapshot, done=snapshot.done - one.before)
        try:
            names = needed(programs.changes(steps), self._exactly)
            check_fit(snapshot, row, names, len(steps))
        except UnfitSnapshot as error:
            if one.before:
                raise
            log.warning("an image begins anew, its snapshot does not fit: %s", error)
            return start
        state = self._launcher.wait(self._launcher.restore(start.state, snapshot.leaves))
        return Checked(state, snapshot.done, snapshot.device_seconds)

    def _leaves(self, row: Row, state: PyTree) -> dict[str, jax.Array]:
        names = needed(row.programs.changes(row.steps), self._exactly)
        leaves = self._launcher.leaves(state).items()
        return {name: leaf for name, leaf in leaves if name in names}
