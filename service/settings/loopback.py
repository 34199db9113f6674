"""Addresses that only this machine reaches."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address


def is_local(address: str) -> bool:
    """Return whether only this machine reaches that address, a number or a name."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # no such name; who would listen there says so
        return False
    return bool(address) and all(_is_loopback(str(entry[4][0])) for entry in found)


def _is_loopback(number: str) -> bool:
    address = ip_address(number)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped.is_loopback  # which Python sees by itself from 3.13 on
    return address.is_loopback
