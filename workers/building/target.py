"""Build targets such as `v6e:2x4` or `cpu:8`: a worker's devices and its JAX configuration."""

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
from workers.loading.layout import slice_devices
from workers.plan import tpu_compiler
from workers.slice.topology import PlanError, Topology

CPU = re.compile(r"cpu:([1-9]\d*)")


@dataclass(frozen=True)
class Target:
    """Devices of one worker to compile for; this machine need not have them.

    Args:
        name: the target's text.
        cpus: number of virtual CPU devices; 0 for accelerators.
        topology: topology of the accelerators; None for CPUs.
        part: range of the virtual devices; None: all.
    """

    name: str
    cpus: int = 0
    topology: Topology | None = None
    part: range | None = None

    @classmethod
    def parse(cls, text: str, part: range | None = None) -> Target:
        """Parse `cpu:8`, or a TPU topology in the notation of `atelier plan`.

        Raises: PlanError: unknown topology, or no compiler for it.
        """
        if match := CPU.fullmatch(text):
            return cls(text, int(match[1]), part=part)
        topology = Topology.parse(text)
        if topology.chip.kind != "tpu":
            raise PlanError(
                f"topology {text!r}: executables are built for TPUs (such as v6e:2x4) and CPUs "
                "(cpu:8); programs for GPUs are compiled on their machine, into compile_cache"
            )
        if part is not None:
            raise PlanError("--devices requires cpu:N; with TPUs a worker uses the whole topology")
        return cls(text, topology=topology)

    def set_up(self, pool: PoolSettings, model: ModelSettings) -> None:
        """Configure JAX for these devices like a worker of this pool, before JAX starts.

        Raises: ConfigError: a flag disables the model's batching; PlanError: libtpu is missing.
        """
        jax.config.update("jax_platforms", "cpu")  # even if this machine has accelerators
        # A program from JAX's cache cannot be serialized again.
        jax.config.update("jax_enable_compilation_cache", False)
        chip = None
        if self.topology is None:
            jax.config.update("jax_num_cpu_devices", self.cpus)
        else:
            tpu_compiler.prepare_environment(self.topology)
            chip = tpu_compiler.flag_name(self.topology)
        loading.set_flags(pool, model, chip, registry.family(model.source, model.base))

    def devices(self) -> Sequence[jax.Device]:
        """Return the devices of the worker to compile for.

        Raises: ConfigError: too few devices; PlanError: libtpu does not support them.
        """
        if self.topology is None:
            return slice_devices(self.part)
        return tpu_compiler.devices_of_host(self.topology)

    def check(self, name: str, pool: PoolSettings) -> None:
        """Verify that each of the pool's slices is on one host. Raises: ConfigError."""
        if pool.hosts.count > 1:
            raise ConfigError(
                f"pools.{name}.hosts: executables are built for slices on one host; each of the "
                f"{pool.hosts.count} compiles its own programs"
            )
