"""Files for a machine with a GPU: the project without what no stage reads, and the wheels.

    python -m lab.bench.gpu.pack                   # the sum, by folder
    python -m lab.bench.gpu.pack --archive FILE    # also writes them as a tar file
    python -m lab.bench.gpu.pack --patterns | git sparse-checkout set --no-cone --stdin

The last line leaves the same files in a checkout that is sent as a whole; `git sparse-checkout
disable` brings the others back.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.bench.gpu.wheels import FOLDER

LIMIT_BYTES = 64 * 2**20
"""Limit of all files together, uncompressed."""
EXCLUDED = (
    "docs", "examples", "tests", "lab/tests", "lab/load", "lab/demo", "lab/tpu", "lab/watching",
    "deploy/docker", "deploy/grafana", "deploy/helm", "deploy/k8s", "deploy/prometheus",
    "deploy/packages.lock", "models/demo/controls", "models/demo/edits", "models/demo/loras",
    "openapi.yaml", "CHANGELOG.md",
)  # fmt: skip
"""Tracked paths that no stage reads."""

Sizes = dict[Path, int]


class TooLarge(Exception):
    """The files exceed the limit; the message names the largest."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, default=FOLDER)
    parser.add_argument("--archive", type=Path, metavar="FILE")
    parser.add_argument("--patterns", action="store_true", help="of git sparse-checkout")
    args = parser.parse_args(words)
    if args.patterns:
        print("\n".join(("/*", *(f"!/{path}" for path in EXCLUDED))))
        return 0
    files = {**sizes(tracked()), **sizes(sorted(args.wheels.glob("*.whl")))}
    for line in table(files):
        print(line)
    try:
        check(files)
    except TooLarge as error:
        sys.exit(str(error))
    if args.archive:
        archived(files, args.archive)
    return 0


def tracked() -> list[Path]:
    """Tracked files of the project that the stages may read."""
    pathspecs = [f":!{path}" for path in EXCLUDED]
    command = ["git", "ls-files", "-z", "--", ".", *pathspecs]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return [Path(name) for name in process.stdout.split("\0") if name]


def sizes(paths: Iterable[Path]) -> Sizes:
    """Bytes of each file; files removed from the checkout are omitted."""
    return {path: path.stat().st_size for path in paths if path.is_file()}


def check(files: Sizes, limit_bytes: int = LIMIT_BYTES) -> None:
    """Check the sum. Raises: TooLarge."""
    total = sum(files.values())
    if total > limit_bytes:
        largest = sorted(files, key=lambda path: -files[path])[:3]
        raise TooLarge(
            f"{total / 2**20:.1f} MiB would travel and {limit_bytes / 2**20:.0f} may: exclude paths"
            " that no stage reads (EXCLUDED), or wheels that the machine has (NEEDED);"
            f" the largest files are {', '.join(map(str, largest))}"
        )


def table(files: Sizes) -> list[str]:
    """Lines with MiB by folder, the largest first, and the sum."""
    folders: Counter[str] = Counter()
    for path, size in files.items():
        folders["/".join(path.parts[:-1][:3]) or "."] += size
    rows = [*folders.most_common(8), ("all of it", sum(folders.values()))]
    return [f"{size / 2**20:6.1f} MiB  {name}" for name, size in rows]


def archived(files: Iterable[Path], archive: Path) -> None:
    """Write the files to a gzipped tar file."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for path in files:
            tar.add(path)
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    sys.exit(main())
