"""Private and unstable names of JAX that this project uses, each with its purpose.

JAX keeps `jax` and `jax.numpy` stable for some versions, but not `jax._src`, `jax.interpreters`,
`jax.extend`, `jax.experimental`, `jax.lib` and `jaxlib`. Other modules may not import these
(tests/test_jax_internals.py) and import from here. A name is looked up at its first use. If a
version of JAX lacks it, only its users fail, with an error that contains the name. The module also
reads the fields of traced equations that differ by version.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

TESTED = ("0.10.2", "0.12.0.1")
"""Oldest and newest version of JAX that pass all tests."""


class Name(NamedTuple):
    """Name in JAX's internals that other versions of JAX may lack."""

    module: str
    attribute: str
    purpose: str

    @property
    def value(self) -> Any:
        """Object of that name in JAX's internals.

        Raises: JaxNameMissing.
        """
        try:
            return getattr(import_module(self.module), self.attribute)
        except (ImportError, AttributeError) as error:
            raise missing(f"{self.module}.{self.attribute}", self.purpose) from error


class Members(NamedTuple):
    """Names of one module of JAX, each looked up when it is read."""

    module: str
    names: tuple[str, ...]
    purpose: str

    def __getattr__(self, name: str) -> Any:
        if name not in self.names:
            raise AttributeError(f"{self.module}.{name} is not listed in {__name__}")
        return Name(self.module, name, self.purpose).value


class JaxNameMissing(ImportError):
    """Error of a name that this version of JAX lacks."""


SPLASH = "jax.experimental.pallas.ops.tpu.splash_attention"
CUDNN = "jax._src.cudnn.fused_attention_stablehlo"

NAMES: Mapping[str, Name | Members] = MappingProxyType(
    {
        # Kernels.
        "pallas": Members(
            "jax.experimental.pallas",
            (
                *("BlockSpec", "CostEstimate", "pallas_call"),
                *("ds", "loop", "num_programs", "program_id", "when"),
            ),
            "attention and products of 8 bits on TPUs",
        ),
        "pallas_tpu": Members(
            "jax.experimental.pallas.tpu",
            ("CompilerParams", "PrefetchScalarGridSpec", "VMEM"),
            "attention and products of 8 bits on TPUs",
        ),
        "BlockSizes": Name(SPLASH, "BlockSizes", "attention on TPUs"),
        "SegmentIds": Name(SPLASH, "SegmentIds", "attention on TPUs"),
        "SplashAttentionKernel": Name(
            f"{SPLASH}.splash_attention_kernel", "SplashAttentionKernel", "attention on TPUs"
        ),
        "DEFAULT_MASK_VALUE": Name(
            f"{SPLASH}.splash_attention_kernel", "DEFAULT_MASK_VALUE", "attention on TPUs"
        ),
        "MaskInfo": Name(
            f"{SPLASH}.splash_attention_mask_info", "MaskInfo", "attention on TPUs, with no mask"
        ),
        # Not jax.nn.dot_product_attention, which rounds the log-sums to the dtype of the queries:
        # in bfloat16 the weights of two merged parts would be off by some per cent.
        "cudnn_attention": Name(CUDNN, "dot_product_attention", "attention on NVIDIA GPUs"),
        "CudnnMaskType": Name(CUDNN, "MaskType", "attention on NVIDIA GPUs"),
        # Meshes, devices and programs.
        "create_device_mesh": Name(
            "jax.experimental.mesh_utils", "create_device_mesh", "the order of a slice's devices"
        ),
        "create_hybrid_device_mesh": Name(
            "jax.experimental.mesh_utils",
            "create_hybrid_device_mesh",
            "the order of devices of several slices or hosts",
        ),
        "broadcast_one_to_all": Name(
            "jax.experimental.multihost_utils",
            "broadcast_one_to_all",
            "the first process's invitation to the others of a slice",
        ),
        "get_topology_desc": Name(
            "jax.experimental.topologies",
            "get_topology_desc",
            "compiling for chips that are not there",
        ),
        "serialize": Name(
            "jax.experimental.serialize_executable", "serialize", "keeping compiled programs"
        ),
        "deserialize_and_load": Name(
            "jax.experimental.serialize_executable",
            "deserialize_and_load",
            "reading compiled programs",
        ),
        "ArrayLayout": Name(
            "jax.experimental.layout", "Layout", "kernels row by row in a TPU's memory"
        ),
        "with_layout_constraint": Name(
            "jax.experimental.layout",
            "with_layout_constraint",
            "kernels row by row in a TPU's memory",
        ),
        # Traced programs, as the planner and tests read them.
        "dce_jaxpr": Name(
            "jax.interpreters.partial_eval", "dce_jaxpr", "which weights a program reads"
        ),
        "jaxpr_as_fun": Name(
            "jax.extend.core", "jaxpr_as_fun", "parts of a traced program as programs"
        ),
        "Literal": Name("jax.extend.core", "Literal", "the work and memory of traced programs"),
        "jaxprs_in_params": Name(
            "jax.extend.core", "jaxprs_in_params", "tests: the programs inside an equation"
        ),
        "subjaxprs": Name(
            "jax.extend.core", "subjaxprs", "tests: the programs inside a traced one"
        ),
        "reset_cache": Name(
            "jax.experimental.compilation_cache.compilation_cache",
            "reset_cache",
            "opening another folder of compiled programs",
        ),
        # Tests alone.
        "compiler": Name("jax._src", "compiler", "tests: compiling coarsely"),
        "fused_attention_stablehlo": Name(
            "jax._src.cudnn",
            "fused_attention_stablehlo",
            "tests: lowering for a GPU that is not there",
        ),
        "io_callback": Name(
            "jax.experimental", "io_callback", "tests: a program that cannot be kept"
        ),
        "coordinator_port": Name(
            "jax._src.clusters.cloud_tpu_cluster",
            "coordinator_port",
            "tests: the port that hosts of a TPU slice meet at",
        ),
        "xla_client": Name(
            "jaxlib.xla_client", "__file__", "tests: the variable with a GPU's share of memory"
        ),
    }
)
"""JAX names by their names in this module."""


def __getattr__(name: str) -> Any:
    """Look up one of `NAMES` in JAX's internals.

    Raises: JaxNameMissing: this version of JAX no longer has it, or not yet.
    """
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    entry = NAMES[name]
    return entry.value if isinstance(entry, Name) else entry


def missing(path: str, purpose: str) -> JaxNameMissing:
    """Build the error for a name that this JAX lacks."""
    import jax

    return JaxNameMissing(
        f"JAX {jax.__version__} has no {path}, which is needed for {purpose}; "
        f"tested are JAX {' and '.join(TESTED)}: install one of these (make install does)"
    )


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of constants and carried values of a `scan` equation, its first arguments.

    Raises: JaxNameMissing: the equation's parameters have no known form.
    """
    if "num_consts" in params:  # to JAX 0.10
        return params["num_consts"], params["num_carry"]
    try:
        consts, carry, _ = params["ft_in"].unpack()
        return len(list(consts)), len(list(carry))
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise missing("lax.scan's num_consts or ft_in", "the work of a traced program") from error
