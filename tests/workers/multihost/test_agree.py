"""Processes of one slice hold their settings against the first one's before they load anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from tests.workers.multihost.ends import SILENCE_S, ends
from workers.multihost.followers import Followers
from workers.multihost.handshake import settings_of
from workers.multihost.leader_link import LeaderLink
from workers.multihost.session import agree

POOL = PoolSettings(model="m")


@pytest.fixture
def slice() -> Iterator[tuple[Followers, LeaderLink]]:
    here, there = ends()
    followers, link = Followers([here], SILENCE_S), LeaderLink(there, SILENCE_S)
    yield followers, link
    followers.on_loss(lambda error: None)  # the end of a line is no loss any more
    link.close()
    here.close()


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    """Of two folders with the same files, and of one with others."""
    texts = {"here": "{}", "there": "{}", "others": "[]"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text(text)
    return {name: str(tmp_path / name) for name in texts}


@pytest.mark.parametrize(
    ("pool", "model", "said"),
    [
        ({}, {"dtype": "float32"}, "models.dtype is float32 here and bfloat16 in the first"),
        ({}, {"vae_tiling": True}, "models.vae_tiling is True here and None in the first"),
        ({}, {"swap_experts": True}, "models.swap_experts"),
        ({"precision": "highest"}, {}, "pools.precision is highest here and default in the first"),
        ({"mesh": {"ici": {"cfg": 2}}}, {}, "pools.mesh"),
    ],
)
def test_a_process_with_other_settings_refuses_before_it_loads(
    slice: tuple[Followers, LeaderLink], sources: dict[str, str], pool: dict, model: dict, said: str
) -> None:
    followers, link = slice
    agree(followers, settings_of(POOL, ModelSettings(source=sources["there"])))
    other = ModelSettings(source=sources["here"], **model)
    with pytest.raises(ConfigError, match=said):
        agree(link, settings_of(PoolSettings(model="m", **pool), other))


def test_a_process_with_other_weights_refuses_before_it_loads(
    slice: tuple[Followers, LeaderLink], sources: dict[str, str]
) -> None:
    followers, link = slice
    agree(followers, settings_of(POOL, ModelSettings(source=sources["there"])))
    with pytest.raises(ConfigError, match=r"^fingerprint of the weights is \w+ here and \w+ in"):
        agree(link, settings_of(POOL, ModelSettings(source=sources["others"])))


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("Python", "3.9.1", "Python is 3.9.1 here and 3.[0-9.]+ in the first process"),
        ("package jax", "0.1", "package jax is 0.1 here and [0-9.]+ in the first process"),
        ("package tokamax", "0.1", "package tokamax is 0.1 here and None in the first process"),
        ("package flax", None, "package flax is None here and [0-9.]+ in the first process"),
        ("code", "abc", "code is abc here and"),
    ],
)
def test_a_process_of_other_software_refuses_before_it_loads(
    slice: tuple[Followers, LeaderLink], sources: dict[str, str], name: str, version: Any, said: str
) -> None:
    followers, link = slice
    ours = settings_of(POOL, ModelSettings(source=sources["here"]))
    agree(followers, ours)
    with pytest.raises(ConfigError, match=f"^{said}"):
        agree(link, {**ours, name: version})


def test_what_changes_no_program_may_differ(
    slice: tuple[Followers, LeaderLink], sources: dict[str, str]
) -> None:
    followers, link = slice
    agree(followers, settings_of(POOL, ModelSettings(source=sources["there"])))
    other = PoolSettings(model="m", drain_s=3)
    agree(link, settings_of(other, ModelSettings(source=sources["here"])))
