"""Wan's video-conditioned pipelines by Atelier and by diffusers. Bounds as in `test_wan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.wan.load import load
from models.wan.pipeline import WanPipeline
from tests import coarse
from tests.parity.distances import psnr_db, relative
from tests.parity.programs import Programs
from tests.parity.step_latents import StepLatents
from tests.parity.test_wan import BASE, GREY_LEVELS, PSNR_DB, RELATIVE, Result
from tests.parity.tiny import Config
from tests.parity.tiny_wan import make_wan

Fields = Mapping[str, Any]


class WanPair:
    """One checkpoint, loaded by Atelier and by diffusers.

    Args:
        config: of the checkpoint, for `make_wan`.
        kind: the expected pipeline class.
        reference: diffusers' equivalent class.
    """

    def __init__(
        self, folder: Path, config: Config, kind: type[WanPipeline], reference: Any
    ) -> None:
        make_wan(folder, **config)
        with coarse.compiled():
            loaded = load("tiny", folder, "float32")
        assert isinstance(loaded, kind)
        self.atelier, self.programs = loaded, Programs(loaded, coarse.OPTIONS)
        self.diffusers = reference.from_pretrained(folder)
        self.diffusers.set_progress_bar_config(disable=True)

    def drawn_by_atelier(
        self, fields: Fields, files: Mapping[str, bytes], spoil: Callable[[Any], Any]
    ) -> Result:
        """Run a request with Atelier; `spoil` corrupts the row after encoding."""
        prepared = self.atelier.prepare({**BASE, **fields}, files)
        return Result(*self.programs.drawn(prepared, spoil=spoil))

    def drawn_by_diffusers(self, given: Fields) -> Result:
        """Run diffusers with its own arguments and those of a request."""
        arguments = {**given}
        generator = torch.Generator("cpu").manual_seed(arguments.pop("seed"))
        latents = StepLatents()

        output = self.diffusers(**arguments, generator=generator, callback_on_step_end=latents.keep)
        return Result(latents, (output.frames[0] * 255).astype(np.uint8))


def off(output: Result, expected: Result, shape: tuple[int, ...]) -> tuple[float, float, int]:
    """Return the latents' largest relative difference, the frames' PSNR and levels.

    Args:
        shape: of the frames.
    """
    assert output.frames.shape == expected.frames.shape == shape
    assert len(output.latents) == len(expected.latents)
    worst = max(map(relative, output.latents, expected.latents))
    levels = int(np.abs(output.frames.astype(int) - expected.frames).max())
    return worst, psnr_db(output.frames, expected.frames), levels


def assert_the_same_clip(output: Result, expected: Result, shape: tuple[int, ...]) -> None:
    """Assert that two videos are equal up to rounding, and not flat."""
    latents, decibels, levels = off(output, expected, shape)
    print(f"latents {latents:.1e}, {decibels:.1f} dB, {levels}")
    assert latents <= RELATIVE
    assert decibels >= PSNR_DB
    assert levels <= GREY_LEVELS
    assert expected.frames.std() > 10, "a flat video proves nothing"
