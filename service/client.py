"""HTTP client of this API: submit jobs, follow their events across reconnections, fetch outputs."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from service.jobs.model.state_machine import ENDED
from service.settings.loopback import names_loopback

UPLOAD_S = 900.0
"""Timeout of an upload, including the server's check of the file, in seconds."""
VERIFY_S = 45
"""Seconds that the server may wait for a verdict, less than the read timeout."""
_RETRIES = 6
_SSE = {"Accept": "text/event-stream"}


class ApiError(Exception):
    """Error response of the server, as the text of its RFC 9457 body."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.errors = [(e["field"], e["message"]) for e in body.get("errors") or ()]
        super().__init__(body.get("detail") or body.get("title") or f"HTTP status {status}")

    def __str__(self) -> str:
        """Return the detail and each field error that the detail does not contain."""
        detail = str(self.args[0])
        lines = [f"{field}: {message}" for field, message in self.errors]
        if detail == "; ".join(lines):
            return "\n  ".join(lines)
        return "\n".join([detail, *(f"  {line}" for line in lines if not _says(detail, line))])


class ServiceUnreachable(Exception):
    """The server did not respond, or is not an Atelier server."""


class BadAddress(Exception):
    """The server's address is not an HTTP URL."""


@dataclass(frozen=True)
class JobEvent:
    """Server-sent event of a job; `id` resumes after it."""

    id: str
    name: str
    data: dict[str, Any]


class Client:
    """Client for one server, and for the events of one job. Use as a context manager."""

    def __init__(self, server: str, key: str | None = None) -> None:
        """`key` is an API key; None: the server requires none. Raises: BadAddress."""
        # Longer than the interval of the server's keep-alive comments.
        timeout = httpx.Timeout(10, read=60)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx.Client(
                base_url=server,
                timeout=timeout,
                follow_redirects=True,
                headers=headers,
                mounts=without_proxy(server),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise BadAddress(f"{server!r} is not a URL: {error}") from None
        if self._http.base_url.scheme not in ("http", "https") or not self._http.base_url.host:
            raise BadAddress(
                f"{server!r} is not an http or https URL, such as http://127.0.0.1:8000"
            )
        self.job_id: str | None = None
        self._last_event = "0"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def submit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Submit a request; return the accepted job. Raises: ApiError, ServiceUnreachable."""
        job = self._json("POST", "/v1/generate", json=body)
        self.job_id = job["id"]
        return job

    def continue_job(self, job_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Finish images of a paused job; return the new job. Raises: as `submit`."""
        job = self._json("POST", f"{_path(job_id)}/continue", json=body)
        self.job_id = job["id"]
        return job

    def follow(self) -> Iterator[JobEvent]:
        """Yield the job's events up to its end state, across lost connections.

        Raises: ApiError, ServiceUnreachable (after half a minute without the server).
        """
        failures = 0
        while True:
            try:
                for event in self._events():
                    failures = 0
                    yield event
                    if event.name in ENDED:
                        return
            except httpx.TransportError as error:
                if failures == _RETRIES:
                    raise ServiceUnreachable(f"lost the server at {self._http.base_url}") from error
            time.sleep(min(0.25 * 2**failures, 8))
            failures = min(failures + 1, _RETRIES)

    def job(self) -> dict[str, Any]:
        """Return the current state of the client's job. Raises: as `submit`."""
        return self._json("GET", _path(self.job_id))

    def jobs(self, **filters: Any) -> dict[str, Any]:
        """Return a page of jobs, newest first, filtered as `GET /v1/jobs`. Raises: as `submit`."""
        return self._json("GET", "/v1/jobs", params=filters)

    def cancel(self) -> dict[str, Any]:
        """Cancel the job within one denoising step; return it. Raises: as `submit`."""
        return self._json("POST", f"{_path(self.job_id)}/cancel")

    def output(self, url: str) -> bytes:
        """Download one output by its `url` in the job. Raises: as `submit`."""
        return self._call("GET", url).content

    def models(self) -> list[dict[str, Any]]:
        """List the models that the server offers. Raises: as `submit`."""
        models: list[dict[str, Any]] = self._json("GET", "/v1/models")["data"]
        return models

    def verify(self, body: bytes, content_type: str, wait_s: int = VERIFY_S) -> dict[str, Any]:
        """Return the verdict on a file, or on an output named by a JSON body. Raises: as `submit`.

        Thread-safe.

        Args:
            wait_s: seconds that each request waits for the verdict before it is repeated.
        """
        headers = {
            "Content-Type": content_type,
            "Idempotency-Key": secrets.token_hex(16),
            "Prefer": f"wait={wait_s}",
        }
        while True:
            verification = self._json("POST", "/v1/verify", content=body, headers=headers)
            if verification["verdict"] != "pending":
                return verification

    def loras(self) -> list[dict[str, Any]]:
        """List the adapters that the caller's requests may name. Raises: as `submit`."""
        loras: list[dict[str, Any]] = self._json("GET", "/v1/loras")["data"]
        return loras

    def upload_lora(self, texts: Mapping[str, str], **files: Path) -> dict[str, Any]:
        """Upload a LoRA adapter and return it. Raises: as `submit`; OSError: unreadable file.

        Args:
            texts: `name` and other text fields of the form.
            files: `file`, and optionally `preview`.
        """
        with ExitStack() as stack:
            opened = {
                name: (path.name, stack.enter_context(path.open("rb")))
                for name, path in files.items()
            }
            return self._json("POST", "/v1/loras", data=texts, files=opened, timeout=UPLOAD_S)

    def delete_lora(self, name: str) -> None:
        """Delete an adapter that the tenant uploaded. Raises: as `submit`."""
        self._call("DELETE", f"/v1/loras/{quote(name, safe='')}")

    def admin(self, method: str, path: str, **options: Any) -> Any:
        """Call `/v1/admin`; return the response's JSON, None if empty. Raises: as `submit`."""
        response = self._call(method, f"/v1/admin/{path}", **options)
        return response.json() if response.content else None

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._call(method, path, **options)
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise ServiceUnreachable(f"the server at {self._http.base_url} is not Atelier")
        return body

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return checked(self._http.request(method, path, **options))
        except httpx.TransportError as error:
            raise ServiceUnreachable(
                f"no server answers at {self._http.base_url} ({error})"
            ) from error

    def _events(self) -> Iterator[JobEvent]:
        headers = {**_SSE, "Last-Event-ID": self._last_event}
        path = f"{_path(self.job_id)}/events"
        with self._http.stream("GET", path, headers=headers) as response:
            if response.is_error:
                response.read()
            for event in parse_events(checked(response).iter_lines()):
                self._last_event = event.id or self._last_event
                yield event


def without_proxy(server: str) -> dict[str, None]:
    """Exclude a loopback address from the proxies of the environment (`HTTP_PROXY`).

    Raises: httpx.InvalidURL.
    """
    host = httpx.URL(server).host
    if not names_loopback(host):
        return {}
    return {f"all://[{host}]" if ":" in host else f"all://{host}": None}


def _path(job_id: str | None) -> str:
    """Return a job's URL path; the id is quoted, so that it stays one segment."""
    return f"/v1/jobs/{quote(job_id or '', safe='')}"


def _says(detail: str, line: str) -> bool:
    """Return whether an error's detail already contains the message of a field error."""
    return line in detail or line.partition(": ")[2] in detail


class EventReader:
    """Incremental parser of a server-sent event stream. Source: WHATWG HTML, 9.2.6."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def line(self, line: str) -> JobEvent | None:
        """Parse one line; return the event that it completes, if any."""
        if not line:
            fields, self._fields = self._fields, {}
            if "data" not in fields:
                return None
            data = json.loads(fields["data"])
            return JobEvent(fields.get("id", ""), fields.get("event", "message"), data)
        if not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            continues = name == "data" and name in self._fields
            self._fields[name] = f"{self._fields[name]}\n{value}" if continues else value
        return None


def parse_events(lines: Iterator[str]) -> Iterator[JobEvent]:
    """Parse the lines of an event stream into events."""
    reader = EventReader()
    for line in lines:
        if event := reader.line(line):
            yield event


def checked(response: httpx.Response) -> httpx.Response:
    """Return a successful response unchanged. Raises: ApiError."""
    if response.is_success:
        return response
    try:
        body = response.json()
    except ValueError:
        body = {}
    raise ApiError(response.status_code, body if isinstance(body, dict) else {})
