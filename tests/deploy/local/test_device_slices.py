"""Device slices assigned to pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.local.device_slices import deal, one_device_each, visible_devices, with_own_page
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings


def pools(**settings: dict[str, Any]) -> dict[str, PoolSettings]:
    return {name: PoolSettings(model="m", **section) for name, section in settings.items()}


def test_each_pool_gets_a_slice_of_its_own() -> None:
    dealt = deal(pools(a={"count": 2, "mesh": {"cfg": 2}}, b={"mesh": {"context": 4}}), 8)
    assert dealt == {"a": [range(0, 2), range(2, 4)], "b": [range(4, 8)]}


def test_pools_without_devices_share_the_rest() -> None:
    dealt = deal(pools(a={"devices": 2}, b={"count": 2}, c={"mesh": {"cfg": -1}}), 8)
    assert dealt == {"a": [range(0, 2)], "b": [range(2, 4), range(4, 6)], "c": [range(6, 8)]}


def test_surplus_pools_share_devices_round_robin() -> None:
    assert deal(pools(a={"count": 3}), 2) == {"a": [range(0, 1), range(1, 2), range(0, 1)]}


def test_virtual_devices_are_each_processes_own() -> None:
    dealt = deal(pools(a={"count": 3, "mesh": {"cfg": 2, "context": 2}}), 8, virtual=True)
    assert dealt == {"a": [range(0, 4), range(4, 8), range(0, 4)]}


def test_pools_of_diffusers_models_take_one_device_each(tmp_path: Path) -> None:
    """The model's backend decides, for `auto` its pipeline's class."""
    index = {"unknown": "AnotherPipeline", "known": "FluxPipeline"}
    for name, kind in index.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text(f'{{"_class_name": "{kind}"}}')
    models = {name: ModelSettings(source=str(tmp_path / name)) for name in index}
    models["chosen"] = models["known"].model_copy(update={"backend": "diffusers"})
    settings = Settings(
        models=models,
        pools={name: PoolSettings(model=name, count=1 + (name == "chosen")) for name in models},
    )
    dealt = deal(one_device_each(settings), 8)
    assert dealt["unknown"] == [range(0, 1)] and dealt["known"] == [range(1, 6)]
    assert dealt["chosen"] == [range(6, 7), range(7, 8)]


def test_too_many_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"a 2 x 4 \+ b 1 x 1 is 9 devices, .* has 8"):
        deal(pools(a={"count": 2, "mesh": {"context": 4}}, b={"devices": 1}), 8)
    with pytest.raises(ConfigError, match="has 2"):
        deal(pools(a={"mesh": {"context": 4}}), 2, virtual=True)


def test_invalid_mesh_axis_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"pools\.a\.mesh: ici axis 'heads' does not exist"):
        deal(pools(a={"mesh": {"heads": 4}}), 8)


def test_a_slice_of_several_hosts_is_not_for_one_machine() -> None:
    with pytest.raises(ConfigError, match=r"pools\.a\.hosts: a slice of 2 hosts is more"):
        deal(pools(a={"hosts": {"count": 2}}), 8)


@pytest.mark.parametrize(
    ("files", "environment", "count"),
    [
        ((), {}, 1),
        (("nvidia0", "nvidia1", "nvidiactl"), {}, 2),
        (("vfio/0", "vfio/1", "vfio/2", "vfio/3", "vfio/vfio"), {}, 4),
        (("accel0",), {}, 1),
        (("nvidia0", "nvidia1"), {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        (("nvidia0", "nvidia1"), {"CUDA_VISIBLE_DEVICES": ""}, 1),
        (("nvidia0", "nvidia1"), {"JAX_PLATFORMS": "cpu"}, 1),
        ((), {"TPU_VISIBLE_CHIPS": "0,1"}, 2),
    ],
)
def test_devices_of_a_machine_are_counted_before_jax_starts(
    tmp_path: Path, files: tuple[str, ...], environment: dict[str, str], count: int
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert visible_devices(environment, tmp_path) == count


def test_each_slice_has_a_page_of_its_own() -> None:
    pools = {"a": PoolSettings(model="m", count=3, metrics_port=9100), "b": PoolSettings(model="m")}
    settings = Settings(pools=pools)
    ports = [with_own_page(settings, "a", i).pools["a"].metrics_port for i in range(3)]
    assert ports == [9100, 9101, 9102]
    assert with_own_page(settings, "b", 2).pools["b"].metrics_port is None
