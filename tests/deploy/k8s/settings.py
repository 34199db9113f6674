"""Settings that a pod of the manifests starts with."""

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
"""Files of the Secret, which must exist when settings load."""


def settings_of(objects: tuple[Object, ...], pods: Pods) -> Settings:
    """Load settings as the pod does. Raises: ConfigError: the settings are invalid."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in _moved(environment(objects, pods), objects, pods, Path(folder)):
            patch.setenv(name, value)
        return load_settings()


def _moved(
    values: dict[str, str], objects: tuple[Object, ...], pods: Pods, folder: Path
) -> Iterator[tuple[str, str]]:
    """Yield Atelier's variables, with the pod's files moved to a folder."""
    for file in FILES:
        (folder / file).write_text("a secret")
    config = folder / "atelier.toml"
    config.write_text(toml_of(objects, pods, values[CONFIG_VARIABLE]))
    for name, value in values.items():
        if name.startswith("ATELIER_"):
            yield name, value.replace(SECRETS, str(folder))
    yield CONFIG_VARIABLE, str(config)


def toml_of(objects: tuple[Object, ...], pods: Pods, path: str) -> str:
    """Content of a file that the pod mounts from a ConfigMap."""
    folder, _, name = path.rpartition("/")
    (mount,) = (entry for entry in pods.container["volumeMounts"] if entry["mountPath"] == folder)
    (volume,) = (source for source in pods.spec["volumes"] if source["name"] == mount["name"])
    config = named(objects, "ConfigMap", volume["configMap"]["name"], pods.namespace)
    return str(config["data"][name])


def pool_of(settings: Settings, pods: Pods) -> PoolSettings:
    """The pool that the pod's command names."""
    return settings.pools[pods.container["command"][-1]]
