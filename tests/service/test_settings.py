"""Loading of settings from file and environment; an error names the wrong key."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.loading.sources import ImagePromptSource
from service.settings.section import ConfigError
from service.settings.settings import load_settings
from service.settings.tenants import classes_of
from workers.loading.model import image_prompts_of


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings file and the runner's own ATELIER_ variables."""
    import os

    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ATELIER_")]:
        monkeypatch.delenv(name)


def write(text: str) -> None:
    Path("atelier.toml").write_text(text)


def test_defaults_without_any_settings(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.server.port == 8000
    assert settings.store_url == str(tmp_path / ".atelier" / "outputs")


def test_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write('[server]\nport = 1\nhost = "0.0.0.0"\n[redis]\nurl = "redis://file"\n')
    monkeypatch.setenv("ATELIER_SERVER__PORT", "2")
    settings = load_settings(redis={"url": "redis://given"})
    assert (settings.server.port, settings.server.host) == (2, "0.0.0.0")
    assert settings.redis.url == "redis://given"


def test_a_file_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[models.flux]\nsource = "/weights"\n')
    monkeypatch.setenv("ATELIER_CONFIG", str(other))
    assert load_settings().models["flux"].source == "/weights"


def test_an_empty_region_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_USAGE__REGION", "")
    assert load_settings().usage.region is None


def test_a_network_for_image_prompts_is_a_source_or_a_table() -> None:
    write(
        '[models.flux]\nsource = "/weights"\n'
        '[models.flux.image_prompts]\nredux = "/redux"\n'
        'other = {source = "o/r", file = "r.safetensors", encoder = "/siglip"}\n'
    )
    networks = load_settings().models["flux"].image_prompts
    assert networks["redux"].model_dump(exclude_none=True) == {"source": "/redux"}
    assert networks["other"].encoder == "/siglip"
    assert image_prompts_of(load_settings().models["flux"]) == {
        "redux": ImagePromptSource("/redux"),
        "other": ImagePromptSource("o/r", "r.safetensors", "/siglip"),
    }


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[servr]\nport = 1", "servr: unknown key"),
        ("[server]\nprt = 1", "server.prt: unknown key"),
        ('[server]\nport = "many"', "server.port: "),
        ("[limits]\nmax_steps = 0", "limits.max_steps: "),
        ("[models.flux]\ndtype = 'float32'", "models.flux.source: "),
        ('[server]\nallow_networks = ["here"]', "server.allow_networks.0"),
        ("[server\n", "atelier.toml: "),
        ("[redis]\npassword = 'p'", "redis: Value error, username and password require url"),
        (
            "[redis]\nurl = 'redis://:p@h'\npassword = 'p'",
            "redis: Value error, url also contains a password",
        ),
        ("[redis]\nurl = 'redis://h'\nnext_password = 'p'", "next_password requires password"),
        ("[redis]\nurl = 'redis://h'\nsentinel_password = 'p'", "require a url redis+sentinel://"),
        ("[redis]\nurl = 'redis+sentinel://a,b:2'", "must be like redis+sentinel://HOST"),
        ("[redis]\nurl = 'redis+sentinel://a:x/n'", "must be like redis+sentinel://HOST"),
        ("[redis]\nurl = 'redis+sentinel://a,/n'", "must be like redis+sentinel://HOST"),
        ("[redis]\nurl = 'redis+sentinel://a/n?dbb=1'", "must be like redis+sentinel://HOST"),
        ("[redis]\nurl = 'redis://h'\nca_file = 'atelier.toml'", "rediss://"),
        ("[redis]\nurl = 'rediss://h'\nca_file = 'nowhere.pem'", "redis.ca_file: "),
        ("[redis]\nurl = 'rediss://h'\ncert_file = 'atelier.toml'", "go together"),
        ("[redis]\nurl = 'rediss://h'\ncheck_name = false", "check_name = false requires ca_file"),
        (
            "[redis]\nurl = 'redis://h'\npassword = 'p'\npassword_file = 'atelier.toml'",
            "exclude each other",
        ),
        ("[tenants.a]\nweight = 0", "tenants.a.weight: "),
        ("[tenants.a]\nweight = inf", "tenants.a.weight: "),
        ("[tenants.a]\nqueued = 1", "tenants.a.queued: unknown key"),
        *(
            (f"[models.'{name}']\nsource = 'x'", f"'{name}' has the part")
            for name in ("/a", "a/", "a//b", "a/../b", "a/requests/b", "a/predictions")
        ),
        ('[models."a\\n"]\nsource = "x"', "printable"),
        ("[aliases]\n'a//b' = 'x'", "'a//b' has the part ''"),
        ("[aliases]\na = 'b'\nb = 'c'", "aliases.a: 'b' is an alias; name a model"),
        ("[aliases]\na = 'b'\n[models.a]\nsource = 'x'", "aliases.a: a model has this name"),
        ("[server]\nkeys = 'yes please'", "server.keys"),
        ("[pools.a]\nmodel = 'm'\nhosts = {count = 2, index = 0}", "go together"),
        (
            "[models.a]\nsource = 'x'\nbatching = 'fast'\nexact_rows = 2",
            'models.a: Value error, exact_rows requires batching = "exact"',
        ),
        ("[tenants.a]\ndevice_seconds_per_hour = inf", "tenants.a.device_seconds_per_hour: "),
        ("[tenants.a]\nweight = inf", "tenants.a.weight: "),
        (
            "[pools.a]\nmodel = 'm'\nhosts = {count = 2, coordinator = 'h:1', index = 2}",
            "pools.a.hosts: Value error, index 2 is not one of 2",
        ),
    ],
)
def test_a_wrong_file_names_the_key(text: str, key: str) -> None:
    write(text)
    with pytest.raises(ConfigError) as error:
        load_settings()
    assert key in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("ATELIER_SERVR__PORT", "1", "servr: unknown key"),
        ("ATELIER_SERVER__PRT", "1", "server.prt: unknown key"),
        ("ATELIER_QUEUE__LEASE_S", "soon", "queue.lease_s: "),
        ("ATELIER_LOG_LEVEL", "loud", "log_level: "),
        ("ATELIER_SERVER", "{", "server"),
        ("ATELIER_CONFIG", "missing.toml", "ATELIER_CONFIG: "),
    ],
)
def test_a_wrong_variable_names_the_key(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, key: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as error:
        load_settings()
    assert key in str(error.value)


def test_client_key_is_not_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_API_KEY", "atl_1_2")
    assert load_settings().server.keys == "auto"


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATELIER_REDIS__URL", "rediss://host")
    monkeypatch.setenv("ATELIER_REDIS__PASSWORD", "staple")
    settings = load_settings()
    assert settings.redis.password is not None
    assert "staple" not in repr(settings) and "staple" not in settings.model_dump_json()


def test_every_wrong_key_is_named_at_once() -> None:
    write("a = 1\nb = 2\n[limits]\nmax_side_px = -1\n")
    with pytest.raises(ConfigError) as error:
        load_settings()
    assert all(key in str(error.value) for key in ("a: ", "b: ", "limits.max_side_px: "))


def test_classes_of_tenants_are_those_of_the_settings() -> None:
    assert classes_of(load_settings().tenants.values()) == ["default"]
    tenants = {"acme": {"metrics_class": "gold"}, "b": {"metrics_class": "gold"}, "c": {}}
    assert classes_of(load_settings(tenants=tenants).tenants.values()) == ["default", "gold"]
    for wrong in ("", "Gold", "a b", "x" * 33, 'a"b'):
        with pytest.raises(ConfigError, match=r"tenants\.acme\.metrics_class"):
            load_settings(tenants={"acme": {"metrics_class": wrong}})
