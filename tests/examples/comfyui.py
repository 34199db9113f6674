"""Stand-in for ComfyUI that loads custom nodes and runs graphs of them.

Source: `load_custom_node` of ComfyUI's nodes.py, `execute` and `get_input_data` of execution.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

Node = type[Any]
Graph = Mapping[str, Mapping[str, Any]]


class Interrupted(Exception):
    """Replacement of ComfyUI's `InterruptProcessingException`."""


class Saved:
    """Replacement of the node that saves images; collects them in memory."""

    FUNCTION = "save"
    RETURN_TYPES = ()

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"images": ("IMAGE",), "filename_prefix": ("STRING", {})}}

    def save(self, images: Any, filename_prefix: str) -> tuple[Any]:
        return (images,)


class ComfyUI:
    """The `comfy` modules that nodes import, with a recorded progress bar."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.is_interrupted = False

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Make `comfy` importable within the block."""
        utils, management = ModuleType("comfy.utils"), ModuleType("comfy.model_management")
        vars(utils)["ProgressBar"] = self._bar
        vars(management)["throw_exception_if_processing_interrupted"] = self._throw
        comfy = {"comfy": ModuleType("comfy"), utils.__name__: utils}
        with patch.dict(sys.modules, comfy | {management.__name__: management}):
            yield

    def _throw(self) -> None:
        if self.is_interrupted:
            raise Interrupted

    def _bar(self, total: int) -> Any:
        class Bar:
            def update_absolute(bar, value: int, total: int | None = None) -> None:
                self.steps.append((value, total or 0))

        return Bar()

    def nodes(self, file: Path) -> dict[str, Node]:
        """Load a file of custom nodes; returns its classes by name."""
        spec = spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        with self.importable():
            spec.loader.exec_module(module)
        names = module.NODE_DISPLAY_NAME_MAPPINGS
        classes: dict[str, Node] = module.NODE_CLASS_MAPPINGS
        assert names.keys() == classes.keys()
        return {**classes, "SaveImage": Saved}


def run(graph: Graph, nodes: Mapping[str, Node]) -> Any:
    """Run a graph whose nodes are in order; returns the output of the last node."""
    results: dict[str, tuple[Any, ...]] = {}
    for name, node in graph.items():
        kind = nodes[node["class_type"]]
        inputs = {key: _value(raw, results) for key, raw in node["inputs"].items()}
        _check(kind, inputs)
        results[name] = getattr(kind(), kind.FUNCTION)(**inputs)
    return results[name][0]


def _value(raw: Any, results: Mapping[str, tuple[Any, ...]]) -> Any:
    """Resolve a link (node name, number of the output); other values are returned unchanged."""
    return results[raw[0]][raw[1]] if isinstance(raw, list) else raw


def _check(kind: Node, inputs: Mapping[str, Any]) -> None:
    """Check inputs like ComfyUI's `validate_inputs`. Raises: ValueError."""
    types = kind.INPUT_TYPES()
    required, optional = types["required"], types.get("optional", {})
    if missing := required.keys() - inputs.keys():
        raise ValueError(f"required input is missing: {missing}")
    for name, value in inputs.items():
        definition = (required | optional)[name]
        options = definition[1] if len(definition) > 1 else {}
        if "min" in options and not options["min"] <= value <= options["max"]:
            raise ValueError(f"{name}: {value} is out of bounds")
