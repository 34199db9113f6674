"""Observer of an engine's images that calls functions of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.engine.observer import Observer
from workers.engine.row import ImageRow
from workers.programs.compilation import Compilation


class Observing(Observer):
    def __init__(
        self,
        on_step: Callable[[Any], object] | None = None,
        on_compile: Callable[[Compilation], object] | None = None,
    ) -> None:
        self._on_step, self._on_compile = on_step, on_compile

    def on_step(self, row: ImageRow) -> None:
        if self._on_step:
            self._on_step(row)

    def on_compile(self, compilation: Compilation) -> None:
        if self._on_compile:
            self._on_compile(compilation)
