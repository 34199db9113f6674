"""Health check of an address: what containers ask of themselves, without curl.

python -m deploy.docker.health_check http://127.0.0.1:8000/healthz
"""

from __future__ import annotations

import sys
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

TIMEOUT_S = 4.0
"""Time limit, less than a container's health check gets."""
WORDS = 300
"""Characters of an answer that are told: `docker inspect` keeps them."""


def main(arguments: list[str]) -> int:
    """0 where the address answers with success; else 1, and why not on standard output."""
    (url,) = arguments
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=TIMEOUT_S) as answer:
            answer.read()
    except HTTPError as error:
        print(f"{error.code}: {error.read(WORDS).decode(errors='replace')}")
        return 1
    except (OSError, HTTPException) as error:
        print(f"{url}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
