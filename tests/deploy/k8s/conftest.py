"""What the tests of the manifests share."""

from __future__ import annotations

import pytest

from tests.deploy.k8s.rendering import K8S, OVERLAYS, Object, edited, overlay, rendered

WEIGHTS = "- ../../components/weights-gcs-fuse"


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> tuple[Object, ...]:
    """Of each overlay."""
    return overlay(request.param)


@pytest.fixture(scope="session")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Object, ...]]:
    """An overlay with each of the components that none has by itself."""
    lines = {
        "weights-hyperdisk-ml": ["- ../../components/weights-hyperdisk-ml"],
        "weights-pvc": ["- ../../components/weights-pvc"],
        "memorystore": [WEIGHTS, "- ../../components/memorystore"],
        "tracing": [WEIGHTS, "- ../../components/tracing"],
    }
    return {
        name: edited(tmp_path_factory.mktemp(name), "gke-tpu-v6e", WEIGHTS, *with_it)
        for name, with_it in lines.items()
    }


@pytest.fixture(scope="session")
def every_object(variants: dict[str, tuple[Object, ...]]) -> list[Object]:
    """Those of all overlays and variants, and of the base by itself."""
    found = [one for name in OVERLAYS for one in overlay(name)]
    found += [one for variant in variants.values() for one in variant]
    return [*found, *rendered(K8S / "base")]
