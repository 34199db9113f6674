"""Classification of addresses: reachable from this machine only, or by others."""

from __future__ import annotations

import socket

import httpx
import pytest

from service.auth.exposure import address_of, local_url, reached_at, wants_keys
from service.settings.loopback import is_local
from service.settings.server import ServerSettings

LOCAL = ["127.0.0.1", "127.9.9.9", "127.1", "localhost", "::1", "::ffff:127.0.0.1"]
OPEN = ["0.0.0.0", "0", "::", "", "192.0.2.1", "10.0.0.1", "fe80::1", "nowhere.invalid", "a" * 300]
OPEN += ["::ffff:0.0.0.0", "::ffff:10.0.0.1"]


@pytest.mark.parametrize("address", LOCAL)
def test_loopback_needs_no_keys(address: str) -> None:
    assert is_local(address)
    assert not wants_keys(ServerSettings(), address)
    assert wants_keys(ServerSettings(keys=True), address)


@pytest.mark.parametrize("address", OPEN)
def test_others_too(address: str) -> None:
    assert not is_local(address)
    assert wants_keys(ServerSettings(), address)
    assert not wants_keys(ServerSettings(keys=False), address)


@pytest.mark.parametrize("addresses", [["127.0.0.1", "10.0.0.1"], ["10.0.0.1", "127.0.0.1"]])
def test_a_name_with_an_address_that_others_reach(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (number, 0)) for number in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)
    assert not is_local("both.example")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("localhost", "http://localhost:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
    ],
)
def test_local_url_of_each_address(host: str, url: str) -> None:
    assert local_url(host, 80) == url
    httpx.URL(url)


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_a_socket_that_listens_already(host: str, local: bool) -> None:
    with socket.create_server((host, 0)) as listener:
        assert is_local(address_of(listener)) == local


def test_a_socket_in_a_folder() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        assert is_local(address_of(listener))


def test_a_container_is_reached_where_its_port_is_published() -> None:
    inside = ServerSettings(host="0.0.0.0", published_at="127.0.0.1")
    with socket.create_server(("0.0.0.0", 0)) as listener:
        assert reached_at(inside, listener) == "127.0.0.1"
        assert reached_at(ServerSettings(), listener) == "0.0.0.0"
    assert reached_at(inside.model_copy(update={"published_at": "0.0.0.0"}), None) == "0.0.0.0"
    assert reached_at(ServerSettings(), None) == "127.0.0.1"
