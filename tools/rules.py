"""Kubernetes manifests of the Prometheus rules in `deploy/prometheus/rules`.

`python -m tools.rules > deploy/prometheus/kubernetes/rules.yaml` (`make rules`) writes them for
Google's Managed Service for Prometheus. `python -m tools.rules PrometheusRule` prints them for the
Prometheus Operator. A test compares the file with the rules.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

RULES = tuple(
    sorted((Path(__file__).parents[1] / "deploy" / "prometheus" / "rules").glob("*.yaml"))
)
API = {"Rules": "monitoring.googleapis.com/v1", "PrometheusRule": "monitoring.coreos.com/v1"}
"""API version of each kind."""
EVERY = "30s"
"""Evaluation interval, which Google's kind requires."""
HEAD = """\
# Written by `make rules` from deploy/prometheus/rules.
apiVersion: {api}
kind: {kind}
metadata:
  name: atelier
  labels:
    app.kubernetes.io/name: atelier
    app.kubernetes.io/part-of: atelier
spec:
  groups:
"""
GROUP = re.compile(r"^( +)- name: .+\n", re.MULTILINE)


def manifest(kind: str) -> str:
    """Return a manifest with all groups and their comments."""
    return HEAD.format(kind=kind, api=API[kind]) + "".join(map(_groups, RULES))


def _groups(file: Path) -> str:
    """Return the groups of one file, indented below `spec`."""
    _, _, body = file.read_text().partition("\ngroups:\n")
    timed = GROUP.sub(rf"\g<0>\1  interval: {EVERY}\n", body)
    return re.sub(r"^(?=.)", "  ", timed, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.stdout.write(manifest(sys.argv[1] if len(sys.argv) > 1 else "Rules"))
