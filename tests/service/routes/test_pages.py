"""Pages for browsers: they load nothing from other origins, and their Content-Security-Policy
forbids it."""

from __future__ import annotations

import re

import httpx
import pytest

PATHS = [
    "/",
    "/operator",
    "/docs",
    "/openapi.json",
    "/healthz",
    "/metrics",
    "/v1/models",
    "/nowhere",
    "/v1/jobs/x",
]


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_has_a_policy(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/operator"])
async def test_pages_load_only_modules_and_styles_of_their_server(
    http: httpx.AsyncClient, path: str
) -> None:
    page = await http.get(path)
    policy = page.headers["content-security-policy"].split("; ")
    assert {"script-src 'self'", "style-src 'self'"} <= {*policy} and "unsafe" not in str(policy)
    assert re.findall(r"<script>|<style>|\sstyle=|\son\w+=|(?:src|href)=\"https?:", page.text) == []
    names = re.findall(r'(?:src|href)="playground/([^"]*)"', page.text)
    media_types = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
    for name in names:  # grows by the modules that modules import
        file = await http.get(f"/playground/{name}")
        assert file.status_code == 200, name
        assert file.headers["content-type"] == media_types[name.rpartition(".")[2]]
        assert file.headers["x-content-type-options"] == "nosniff"
        imports = re.findall(r'^(?:import|\} from) .*?"\./(.*)";$', file.text, re.MULTILINE)
        names += {*imports} - {*names}
    assert {"base.css", "api.js", "dom.js"} <= {*names}


@pytest.mark.parametrize("path", ["/", "/operator", "/playground/app.js"])
async def test_browsers_reuse_an_unchanged_file(http: httpx.AsyncClient, path: str) -> None:
    headers = (await http.get(path)).headers
    assert headers["cache-control"] == "no-cache"
    answer = await http.get(path, headers={"If-None-Match": headers["etag"]})
    assert (answer.status_code, answer.content) == (304, b"")
    changed = await http.get(path, headers={"If-None-Match": '"another"'})
    assert changed.status_code == 200


@pytest.mark.parametrize("name", ["__init__.py", "index.html", "..%2Fapp.py", "nothing.js"])
async def test_pages_have_no_other_files(http: httpx.AsyncClient, name: str) -> None:
    assert (await http.get(f"/playground/{name}")).status_code == 404


async def test_the_reference_loads_only_files_of_its_server(http: httpx.AsyncClient) -> None:
    answer = await http.get("/docs")
    assert "unsafe" not in answer.headers["content-security-policy"]
    links = re.findall(r'<(?:script src|link rel="stylesheet" href)="([^"]*)"', answer.text)
    assert len(links) == 3 and "https:" not in answer.text
    for link in links:
        file = await http.get(f"/{link}")
        assert file.status_code == 200
        kind = "text/css" if link.endswith(".css") else "javascript"
        assert kind in file.headers["content-type"]


async def test_the_reference_has_no_other_files(http: httpx.AsyncClient) -> None:
    for name in ("main.py", "..%2Fmain.py", "favicon-32x32.png"):
        assert (await http.get(f"/docs/{name}")).status_code == 404


async def test_redoc_is_disabled(http: httpx.AsyncClient) -> None:
    assert (await http.get("/redoc")).status_code == 404
