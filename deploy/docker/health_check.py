"""Health check of a container over HTTP, without curl.

python -m deploy.docker.health_check http://127.0.0.1:8000/healthz
"""

from __future__ import annotations

import sys
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

TIMEOUT_S = 4.0
"""Time limit, shorter than that of a container's health check."""
WORDS = 300
"""Maximum printed characters of an error; `docker inspect` stores them."""


def main(arguments: list[str]) -> int:
    """Return 0 if the address responds with success; otherwise print the error and return 1."""
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
