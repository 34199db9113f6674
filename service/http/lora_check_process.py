"""Program of a child process that checks an adapter's file, confined in memory and processor time.

It runs by path and isolated (`python -I`): it imports nothing from its working directory, and has
no settings, secrets or sockets. The file is an open descriptor; the model's layers arrive on
standard input. The result is a line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))  # isolated mode omits the folder of our packages

from models.adapters.files.adapter import AdapterError
from models.adapters.files.formats import inspect
from models.adapters.files.name_table import Names, unpacked
from models.spec.lora import Expert
from service.confined.confinement import refuse_calls, refuse_files

SPARE_BYTES = 512 * 2**20
"""Memory in addition to the file: arrays are read one at a time."""
COPIES = 4
"""Copies of a file that is a single array: mapped, read, and in float32, which is up to two."""


class OpenFile(type(Path())):  # type: ignore[misc]
    """Path of an open descriptor, with a name for messages to the client."""

    @property
    def name(self) -> str:
        """Name of the adapter's file in error messages."""
        return "the file"


def main(descriptor: int, expert: Expert | None, cpu_s: int, max_rank: int) -> None:
    """Check the file of an uploaded adapter, and print the result for the parent process."""
    confine(os.fstat(descriptor).st_size, cpu_s)
    refuse_files(descriptor)
    refuse_calls()
    layers = sys.stdin.read()
    file = OpenFile(f"/dev/fd/{descriptor}")
    print(json.dumps(inspect_file(file, layers, expert, max_rank)))


def confine(size: int, cpu_s: int) -> None:
    """Limit the check process's memory and processor time, and forbid writing files."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + SPARE_BYTES + COPIES * size
    bounds = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CPU: cpu_s,
    }
    for kind, limit in bounds.items():
        resource.setrlimit(kind, (limit, limit))


def inspect_file(file: Path, layers: str, expert: Expert | None, max_rank: int) -> dict[str, Any]:
    """Return an adapter file's properties, or the invalid `field` and `error`."""
    field = "expert"
    try:
        names = names_of(layers)
        names.of(expert)
        field = "file"
        adapter = inspect(file, names, expert, max_rank)
    except AdapterError as error:
        return {"field": field, "error": str(error)}
    except MemoryError:
        return {"field": field, "error": "takes too much memory to read; is it an adapter?"}
    return {
        "rank": adapter.rank,
        "networks": adapter.networks,
        "has_magnitudes": adapter.has_magnitudes,
        "is_reduced": adapter.is_reduced,
        "warnings": adapter.warnings,
        "vectors": adapter.vectors,
        "embeddings": dict(adapter.embeddings),
    }


def names_of(layers: str) -> Names:
    """Read the names of a model's layers, as `ModelLayers.to_json` writes them."""
    packed, hidden_sizes = json.loads(layers)
    names = unpacked(packed) if packed else Names(())
    return replace(names, hidden_sizes=hidden_sizes)


if __name__ == "__main__":
    main(int(sys.argv[1]), cast("Expert", sys.argv[2]) or None, *map(int, sys.argv[3:]))
