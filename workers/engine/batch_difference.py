"""Difference of an image between batch sizes, where batches have several.

Measured by drawing it with each batch layout.
"""

from __future__ import annotations

import threading

import numpy as np

from models.interface.finite import Shown
from models.interface.pipeline import Prepared, PyTree, parted
from workers.engine.batching import Batch
from workers.engine.row import Row
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.device_weights import Weights
from workers.programs.launcher import Launcher
from workers.programs.step_latency import BatchLayout


class GivenUp(Exception):
    """Measuring was broken off."""


def levels(
    programs: BucketPrograms,
    prepared: Prepared,
    state: PyTree,
    weights: Weights,
    launcher: Launcher,
    given_up: threading.Event,
) -> int:
    """The most by which a subpixel differs from that of the image alone, of 255.

    Nothing else may be stepped meanwhile.

    Args:
        state: the row as it was encoded.
        given_up: once set, no further step is begun.

    Raises: GivenUp.
    """
    batch_layouts = sorted(
        {batch_layout for phase in programs.phases.values() for batch_layout in phase.batch_layouts}
    )

    def pixels(batch_layout: BatchLayout) -> np.ndarray:
        row = stepped(programs, prepared, state, batch_layout, weights, launcher, given_up)
        shown: Shown = launcher.fetch(programs.decode.result()(weights.common, row))
        return np.asarray(parted(shown.decoded)[0], int)

    alone = pixels(batch_layouts[0])
    return max(
        (int(np.abs(pixels(batch_layout) - alone).max()) for batch_layout in batch_layouts[1:]),
        default=0,
    )


def stepped(
    programs: BucketPrograms,
    prepared: Prepared,
    state: PyTree,
    batch_layout: BatchLayout,
    weights: Weights,
    launcher: Launcher,
    given_up: threading.Event,
) -> PyTree:
    """The state after all steps, beside its likes: inside one program neighbours change no bit.

    Raises: GivenUp.
    """
    row = Row(programs, prepared.steps, state, lambda row: None, lambda row, failure: None)
    while not row.all_sent:
        if given_up.is_set():
            raise GivenUp("something else is to run")
        phase = row.phase
        batch = Batch(
            phase, (row,), batch_layout if batch_layout in phase.batch_layouts else phase.smallest
        )
        (after, *_), finite = batch.run(weights.load_expert(phase.expert))
        launcher.fetch(finite)
        row.send(after, 0)
    return row.state
