"""Snapshots of an engine's rows: copied while steps run, and restored by another engine."""

from __future__ import annotations

import logging
from dataclasses import replace

import jax

from models.interface.pipeline import PyTree
from workers.engine.passes import ImagePass
from workers.engine.row import Row, RowProgress
from workers.engine.snapshot import RowSnapshot, UnfitSnapshot, check_fit, needed
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.launcher import Launcher

log = logging.getLogger(__name__)


class RowSnapshots:
    """Snapshots of rows held by a launcher's processes.

    Args:
        exactly: keep all leaves needed to resume with identical bits.
    """

    def __init__(self, launcher: Launcher, exactly: bool) -> None:
        self._launcher = launcher
        self._exactly = exactly

    def take(self, row: Row) -> RowSnapshot:
        """Copy the leaves that another engine needs to resume this row."""
        progress = row.progress
        leaves = self._leaves(row, progress.state).items()
        copied = {name: self._launcher.fetch(leaf) for name, leaf in leaves}
        return RowSnapshot(
            row.before + progress.done, progress.device_seconds, copied, progress.digests
        )

    def bytes(self, row: Row) -> int | None:
        """Return the bytes that `take` copies; None: part of the row is on other hosts' devices."""
        leaves = self._leaves(row, row.verified_state).values()
        is_local = all(leaf.is_fully_addressable or leaf.is_fully_replicated for leaf in leaves)
        return sum(leaf.nbytes for leaf in leaves) if is_local else None

    def resume(
        self,
        programs: BucketPrograms,
        image_pass: ImagePass,
        start: RowProgress,
        snapshot: RowSnapshot,
    ) -> RowProgress:
        """Restore a snapshot; return the row's progress from which denoising starts.

        If the snapshot does not fit a first pass, return `start`.

        Raises: UnfitSnapshot: it does not fit a second pass, which cannot begin without its first.
        """
        row, steps = self._launcher.leaves(start.state), image_pass.prepared.steps
        snapshot = replace(snapshot, done=snapshot.done - image_pass.before)
        try:
            names = needed(programs.changes(steps), self._exactly)
            check_fit(snapshot, row, names, len(steps))
        except UnfitSnapshot as error:
            if image_pass.before:
                raise
            log.warning("an image starts over, its snapshot does not fit: %s", error)
            return start
        state = self._launcher.wait(self._launcher.restore(start.state, snapshot.leaves))
        return RowProgress(state, snapshot.done, snapshot.device_seconds, snapshot.digests)

    def _leaves(self, row: Row, state: PyTree) -> dict[str, jax.Array]:
        names = needed(row.programs.changes(row.steps), self._exactly)
        leaves = self._launcher.leaves(state).items()
        return {name: leaf for name, leaf in leaves if name in names}
