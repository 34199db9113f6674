"""Settings resolved by the supervisor reach its children unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from deploy.local.environment import for_pools, settings_environment, with_host_devices
from deploy.local.supervisor import plan
from service.settings.settings import Settings, load_settings
from tests.deploy import load_balancers


def load(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings that a process with this environment loads."""
    for name in environment:
        monkeypatch.setenv(name, environment[name])
    return load_settings()


def test_children_inherit_resolved_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    file.touch()
    settings = Settings(
        state_dir=tmp_path,
        redis={"url": "rediss://here", "username": "u", "password": "pß%$", "ca_file": file},
        tenants={"*": {"weight": 2.5}, "a.b": {"device_seconds_per_hour": 0.5}},
        server={"keys": False, "port": 0, "allow_networks": ["10.0.0.0/8"]},
        webhooks={"secret": "whsec_c2VjcmV0"},
        models={"m": {"source": "/weights", "defaults": {"num_inference_steps": 4}}},
        pools={"p": {"model": "m", "count": 2, "batch_sizes": [1, 2]}},
    )
    read = load(settings_environment(settings, {}), monkeypatch)
    assert read == settings
    assert read.webhooks.secret == SecretStr("whsec_c2VjcmV0")


def test_idle_timeout_exceeds_load_balancers(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(Settings(models={"m": {"source": "/weights"}}))
    read = load(settings_environment(planned, {}), monkeypatch)
    assert read.server.idle_s > load_balancers.IDLE_S


def test_settings_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"ATELIER_SERVER__PORT": "81", "ATELIER_SERVER": '{"port": 82}', "HOME": "/home"}
    environment = settings_environment(Settings(server={"port": 83}), base)
    assert environment["HOME"] == "/home"
    assert load(environment, monkeypatch).server.port == 83


def test_webhook_secret_is_withheld_from_pools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The secret reaches pools neither through the front end's environment nor the settings
    file."""
    settings = Settings(webhooks={"secret": "whsec_c2VjcmV0"})
    front = settings_environment(settings, {"ATELIER_WEBHOOKS__SECRET": "whsec_c2VjcmV0"})
    environment = settings_environment(for_pools(settings), front)
    assert not [value for value in environment.values() if "whsec_" in value]
    file = tmp_path / "atelier.toml"
    file.write_text('[webhooks]\nsecret = "whsec_c2VjcmV0"')
    monkeypatch.setenv("ATELIER_CONFIG", str(file))
    assert load(front, monkeypatch).webhooks.secret
    assert load(environment, monkeypatch).webhooks.secret is None


def test_virtual_devices_keep_other_flags() -> None:
    base = {"XLA_FLAGS": "--xla_dump_to=/d --xla_force_host_platform_device_count=2"}
    flags = with_host_devices(base, 8)["XLA_FLAGS"].split()
    assert flags == ["--xla_dump_to=/d", "--xla_force_host_platform_device_count=8"]
