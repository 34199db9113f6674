"""How XLA compiles for a CPU in less time, where nothing asks how fast the program is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

from packaging.version import Version

EMITTERS = "xla_cpu_use_fusion_emitters"
"""They make code that LLVM's optimizations, left out here, would have to bring down again. From
jaxlib 0.11.1 on there is no doing without them."""
EMITTERS_ALONE = (0, 11, 1)

OPTIONS: dict[str, int | bool] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_llvm_disable_expensive_passes": True,
    **({EMITTERS: False} if Version(version("jaxlib")).release < EMITTERS_ALONE else {}),
}
"""For `compile(compiler_options=…)`. XLA's own optimizations are all done."""

FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in OPTIONS.items())
"""The same for a process of its own, in `XLA_FLAGS`."""


@contextmanager
def compiled() -> Iterator[None]:
    """The same for all that this process compiles meanwhile for its CPU.

    JAX has options of a process, read once, and of one program; what programs under test are made
    of takes none. So the one function that all options come from is given these.
    """
    from models.parallel.jax_internals import compiler

    plain = compiler.get_compile_options

    def coarsely(*args: Any, backend: Any = None, **more: Any) -> Any:
        options = plain(*args, backend=backend, **more)
        if backend is not None and backend.platform == "cpu":
            # The last one counts: a program's own stay.
            options.env_option_overrides = [*OPTIONS.items(), *options.env_option_overrides]
        return options

    with patch.object(compiler, "get_compile_options", coarsely):
        yield
