"""Detection of addresses that only this machine can reach."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address


def is_local(address: str) -> bool:
    """Return whether a host name or IP address resolves only to loopback addresses."""
    try:
        entries = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # no such name; the bind fails with the error
        return False
    return bool(address) and all(_is_loopback(str(entry[4][0])) for entry in entries)


def names_loopback(host: str) -> bool:
    """Check without a lookup that a URL's host is this machine: `localhost` or its addresses."""
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761, section 6.3
        return True
    try:
        return _is_loopback(host)
    except ValueError:
        return False


def _is_loopback(number: str) -> bool:
    address = ip_address(number)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped.is_loopback  # Python does this itself from 3.13 on
    return address.is_loopback
