"""Follower: any process of a slice but the first; repeats the leader's launches in order."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np

from models.interface.pipeline import Pipeline, PyTree
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from service.settings.section import ConfigError
from workers.engine.array_framing import Message
from workers.multihost.handshake import Handshake, outlined
from workers.programs.adapter_banks import AdapterBanks
from workers.programs.aot_cache import Executables
from workers.programs.bucket_programs import BucketPrograms, Program, StepKind
from workers.programs.cache import ProgramCache
from workers.programs.compiler import Compiler, signature
from workers.programs.launcher import OneHost
from workers.programs.row_tree import with_leaves
from workers.programs.step_latency import BatchLayout


class Follower:
    """Follower in a slice of several hosts: holds the leader's pipeline, programs and rows.

    Args:
        terms: this process's handshake.
        executables: compiled programs to reuse.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        layout: Layout,
        terms: Handshake,
        executables: Executables | None = None,
    ) -> None:
        compiler = Compiler(pipeline, layout, executables)
        self._terms = terms
        self._weights = compiler.weights
        self._banks = AdapterBanks(pipeline, compiler.weights)
        self._programs = ProgramCache(
            compiler, OneHost(), compiler.batch_layouts(terms.sizes, terms.elastic)
        )
        self._buckets: dict[int, BucketPrograms] = {}
        self.rows: dict[int, PyTree] = {}
        """Rows, and rows' modulations, by the leader's numbers."""
        self._last_step: PyTree = None
        """Result of the last step."""
        self.launched: SimpleQueue[PyTree] = SimpleQueue()
        """Results of launches other than writes, for another thread to wait for."""
        self._commands = {
            "terms": self._agree,
            "beat": lambda message: None,
            "await": self._program,
            "grow": self._grow,
            "encode": self._encode,
            "restore": self._restore,
            "conditions": self._modulations,
            "step": self._step,
            "show": self._show,
            "write": self._write,
        }

    def handle(self, message: Message) -> Message | None:
        """Execute a message of the leader; return the answer if it expects one.

        Raises: ConfigError: the leader has other settings or weights. Any other error means that
        the slice is unusable.
        """
        for number in message.fields["drop"]:
            self.rows.pop(number, None)
            self._buckets.pop(number, None)
        self._commands[message.kind](message)
        return Message("answer") if message.kind == "await" else None

    def close(self) -> None:
        """Cancel the follower's pending compilations."""
        self._programs.close()

    def _agree(self, message: Message) -> None:
        difference = self._terms.difference(message.fields)
        if difference:
            raise ConfigError(difference)

    def _grow(self, message: Message) -> None:
        fields = message.fields
        programs = self._buckets.setdefault(fields["programs"], BucketPrograms(fields["bucket"]))
        self._programs.grow(programs, outlined(fields), fields["larger"])

    def _program(self, message: Message) -> Program:
        """Return the program of a launch, once it is compiled."""
        fields = message.fields
        programs = self._buckets[fields["programs"]]
        match fields["program"]:
            case "encode":
                return programs.encoders[signature(message.arrays)].result()
            case "conditions":
                program = self._step_kind(fields).modulations.result()
                assert program is not None  # the leader has launched it, so it exists
                return program
            case "step":
                return (
                    self._step_kind(fields).programs[BatchLayout(*fields["batch_layout"])].result()
                )
            case _:
                shown = {"decode": programs.decode, "preview": programs.preview}
                return shown[fields["shown"]].result()

    def _encode(self, message: Message) -> None:
        row = self._program(message)(self._weights.common, dict(message.arrays))
        self.rows[message.fields["row"]] = row
        self.launched.put(row)

    def _restore(self, message: Message) -> None:
        row = with_leaves(self.rows[message.fields["row"]], message.arrays)
        self.rows[message.fields["after"]] = row
        self.launched.put(row)

    def _modulations(self, message: Message) -> None:
        fields = message.fields
        program, weights = self._program(message), self._load_weights(self._step_kind(fields))
        modulations = program(weights, self.rows[fields["row"]], dict(message.arrays))
        self.rows[fields["after"]] = modulations
        self.launched.put(modulations)

    def _step(self, message: Message) -> None:
        fields = message.fields
        program, weights = self._program(message), self._load_weights(self._step_kind(fields))
        rows, trees = (
            tuple(self.rows[number] for number in fields[which]) for which in ("rows", "conditions")
        )
        modulations = (trees, np.array(fields["places"], np.int32)) if trees else ()
        states, digests = program(weights, rows, dict(message.arrays), *modulations)
        self.rows.update(zip(fields["after"], states, strict=True))
        self._last_step = digests
        self.launched.put(digests)

    def _write(self, message: Message) -> None:
        """Write adapter pages to the devices in the background.

        No thread waits for this write. The next reader or writer of the bank gets its error.
        """
        fields = message.fields
        self._banks.write(fields["place"], fields["pages"], message.arrays["array"])

    def _step_kind(self, fields: Mapping[str, Any]) -> StepKind:
        return self._buckets[fields["programs"]].step_kinds[StepProgram.parse(fields["phase"])]

    def _load_weights(self, step_kind: StepKind) -> list[Any]:
        """Return the weights of a step kind, loaded onto the device."""
        if step_kind.expert not in (None, self._weights.resident):
            jax.block_until_ready(self._last_step)  # it may still use the weights to unload
        return self._weights.load_expert(step_kind.expert)

    def _show(self, message: Message) -> None:
        row = self.rows[message.fields["row"]]
        self.launched.put(self._program(message)(self._weights.common, row))
