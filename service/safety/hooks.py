"""Safety hooks: an HTTP service, or a Python function of the operator."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx

from service.safety.safety_check import SafetyCheck
from service.safety.verdict import NoVerdict, Verdict, verdict_of, verdict_of_json
from service.settings.safety import SafetySettings
from service.settings.section import ConfigError

MAX_ANSWER_BYTES = 2**16


class HttpHook:
    """Safety hook that sends a POST. Only status 200 with a verdict counts as an answer.

    The URL is the operator's, so it may be on a private network. Proxy variables are ignored, and
    redirects are not followed.
    """

    def __init__(self, settings: SafetySettings) -> None:
        assert settings.url
        token = settings.token
        bearer = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
        self._url = settings.url
        self._http = httpx.AsyncClient(
            timeout=settings.timeout_s,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=settings.max_checks),
            headers={"Content-Type": "application/json", "User-Agent": "atelier", **bearer},
        )

    async def verdict(self, safety_check: SafetyCheck) -> Verdict:
        """Call the operator's safety service for one verdict. Raises: NoVerdict."""
        body = await asyncio.to_thread(safety_check.body)
        try:
            async with self._http.stream("POST", self._url, content=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise NoVerdict(f"it responded with {answer.status_code}")
                return verdict_of_json(await _read(answer))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoVerdict(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Close the connections to the operator's service."""
        await self._http.aclose()


async def _read(answer: httpx.Response) -> bytes:
    """Read the safety service's response. Raises: NoVerdict: too long."""
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise NoVerdict(f"its response has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


log = logging.getLogger("atelier")

WHERE = "its module must be installed, or be in a folder of PYTHONPATH, given as an absolute path"
"""Locations searched for a module, excluding the working directory."""

SafetyFunction = Callable[[dict[str, Any]], object]


def load_function(name: str) -> SafetyFunction:
    """Import `package.module:function` of a safety hook.

    Raises: ConfigError: no such function.
    """
    module, _, attribute = name.partition(":")
    try:
        function: SafetyFunction = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        detail = f"{name!r} cannot be imported: {error}; {WHERE}"
        raise ConfigError(f"safety.check: {detail}") from error
    if not callable(function):
        raise ConfigError(f"safety.check: {name!r} is not a function")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"safety.check: {name!r} is async; name a plain function")
    return function


class FunctionHook:
    """Safety hook that calls a function in its own threads, so blocked calls affect no others.

    Calls cannot be canceled. Each occupies its slot until it returns, even after a timeout.
    """

    def __init__(self, settings: SafetySettings) -> None:
        """Load the operator's safety function. Raises: ConfigError."""
        assert settings.check
        self._function = load_function(settings.check)
        self._most = settings.max_checks
        self._running = 0

    async def verdict(self, safety_check: SafetyCheck) -> Verdict:
        """Call the operator's safety function for one verdict. Raises: NoVerdict."""
        if self._running >= self._most:
            raise NoVerdict(f"all {self._most} calls of the function are still running")
        return verdict_of(await self._in_thread(safety_check.members()))

    async def close(self) -> None:
        """Do nothing; daemon threads do not delay the exit."""

    async def _in_thread(self, safety_check: dict[str, Any]) -> object:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[object] = loop.create_future()

        def end(answer: object) -> None:
            self._running -= 1
            if not answered.done():
                answered.set_result(answer)

        def run() -> None:
            try:
                answer = self._function(safety_check)
            except BaseException as error:  # such as SystemExit
                answer = _failed(error)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, answer)

        thread = threading.Thread(target=run, name="safety", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread is left
            raise NoVerdict(f"the function cannot be called: {error}") from None
        self._running += 1
        answer = await answered
        if isinstance(answer, NoVerdict):
            raise answer
        return answer


def _failed(error: BaseException) -> NoVerdict:
    log.warning("the safety function failed", exc_info=error)
    return NoVerdict(f"it failed with {type(error).__name__}")
