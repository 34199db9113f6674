"""Numerical difference of an image between batch layouts, measured by generating it with each."""

from __future__ import annotations

import threading

import numpy as np

from models.interface.finite import CheckedOutput
from models.interface.pipeline import PreparedRow, PyTree, split_sound
from workers.engine.batching import Batch
from workers.engine.row import Row
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.device_weights import Weights
from workers.programs.launcher import Launcher
from workers.programs.step_latency import BatchLayout


class MeasurementCanceled(Exception):
    """End of the comparison of batch layouts because it is canceled."""


def levels(
    programs: BucketPrograms,
    prepared: PreparedRow,
    state: PyTree,
    weights: Weights,
    launcher: Launcher,
    given_up: threading.Event,
) -> int:
    """Return an image's largest subpixel difference, out of 255, between batch layouts.

    The reference is the image generated alone. No other steps may run meanwhile.

    Args:
        state: the row after encoding.
        given_up: once set, no further step is begun.

    Raises: MeasurementCanceled.
    """
    batch_layouts = sorted(
        {
            batch_layout
            for step_kind in programs.step_kinds.values()
            for batch_layout in step_kind.batch_layouts
        }
    )

    def pixels(batch_layout: BatchLayout) -> np.ndarray:
        row = stepped(programs, prepared, state, batch_layout, weights, launcher, given_up)
        output: CheckedOutput = launcher.fetch(programs.decode.result()(weights.common, row))
        return np.asarray(split_sound(output.decoded)[0], int)

    alone = pixels(batch_layouts[0])
    return max(
        (int(np.abs(pixels(batch_layout) - alone).max()) for batch_layout in batch_layouts[1:]),
        default=0,
    )


def stepped(
    programs: BucketPrograms,
    prepared: PreparedRow,
    state: PyTree,
    batch_layout: BatchLayout,
    weights: Weights,
    launcher: Launcher,
    given_up: threading.Event,
) -> PyTree:
    """Denoise a row to its last step, padding each batch with copies of it.

    Other rows of a batch do not change a row's bits within one program.

    Raises: MeasurementCanceled.
    """
    row = Row(programs, prepared.steps, state, lambda row: None, lambda row, failure: None)
    while not row.all_sent:
        if given_up.is_set():
            raise MeasurementCanceled("other work is waiting")
        step_kind = row.step_kind
        batch = Batch(
            step_kind,
            (row,),
            batch_layout if batch_layout in step_kind.batch_layouts else step_kind.smallest,
        )
        (after, *_), digests = batch.run(weights.load_expert(step_kind.expert))
        launcher.fetch(digests)
        row.send(after, 0)
    return row.state
