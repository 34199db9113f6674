"""`python -m tools.cluster VALUES…`: write overlays of deploy/k8s from files of values.

`--helm` prints the values for the chart, with every model's objective filled in.
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
    """Write overlays or print chart values; return 0, or 78 for invalid values."""
    parser = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    parser.add_argument("values", nargs="+", type=Path, help="files of values")
    parser.add_argument("--helm", action="store_true", help="print values for the chart instead")
    parser.add_argument("--k8s", type=Path, default=K8S, help="manifests (default: %(default)s)")
    args = parser.parse_args()
    if args.helm and len(args.values) > 1:
        parser.error("--helm prints the values of one file")
    for file in args.values:
        try:
            values = filled(read(file))
            if args.helm:
                dumped = values.model_dump(mode="json", exclude_defaults=True)
                sys.stdout.write(plain(dumped))
            else:
                print(f"kubectl apply --kustomize {write(values, file.stem, args.k8s)}")
        except ValuesError as error:
            message = str(error)
            print(message if str(file) in message else f"{file}: {message}", file=sys.stderr)
            return 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
