"""Difference of an image between batch sizes, where batches have several.

Measured, by drawing it by each way of stepping.
"""

from __future__ import annotations

import numpy as np

from models.interface.pipeline import Prepared, PyTree
from workers.engine.batching import Batch
from workers.engine.row import Row
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.device_weights import Weights
from workers.programs.launcher import Launcher
from workers.programs.step_latency import Way


def levels(
    programs: BucketPrograms,
    prepared: Prepared,
    state: PyTree,
    weights: Weights,
    launcher: Launcher,
) -> int:
    """The most by which a subpixel differs from that of the image alone, of 255.

    Nothing else may be stepped meanwhile.

    Args:
        state: the row as it was encoded.
    """
    ways = sorted({way for phase in programs.phases.values() for way in phase.ways})

    def pixels(way: Way) -> np.ndarray:
        row = stepped(programs, prepared, state, way, weights, launcher)
        return launcher.fetch(programs.decode.result()(weights.common, row)).astype(int)

    alone = pixels(ways[0])
    return max((int(np.abs(pixels(way) - alone).max()) for way in ways[1:]), default=0)


def stepped(
    programs: BucketPrograms,
    prepared: Prepared,
    state: PyTree,
    way: Way,
    weights: Weights,
    launcher: Launcher,
) -> PyTree:
    """The state after all steps, beside its likes: inside one program neighbours change no bit."""
    row = Row(programs, prepared.steps, state, lambda row: None, lambda row, failure: None)
    while not row.all_sent:
        phase = row.phase
        batch = Batch(phase, (row,), way if way in phase.ways else phase.smallest)
        (after, *_), finite = batch.run(weights.load_expert(phase.expert))
        launcher.fetch(finite)
        row.send(after, 0)
    return row.state
