"""The settings that a pod of the manifests starts with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from service.settings.pools import PoolSettings
from service.settings.settings import CONFIG_VARIABLE, Settings, load_settings
from tests.deploy.k8s.objects import Pods, environment, named
from tests.deploy.k8s.rendering import Object

SECRETS = "/run/secrets/atelier-redis"
FILES = ("password", "ca.pem")
"""Of that Secret: settings want them to be there."""


def settings_of(objects: tuple[Object, ...], pods: Pods) -> Settings:
    """By the house's own reading of environment and file. Raises: ConfigError: it cannot start."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in _moved(environment(objects, pods), objects, pods, Path(folder)):
            patch.setenv(name, value)
        return load_settings()


def _moved(
    values: dict[str, str], objects: tuple[Object, ...], pods: Pods, folder: Path
) -> Iterator[tuple[str, str]]:
    """Atelier's variables, with the pod's files in a folder that is there."""
    for file in FILES:
        (folder / file).write_text("a secret")
    config = folder / "atelier.toml"
    config.write_text(toml_of(objects, pods, values[CONFIG_VARIABLE]))
    for name, value in values.items():
        if name.startswith("ATELIER_"):
            yield name, value.replace(SECRETS, str(folder))
    yield CONFIG_VARIABLE, str(config)


def toml_of(objects: tuple[Object, ...], pods: Pods, path: str) -> str:
    """What the pod finds at a path that a ConfigMap is mounted at."""
    folder, _, name = path.rpartition("/")
    (mount,) = (m for m in pods.container["volumeMounts"] if m["mountPath"] == folder)
    (volume,) = (v for v in pods.spec["volumes"] if v["name"] == mount["name"])
    found = named(objects, "ConfigMap", volume["configMap"]["name"], pods.namespace)
    return str(found["data"][name])


def pool_of(settings: Settings, pods: Pods) -> PoolSettings:
    """The one that its command names."""
    return settings.pools[pods.container["command"][-1]]
