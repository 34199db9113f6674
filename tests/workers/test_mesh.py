from __future__ import annotations

import jax
import pytest

from workers.mesh import AXES, slices


def test_one_device_a_slice() -> None:
    devices = jax.devices()
    meshes = slices(devices, len(devices))
    assert [mesh.devices.flat[0] for mesh in meshes] == devices
    assert all(dict(mesh.shape) == dict.fromkeys(AXES, 1) for mesh in meshes)


def test_too_few_devices_are_told() -> None:
    count = len(jax.devices()) + 1
    with pytest.raises(ValueError, match=f"{count} mesh slices need {count} devices"):
        slices(jax.devices(), count)
