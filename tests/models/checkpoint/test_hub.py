"""Checkpoint sources: a local folder, or a hub, for which a small HTTP server stands in."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from models.checkpoint.folder import CheckpointError
from models.checkpoint.hub import CONFIGS, resolve, resolve_file, single_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NESTED = "transformer/diffusion_pytorch_model.safetensors"
FILES = {
    "model_index.json": b'{"_class_name": "FluxPipeline"}',
    "README.md": b"words",
    "flux1-dev.safetensors": b"the same weights in one file",
    "transformer/config.json": b"{}",
    NESTED: b"weights",
    "text_encoder/pytorch_model.bin": b"a pickle",
    "tokenizer/merges.txt": b"a b",
    "tokenizer_2/spiece.model": b"pieces",
}


class Hub(BaseHTTPRequestHandler):
    """Fake hub with one repository, `owner/flux`, whose only commit has the names `main` and
    `v1`.
    """

    requested: list[str]

    def do_HEAD(self) -> None:
        self.reply(with_body=False)

    def do_GET(self) -> None:
        self.reply(with_body=True)

    def reply(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        revisions = [f"/api/models/owner/flux/revision/{name}" for name in ("main", "v1", COMMIT)]
        prefix = f"/owner/flux/resolve/{COMMIT}/"
        name = path.removeprefix(prefix)
        tree = f"/api/models/owner/flux/tree/{COMMIT}"
        if path in revisions:
            siblings = [{"rfilename": name} for name in FILES]
            body = json.dumps({"id": "owner/flux", "sha": COMMIT, "siblings": siblings}).encode()
        elif path == tree:
            body = json.dumps(
                [
                    {"type": "file", "path": name, "oid": "0", "size": len(content)}
                    for name, content in FILES.items()
                ]
            ).encode()
        elif path.startswith(prefix) and name in FILES:
            body = FILES[name]
            self.requested.append(name)
        else:
            self.send_response(404)
            error = (
                "RevisionNotFound" if path.startswith("/api/models/owner/flux/") else "RepoNotFound"
            )
            self.send_header("X-Error-Code", error)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Suppress the log."""


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.requested = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_local_folder_resolves_to_itself(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == tmp_path


def test_only_needed_files_are_fetched(hub: str, tmp_path: Path) -> None:
    folder = resolve("owner/flux", endpoint=hub, cache=tmp_path)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    left_out = {"README.md", "flux1-dev.safetensors", "text_encoder/pytorch_model.bin"}
    assert files == FILES.keys() - left_out
    assert not left_out & set(Hub.requested)
    assert (folder / "transformer" / "config.json").read_bytes() == b"{}"


def test_configs_without_weights(hub: str, tmp_path: Path) -> None:
    folder = resolve("owner/flux", patterns=CONFIGS, endpoint=hub, cache=tmp_path)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    tokenizers = {"tokenizer/merges.txt", "tokenizer_2/spiece.model"}
    assert files == {"model_index.json", "transformer/config.json"} | tokenizers


def test_weights_of_replaced_parts_are_not_fetched(hub: str, tmp_path: Path) -> None:
    folder = resolve("owner/flux", without=["transformer"], endpoint=hub, cache=tmp_path)
    assert (folder / "transformer" / "config.json").is_file()
    assert NESTED not in Hub.requested


def test_revisions(hub: str, tmp_path: Path) -> None:
    assert resolve("owner/flux@v1", endpoint=hub, cache=tmp_path).name == COMMIT
    with pytest.raises(CheckpointError, match=r"owner/flux@v2[\s\S]*check the name"):
        resolve("owner/flux@v2", endpoint=hub, cache=tmp_path)


def test_an_unknown_name(hub: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="owner/other"):
        resolve("owner/other", endpoint=hub, cache=tmp_path)


def test_fetched_files_work_offline(hub: str, tmp_path: Path) -> None:
    folder = resolve(f"owner/flux@{COMMIT}", endpoint=hub, cache=tmp_path)
    nowhere = "http://127.0.0.1:1"
    assert resolve(f"owner/flux@{COMMIT}", endpoint=nowhere, cache=tmp_path) == folder
    with pytest.raises(CheckpointError, match="connection"):
        resolve("owner/unseen", endpoint=nowhere, cache=tmp_path)


NEITHER = (
    "/no/such/folder",
    "flux",
    "a/b/c",
    "owner/flux@",
    "",
    " ",
    "./flux",
    "../flux",
    "a/b--c",
)


@pytest.mark.parametrize("source", NEITHER)
def test_neither_folder_nor_hub_id(source: str) -> None:
    for find in (resolve, resolve_file):
        with pytest.raises(CheckpointError, match="no such folder, and no hub id"):
            find(source)


def test_a_file_is_itself_and_a_folders_only_one(tmp_path: Path) -> None:
    file = tmp_path / "ink.safetensors"
    file.write_bytes(b"weights")
    assert resolve_file(str(file)) == resolve_file(str(tmp_path)) == file
    (tmp_path / "README.md").write_bytes(b"words")
    (tmp_path / "wash.safetensors").write_bytes(b"weights")
    with pytest.raises(CheckpointError, match=r"ink\.safetensors, wash\.safetensors"):
        resolve_file(str(tmp_path))
    (tmp_path / "none").mkdir()
    with pytest.raises(CheckpointError, match="there is none"):
        resolve_file(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("owner/flux", "flux1-dev.safetensors"),
        ("owner/flux@v1", "flux1-dev.safetensors"),
        ("owner/flux:flux1-dev.safetensors", "flux1-dev.safetensors"),
        (f"owner/flux@{COMMIT}:{NESTED}", NESTED),
    ],
)
def test_a_file_of_a_hub(source: str, name: str, hub: str, tmp_path: Path) -> None:
    file = resolve_file(source, endpoint=hub, cache=tmp_path)
    assert file.read_bytes() == FILES[name] and file.is_relative_to(tmp_path)
    if ":" in source:
        assert {*Hub.requested} == {name}
        assert single_file(source, endpoint=hub, cache=tmp_path) == file


def test_a_file_that_a_hub_does_not_have(hub: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no file 'ink\.safetensors'"):
        resolve_file("owner/flux@v1:ink.safetensors", endpoint=hub, cache=tmp_path)
    with pytest.raises(CheckpointError, match="check the name"):
        resolve_file("owner/flux@v2:flux1-dev.safetensors", endpoint=hub, cache=tmp_path)
