"""Comparison of a slice's settings and software with the first process's, before anything is
loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from tests.workers.multihost.connection_pair import SILENCE_S, ends
from workers.multihost.followers import Followers
from workers.multihost.handshake import settings_of
from workers.multihost.leader_link import LeaderLink
from workers.multihost.session import agree

POOL = PoolSettings(model="m")


@pytest.fixture
def slice() -> Iterator[tuple[Followers, LeaderLink]]:
    first, second = ends()
    followers, link = Followers([first], SILENCE_S), LeaderLink(second, SILENCE_S)
    yield followers, link
    followers.on_loss(lambda error: None)  # a closed connection no longer counts as a loss
    link.close()
    first.close()


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    """Write two folders with the same files, and one with other files."""
    texts = {"here": "{}", "there": "{}", "others": "[]"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text(text)
    return {name: str(tmp_path / name) for name in texts}


@pytest.mark.parametrize(
    ("pool", "model", "message"),
    [
        ({}, {"dtype": "float32"}, "models.dtype is float32 here and bfloat16 in the first"),
        ({}, {"vae_tiling": True}, "models.vae_tiling is True here and None in the first"),
        ({}, {"swap_experts": True}, "models.swap_experts"),
        ({"precision": "highest"}, {}, "pools.precision is highest here and default in the first"),
        ({"mesh": {"ici": {"cfg": 2}}}, {}, "pools.mesh"),
        ({}, {"source": "others"}, r"^fingerprint of the weights is \w+ here and \w+ in"),
    ],
)
def test_a_process_with_other_settings_refuses_before_it_loads(
    slice: tuple[Followers, LeaderLink],
    sources: dict[str, str],
    pool: dict,
    model: dict,
    message: str,
) -> None:
    followers, link = slice
    agree(followers, settings_of(POOL, ModelSettings(source=sources["there"])))
    other = ModelSettings(**{**model, "source": sources[model.get("source", "here")]})
    with pytest.raises(ConfigError, match=message):
        agree(link, settings_of(PoolSettings(model="m", **pool), other))


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("Python", "3.9.1", "Python is 3.9.1 here and 3.[0-9.]+ in the first process"),
        ("package jax", "0.1", "package jax is 0.1 here and [0-9.]+ in the first process"),
        ("package tokamax", "0.1", "package tokamax is 0.1 here and None in the first process"),
        ("package flax", None, "package flax is None here and [0-9.]+ in the first process"),
        ("code", "abc", "code is abc here and"),
    ],
)
def test_a_process_of_other_software_refuses_before_it_loads(
    slice: tuple[Followers, LeaderLink],
    sources: dict[str, str],
    name: str,
    version: Any,
    message: str,
) -> None:
    followers, link = slice
    ours = settings_of(POOL, ModelSettings(source=sources["here"]))
    agree(followers, ours)
    with pytest.raises(ConfigError, match=f"^{message}"):
        agree(link, {**ours, name: version})


def test_settings_without_effect_on_programs_may_differ(
    slice: tuple[Followers, LeaderLink], sources: dict[str, str]
) -> None:
    followers, link = slice
    agree(followers, settings_of(POOL, ModelSettings(source=sources["there"])))
    other = PoolSettings(model="m", drain_s=3)
    agree(link, settings_of(other, ModelSettings(source=sources["here"])))
