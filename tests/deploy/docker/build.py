"""Builds the last stage of a Dockerfile without Docker, by running its own COPY and RUN
commands."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.deploy.docker.context import Context
from tests.deploy.docker.dockerfile import Dockerfile, Instruction, Stage, filled
from tests.deploy.docker.machine import Machine, Mount, link

FOR_BUILDS = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""Prefixes of variables that configure access to a package index, passed on as an engine would."""


class BuildFailed(Exception):
    """A RUN command failed; the message holds its output."""


@dataclass(frozen=True)
class Image:
    """Result of building a Dockerfile."""

    machine: Machine
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    """Command of the image's HEALTHCHECK."""


@dataclass
class Builder:
    """A build of one Dockerfile."""

    file: Dockerfile
    context: Context
    folder: Path
    """Folder for the stages' root folders."""
    cache: Path
    """Cache folder for RUN's cache mounts, shared by builds."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    tell: Callable[[str], None] = print

    def build(self) -> Image:
        """Build the Dockerfile. Raises: BuildFailed, FileNotFoundError: COPY matches nothing."""
        self._built: dict[str, Image] = {}
        image = None
        for stage in self.file.chain(self.arguments):
            image = self._stage(stage)
        assert image is not None
        return image

    def _stage(self, stage: Stage) -> Image:
        root = self.folder / (stage.name or "last")
        values = {**self.file.arguments, **self.arguments}
        base = self._built.get(filled(stage.base, values))
        image = replace(base, machine=base.machine.copy(root)) if base else _fresh(root)
        build_args: dict[str, str] = {}
        for each in stage.instructions:
            image = self._do(each, image, build_args)
        self._built[stage.name] = image
        return image

    def _do(self, each: Instruction, image: Image, build_args: dict[str, str]) -> Image:
        machine = image.machine
        values = {**build_args, **machine.environment}
        match each.name:
            case "ARG":
                name, _, default = each.text.partition("=")
                build_args[name] = {**self.file.arguments, **self.arguments}.get(name, default)
            case "ENV":
                pairs = (word.split("=", 1) for word in shlex.split(filled(each.text, values)))
                machine = replace(machine, environment={**machine.environment, **dict(pairs)})
            case "WORKDIR":
                (machine.root / each.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
                machine = replace(machine, workdir=each.text)
            case "USER":
                machine = replace(machine, user=int(each.text.split(":")[0]))
            case "COPY":
                self._copy(each, machine, values)
            case "RUN":
                self._run(each, machine, build_args)
            case "ENTRYPOINT":
                image = replace(image, entrypoint=tuple(each.words))
            case "CMD":
                image = replace(image, command=tuple(each.words))
            case "HEALTHCHECK":
                health = Instruction("CMD", {}, each.text.removeprefix("CMD").strip())
                image = replace(image, health=tuple(health.words))
            case "LABEL" | "EXPOSE":
                filled(each.text, values)
            case other:
                raise NotImplementedError(other)
        return replace(image, machine=machine)

    def _copy(self, each: Instruction, machine: Machine, values: Mapping[str, str]) -> None:
        *sources, target = filled(each.text, values).split()
        if "from" in each.flags:
            destination = machine.root / target.lstrip("/")
            source = self._stage_root(each.flags["from"]) / sources[0].lstrip("/")
            shutil.copytree(
                source, destination, symlinks=True, copy_function=link, dirs_exist_ok=True
            )
            return
        self.context.copy(sources, target, machine.root / machine.workdir.lstrip("/"))

    def _stage_root(self, name: str) -> Path:
        if name not in self._built:
            (stage,) = [stage for stage in self.file.stages if stage.name == name]
            self._stage(stage)
        return self._built[name].machine.root

    def _run(self, each: Instruction, machine: Machine, build_args: Mapping[str, str]) -> None:
        self.tell(f"RUN {each.text}")
        outside = {name: v for name, v in os.environ.items() if name.upper().startswith(FOR_BUILDS)}
        environment = {**outside, **build_args, **machine.environment}
        configured = replace(machine, environment=environment)
        code, output = configured.run(
            "/bin/sh", "-c", each.text, mounts=self._mounts(each, machine)
        )
        if code:
            raise BuildFailed(f"RUN {each.text} ended with {code}:\n{output}")

    def _mounts(self, each: Instruction, machine: Machine) -> list[Mount]:
        if "mount" not in each.flags:
            return []
        options = dict(part.split("=", 1) for part in each.flags["mount"].split(","))
        assert options["type"] == "cache", each
        (machine.root / options["target"].lstrip("/")).mkdir(parents=True, exist_ok=True)
        self.cache.mkdir(parents=True, exist_ok=True)
        return [(str(self.cache), options["target"], "rw")]


def _fresh(root: Path) -> Image:
    root.mkdir(parents=True)
    return Image(Machine.base(root))
