"""Program store: one slice's compiled programs by name, out of files or compiled now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from jax.stages import Compiled, Traced

from models.interface.pipeline import PyTree
from models.parallel.axis_rules import Layout
from workers import metrics
from workers.programs import aot_key
from workers.programs.abstract_arguments import AbstractArguments
from workers.programs.aot_cache import Executables
from workers.programs.bucket_programs import Program
from workers.programs.compilation import building

T = TypeVar("T")


class ProgramStore:
    """Programs and facts of one model on one slice; its methods may run in any thread.

    Args:
        model: its name, for metrics.
        arguments: of its programs.
        executables: where programs may be that need not be compiled.
    """

    def __init__(self, model: str, arguments: AbstractArguments, executables: Executables) -> None:
        self._model = model
        self._arguments = arguments
        self._executables = executables

    def program(
        self,
        name: tuple[str, ...],
        arguments: PyTree,
        trace: Callable[[], Traced],
        layout: Layout | None = None,
    ) -> Program:
        """Return the program that was kept under its key, or what `trace` gives, compiled.

        Args:
            name: all that tells it from others of the same arguments.
            arguments: beside the weights.
            layout: that it is traced under; None: the slice's own.
        """
        layout = layout or self._arguments.layout
        return self._executables.program(
            lambda: self._key(name, arguments, layout),
            list(layout.mesh.devices.flat),
            lambda: self._compile(trace),
        )

    def fact(self, name: tuple[str, ...], arguments: PyTree, find: Callable[[], T]) -> T:
        """Return a plain Python value that is known from before, or found and kept now."""
        return self._executables.fact(lambda: self._own_key(name, arguments), find)

    def recall(self, name: tuple[str, ...]) -> Any:
        """Return a fact without arguments where it is known; None: it is not."""
        return self._executables.recall(lambda: self._own_key(name, {}))

    def _compile(self, trace: Callable[[], Traced]) -> Compiled:
        with building(), metrics.building(self._model):
            return trace().lower().compile()

    def _own_key(self, name: tuple[str, ...], arguments: PyTree) -> Mapping[str, Any]:
        return self._key(name, arguments, self._arguments.layout)

    def _key(self, name: tuple[str, ...], arguments: PyTree, layout: Layout) -> Mapping[str, Any]:
        return {
            "program": list(name),
            "arguments": aot_key.of_arguments(self._arguments.of(arguments)),
            "weights": self._weights_key,
            "layout": aot_key.of_layout(layout),
        }

    @cached_property
    def _weights_key(self) -> str:
        names, leaves = self._arguments.weights.names, self._arguments.abstract_weights
        return aot_key.of_arguments(dict(zip(names, leaves, strict=True)))
