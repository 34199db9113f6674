"""Processes of one slice hold their settings against the first one's before they load anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.settings import ConfigError, ModelSettings, PoolSettings
from tests.workers.hosts.ends import SILENCE_S, ends
from workers.hosts.followers import Followers
from workers.hosts.link import Link
from workers.hosts.terms import settings_of
from workers.hosts.together import agree

POOL, MODEL = PoolSettings(model="m"), ModelSettings(source="/a")


@pytest.fixture
def slice() -> Iterator[tuple[Followers, Link]]:
    here, there = ends()
    followers, link = Followers([here], SILENCE_S), Link(there, SILENCE_S)
    yield followers, link
    followers.on_loss(lambda error: None)  # the end of a line is no loss any more
    link.close()
    here.close()


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
    slice: tuple[Followers, Link], pool: dict, model: dict, said: str
) -> None:
    followers, link = slice
    agree(followers, settings_of(POOL, MODEL))
    other = settings_of(PoolSettings(model="m", **pool), ModelSettings(source="/b", **model))
    with pytest.raises(ConfigError, match=said):
        agree(link, other)


def test_what_changes_no_program_may_differ(slice: tuple[Followers, Link]) -> None:
    followers, link = slice
    agree(followers, settings_of(POOL, MODEL))
    agree(link, settings_of(PoolSettings(model="m", drain_s=3), ModelSettings(source="/b")))
    agree(None, {})
