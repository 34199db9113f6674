"""Full-size model steps whose compiled schedules are tested, and their lowered programs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

import jax
from jax.stages import Lowered

from models.adapters.install import install_banks
from models.nn.kernels.int8_matmul import eight_bit_for
from models.nn.kernels.select import kernel_for
from models.parallel.axis_rules import Layout
from models.spec.lora import pages_of
from workers.plan import tpu_compiler
from workers.plan.model import abstract
from workers.programs import warmup
from workers.programs.tracer import Tracer
from workers.slice import xla_flags
from workers.slice.chips import CLOCK_HZ
from workers.slice.mesh_shape import MeshShape
from workers.slice.topology import Topology

DTYPE = "bfloat16"
BANK_PAGES = 16
NO_PLACES = 0
"""Number of traceback frames in a program's source locations."""
_CONSTANT = re.compile(r'dense<"0x[0-9A-F]*">')


@dataclass(frozen=True)
class Case:
    """One step to compile: model, size, slice and layout."""

    model: str
    """A name of `models.published.CHECKPOINTS`, or a folder."""
    family: str
    request: Mapping[str, int]
    topology: str
    mesh: Mapping[str, int]
    lora_pages: int = 0
    """Adapter pages that each row reads from a bank of `BANK_PAGES`; 0: no bank."""

    @property
    def slice(self) -> Topology:
        """TPU slice that the case is compiled for."""
        return Topology.parse(self.topology)

    @property
    def clock_hz(self) -> float:
        """Clock rate of the case's chip."""
        return CLOCK_HZ[self.slice.chip.name]

    @property
    def shape(self) -> MeshShape:
        """Mesh shape of the case, over all devices of its slice."""
        return MeshShape(self.mesh).over(self.slice.devices)


WAN = {"height": 720, "width": 1280, "num_frames": 81}
FLUX = {"height": 1024, "width": 1024}
SDXL = {"height": 1024, "width": 1024}
GUARDED: Mapping[str, Case] = {
    "wan": Case("wan2.1-14b", "wan", WAN, "v6e:2x4", {"cfg": 2, "context": 4}),
    "flux-tensor": Case("flux-dev", "flux", FLUX, "v6e:2x2", {"tensor": 4}),
    "flux-context": Case("flux-dev", "flux", FLUX, "v6e:2x2", {"context": 4}),
    "sdxl": Case("sdxl", "sdxl", SDXL, "v6e:1x1", {}),
}
"""Cases whose limits CI enforces."""
ADAPTED = ("flux-tensor", "flux-context", "sdxl")
RANKS = (16, 64)


def adapted(name: str, rank: int) -> str:
    """Return the name of a case with adapters of that rank in every row."""
    return f"{name}-lora-{rank}"


CASES: Mapping[str, Case] = {
    **GUARDED,
    **{
        adapted(name, rank): replace(GUARDED[name], lora_pages=pages_of(rank))
        for name in ADAPTED
        for rank in RANKS
    },
}


def lowered(case: Case, rows: int = 1) -> Lowered:
    """Lower the first step of a case for its slice; takes seconds, regardless of the model's
    size."""
    tpu_compiler.prepare(case.slice, case.family)
    devices = tpu_compiler.devices_of(case.slice)
    mesh = tpu_compiler.mesh_of(case.shape, devices)
    eight_bit = eight_bit_for(devices[0].device_kind)
    layout = Layout(mesh, kernel_for(devices[0], DTYPE), eight_bit=eight_bit)
    pipeline = abstract(case.model, DTYPE, layout.of_parameter, swap_experts=False)
    install_banks(pipeline, BANK_PAGES if case.lora_pages else 0, layout.of_parameter)
    (fields,) = warmup.requests(pipeline.spec, [case.request])
    fields = warmup.with_adapter(pipeline, fields, case.lora_pages)
    prepared = warmup.prepare(pipeline, fields)
    tracer = Tracer(pipeline, layout)
    row = tracer.encode(prepared.inputs).out_info
    first = prepared.steps[0]
    with jax.set_mesh(mesh):
        return tracer.step(first.program, first.values, row, rows).lower()


def compiled(case: Case, rows: int = 1) -> str:
    """Return the text of the compiled step. libtpu must not be loaded yet.

    Reads libtpu's own dump, because jaxlib cannot print every program. For SDXL's step it reports
    "Async done requires its operand to be an asynchronous op" (jax 0.10.2, libtpu 0.0.52).

    Raises: JaxRuntimeError: the program does not fit.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit_step"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
        lowered(case, rows).compile()
        (written,) = Path(folder).glob("*.after_codegen.txt")
        return written.read_text()


def fingerprints(names: Sequence[str]) -> dict[str, str]:
    """Return fingerprints of the cases' programs. Sets a JAX option: use a separate process."""
    # Source locations of kernels would change the fingerprint.
    jax.config.update("jax_traceback_in_locations_limit", NO_PLACES)
    return {name: fingerprint(CASES[name], lowered(CASES[name]).as_text()) for name in names}


def fingerprint(case: Case, program: str) -> str:
    """Return a digest of everything that a schedule depends on, except the compiler.

    That is the program, and its flags and chips.

    Args:
        program: StableHLO. The values of its long constants are excluded: they do not affect the
            schedule, and their last bits may depend on the processor.
    """
    chosen = xla_flags.chosen(case.slice.chip.name, case.family)["libtpu"]
    properties = {
        name: value for name, value in asdict(case).items() if name != "lora_pages" or value
    }
    texts = [repr(properties), *chosen, _CONSTANT.sub("dense<>", program)]
    return sha256("\0".join(texts).encode()).hexdigest()
