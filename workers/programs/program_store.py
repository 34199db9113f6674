"""Program store: one slice's compiled programs by name, loaded from files or compiled."""

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
    """Cached programs and facts of one model on one slice. Methods may run in any thread.

    Args:
        model: name of the model, for metrics.
        arguments: abstract arguments of its programs.
        executables: cache of compiled programs.
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
        """Return the stored program with this name and arguments, or compile the result of `trace`.

        Args:
            name: parts that distinguish the program from others with the same arguments.
            arguments: arguments other than the weights.
            layout: layout that it is traced with; None: the slice's own.
        """
        layout = layout or self._arguments.layout
        return self._executables.program(
            lambda: self._key(name, arguments, layout),
            list(layout.mesh.devices.flat),
            lambda: self._compile(trace),
        )

    def fact(self, name: tuple[str, ...], arguments: PyTree, find: Callable[[], T]) -> T:
        """Return a stored plain Python value, or compute and store it."""
        return self._executables.fact(lambda: self._program_key(name, arguments), find)

    def recall(self, name: tuple[str, ...]) -> Any:
        """Return a stored fact without arguments; None: not stored."""
        return self._executables.recall(lambda: self._program_key(name, {}))

    def _compile(self, trace: Callable[[], Traced]) -> Compiled:
        with building(), metrics.building(self._model):
            compiled: Compiled = trace().lower().compile()
            return compiled

    def _program_key(self, name: tuple[str, ...], arguments: PyTree) -> Mapping[str, Any]:
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
