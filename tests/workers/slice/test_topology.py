from __future__ import annotations

import pytest

from workers.slice.topology import PlanError, Topology


@pytest.mark.parametrize(
    ("text", "name", "devices"),
    [
        ("v6e:2x4", "v6e:2x4", 8),
        ("V5P:2x2x2", "v5p:2x2x2", 8),
        ("v7x:2x2x1", "tpu7x:2x2x1", 8),  # two devices a chip
        ("v4:2x2x1", "v4:2x2x1", 8),
        ("h100:4", "h100:4", 4),
    ],
)
def test_number_of_devices_of_a_topology(text: str, name: str, devices: int) -> None:
    topology = Topology.parse(text)
    assert (topology.name, topology.devices) == (name, devices)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("v9:2x4", "'v9:2x4' is not known; there are .*v6e:4x4.*h100:8"),
        ("v6e", "'v6e' is not known"),
        ("v6e:3x5", "of v6e there are 1x1, 2x2, 2x4, 4x4"),
        ("h100:2x4", "of h100 say how many, as in h100:8"),
        ("h100:0", "of h100 say how many"),
    ],
)
def test_another_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(PlanError, match=named):
        Topology.parse(text)
