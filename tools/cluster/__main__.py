"""`python -m tools.cluster VALUES…`: overlays of deploy/k8s from files of values.

`--helm` prints the values with every share of work filled in, as the chart wants them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.cluster.merging import plain
from tools.cluster.overlay import K8S, write
from tools.cluster.shares import filled
from tools.cluster.values import ValuesError, read


def main() -> int:
    """Return 0, or 78 for values that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    parser.add_argument("values", nargs="+", type=Path, help="files of values")
    parser.add_argument("--helm", action="store_true", help="print values for the chart instead")
    parser.add_argument("--k8s", type=Path, default=K8S, help="manifests (default: %(default)s)")
    asked = parser.parse_args()
    if asked.helm and len(asked.values) > 1:
        parser.error("--helm prints the values of one file")
    for file in asked.values:
        try:
            values = filled(read(file))
            if asked.helm:
                told = values.model_dump(mode="json", exclude_defaults=True)
                sys.stdout.write(plain(told))
            else:
                print(f"kubectl apply --kustomize {write(values, file.stem, asked.k8s)}")
        except ValuesError as error:
            said = str(error)
            print(said if str(file) in said else f"{file}: {said}", file=sys.stderr)
            return 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
