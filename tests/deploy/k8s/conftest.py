"""Fixtures shared by tests of the manifests."""

from __future__ import annotations

import pytest

from tests.deploy.k8s.rendering import K8S, OVERLAYS, Object, copied, edited, overlay, rendered
from tests.deploy.k8s.values import ALL_WAYS
from tools.cluster.overlay import write

WEIGHTS = "- ../../components/weights-gcs-fuse\n"
BY_NAMESPACE = "transformers:\n- ../../components/weights-hyperdisk-ml/by-namespace\n"
VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "weights-hyperdisk-ml": (
        (WEIGHTS, "- ../../components/weights-hyperdisk-ml\n"),
        ("components:\n", f"{BY_NAMESPACE}components:\n"),
    ),
    "weights-pvc": ((WEIGHTS, "- ../../components/weights-pvc\n"),),
    "memorystore": ((WEIGHTS, f"{WEIGHTS}- ../../components/memorystore\n"),),
    "redis-sentinel": ((WEIGHTS, f"{WEIGHTS}- ../../components/redis-sentinel\n"),),
    "redis-external": ((WEIGHTS, f"{WEIGHTS}- ../../components/redis-external\n"),),
    "tracing": ((WEIGHTS, f"{WEIGHTS}- ../../components/tracing\n"),),
}
"""Edits of an overlay, by the component that they add."""
V6E = "gke-tpu-v6e"


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> tuple[Object, ...]:
    """Objects of each overlay."""
    return overlay(request.param)


@pytest.fixture(scope="session")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Object, ...]]:
    """Overlays with each component that no overlay has by itself; -root overlays build on
    others."""
    folder = tmp_path_factory.mktemp
    result = {name: edited(folder(name), V6E, *edits) for name, edits in VARIANTS.items()}
    for name in ("weights-hyperdisk-ml", "memorystore", "redis-sentinel"):
        result[f"{name}-root"] = edited(folder(name), f"{V6E}-root", *VARIANTS[name], of=V6E)
    result["values"] = rendered(write(ALL_WAYS, "values", copied(folder("values"))))
    for name in ("gke-tpu-multihost", "gke-tpu-v5e-spot"):
        edit = (V6E, name)
        result[f"{name}-root"] = edited(folder(name), f"{V6E}-root", edit)
    return result


@pytest.fixture(scope="session")
def every_object(variants: dict[str, tuple[Object, ...]]) -> list[Object]:
    """Objects of all overlays and variants, and of the base."""
    result = [item for name in OVERLAYS for item in overlay(name)]
    result += [item for variant in variants.values() for item in variant]
    return [*result, *rendered(K8S / "base")]
