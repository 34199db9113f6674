"""XLA options that compile faster for a CPU, for tests that do not measure speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

from packaging.version import Version

EMITTERS = "xla_cpu_use_fusion_emitters"
"""Fusion emitters make code that relies on LLVM optimizations, which are omitted here. Since jaxlib
0.11.1 they cannot be disabled."""
EMITTERS_ALONE = (0, 11, 1)

OPTIONS: dict[str, int | bool] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_llvm_disable_expensive_passes": True,
    **({EMITTERS: False} if Version(version("jaxlib")).release < EMITTERS_ALONE else {}),
}
"""Options for `compile(compiler_options=…)`. XLA's own optimizations all run."""

FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in OPTIONS.items())
"""The same options for another process, in `XLA_FLAGS`."""


@contextmanager
def compiled() -> Iterator[None]:
    """Use the same options for all programs that this process compiles for its CPU within the
    block.

    JAX has options per process, read once, and options per program, which code under test does not
    set. So the function that returns all options is patched.
    """
    from models.parallel.jax_internals import compiler

    original = compiler.get_compile_options

    def coarsely(*args: Any, backend: Any = None, **more: Any) -> Any:
        options = original(*args, backend=backend, **more)
        if backend is not None and backend.platform == "cpu":
            # The last value wins, so a program's own options take precedence.
            options.env_option_overrides = [*OPTIONS.items(), *options.env_option_overrides]
        return options

    with patch.object(compiler, "get_compile_options", coarsely):
        yield
