"""How XLA compiles for a CPU in a third of the time, where nothing asks how fast the program is."""

from __future__ import annotations

OPTIONS: dict[str, int | bool] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # Those make code that LLVM's optimizations, left out here, would have to bring down again.
    "xla_cpu_use_fusion_emitters": False,
}
"""For `compile(compiler_options=…)`. XLA's own optimizations are all done."""

FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in OPTIONS.items())
"""The same for a process of its own, in `XLA_FLAGS`."""
