"""Targets: `v6e:2x4`, `cpu:8` → the devices of one worker, and a process like that worker's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from models import registry
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from workers.loading import model as loading
from workers.loading.layout import own
from workers.plan import tpu_compiler
from workers.slice.topology import PlanError, Topology

CPU = re.compile(r"cpu:([1-9]\d*)")


@dataclass(frozen=True)
class Target:
    """Devices of one worker, which need not be there.

    Args:
        name: as it was given.
        cpus: number of virtual devices of a machine without accelerators; 0: it has some.
        topology: of its accelerators; None: it has none.
        part: of the virtual devices; None: all.
    """

    name: str
    cpus: int = 0
    topology: Topology | None = None
    part: range | None = None

    @classmethod
    def parse(cls, text: str, part: range | None = None) -> Target:
        """Parse `cpu:8`, or a topology of TPUs as `atelier plan` has it.

        Raises: PlanError: there is none of that name, or no compiler for it.
        """
        if match := CPU.fullmatch(text):
            return cls(text, int(match[1]), part=part)
        topology = Topology.parse(text)
        if topology.chip.kind != "tpu":
            raise PlanError(
                f"topology {text!r}: executables are built for TPUs (such as v6e:2x4) and CPUs "
                "(cpu:8); what GPUs run is compiled where they are, into compile_cache"
            )
        if part is not None:
            raise PlanError("--devices goes with cpu:N; of TPUs a worker has the whole topology")
        return cls(text, topology=topology)

    def set_up(self, pool: PoolSettings, model: ModelSettings) -> None:
        """Set what JAX reads at its start, as a worker of this pool does on these devices.

        Raises: ConfigError: a flag undoes the model's batching; PlanError: there is no libtpu.
        """
        jax.config.update("jax_platforms", "cpu")  # whatever this machine has
        # A program out of JAX's cache cannot be written down again.
        jax.config.update("jax_enable_compilation_cache", False)
        chip = None
        if self.topology is None:
            jax.config.update("jax_num_cpu_devices", self.cpus)
        else:
            tpu_compiler.be_found(self.topology)
            chip = tpu_compiler.flag_name(self.topology)
        loading.set_flags(pool, model, chip, registry.family(model.source, model.base))

    def devices(self) -> Sequence[jax.Device]:
        """Return the devices of the worker.

        Raises: ConfigError: there are not so many; PlanError: libtpu does not know them.
        """
        if self.topology is None:
            return own(self.part)
        return tpu_compiler.devices_of_host(self.topology)

    def check(self, name: str, pool: PoolSettings) -> None:
        """Check that it can be one worker of a pool. Raises: ConfigError."""
        if pool.hosts.count > 1:
            raise ConfigError(
                f"pools.{name}.hosts: executables are built for slices on one host; each of "
                f"{pool.hosts.count} has programs of its own, which its process compiles"
            )
