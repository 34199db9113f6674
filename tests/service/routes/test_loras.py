"""/v1/loras: listing, upload and deletion by tenants, and errors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.http.lora_check_process import OpenFile, inspect_file
from service.http.lora_checks import ModelLayers
from service.http.upload_slots import GRACE_S
from service.jobs.queue import Queue
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store, lora_key
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings
from tests.service.adapters import OTHER, TAKING, adapter, arrays, file_of
from tests.service.eventually import eventually
from tests.service.standin import MODEL, SPEC, picture
from tests.service.test_keys import client, with_keys

FILE = adapter()
DIGEST = hashlib.sha256(FILE).hexdigest()
MAX_BYTES = 50_000


@pytest.fixture
def settings(settings: Settings, redis_url: str) -> Settings:
    """Settings: two adapters per tenant, ranks up to 64, small files; `poor` may have none."""
    limits = settings.limits.model_copy(update={"max_lora_rank": 64, "max_lora_bytes": MAX_BYTES})
    tenants = {"*": TenantSettings(max_loras=2), "poor": TenantSettings(max_loras=0)}
    return with_keys(settings.model_copy(update={"limits": limits, "tenants": tenants}), redis_url)


@pytest.fixture
async def acme(app: FastAPI, keys: ApiKeys, queue: Queue) -> AsyncIterator[httpx.AsyncClient]:
    await queue.register("pool", TAKING, ready=True)
    async with await client(app, keys, "acme") as http:
        yield http


@pytest.fixture
async def zoo(app: FastAPI, keys: ApiKeys) -> AsyncIterator[httpx.AsyncClient]:
    async with await client(app, keys, "zoo") as http:
        yield http


async def upload(
    http: httpx.AsyncClient,
    name: str = "mine",
    file: bytes = FILE,
    preview: bytes | None = None,
    **texts: str,
) -> httpx.Response:
    files = {"file": ("any name.bin", file)} | ({"preview": ("a.png", preview)} if preview else {})
    return await http.post("/v1/loras", data={"name": name, **texts}, files=files)


async def upload_slowly(http: httpx.AsyncClient) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        await asyncio.Event().wait()

    form = {"Content-Type": "multipart/form-data; boundary=x"}
    return await http.post("/v1/loras", content=body(), headers=form)


async def names(http: httpx.AsyncClient) -> list[str]:
    return [lora["name"] for lora in (await http.get("/v1/loras")).json()["data"]]


def errors(answer: httpx.Response) -> dict[str, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return {error["field"]: error["message"] for error in answer.json().get("errors", ())}


def stored(settings: Settings) -> list[str]:
    """Every adapter file in the store."""
    root = Path(settings.store_url)
    paths = (path for path in (root / "loras").rglob("*") if path.is_file())
    return sorted(str(path.relative_to(root)) for path in paths)


async def test_tenant_lists_its_adapters(acme: httpx.AsyncClient, zoo: httpx.AsyncClient) -> None:
    assert await names(acme) == ["broken", "ink", "oil", "secret"]
    assert await names(zoo) == ["broken", "ink", "oil"]
    assert (await zoo.get("/v1/loras/secret")).status_code == 404
    assert (await acme.get("/v1/loras/ink")).json() == {
        "name": "ink",
        "object": "lora",
        "model": MODEL,
        "origin": "settings",
        "trigger": "in ink",
        "rank": 16,
        "vectors": 0,
        "embeddings": [],
        "networks": ["transformer"],
        "bytes": 1000,
        "digest": "11" * 32,
        "preview": None,
        "ready": True,
        "error": None,
        "warnings": [],
    }
    broken = (await acme.get("/v1/loras/broken")).json()
    assert (broken["ready"], broken["error"]) == (False, "NaN in blocks.0.q")


async def test_an_upload_is_listed_used_and_deleted(
    acme: httpx.AsyncClient, queue: Queue, store: Store, settings: Settings
) -> None:
    image = picture()
    answer = await upload(acme, preview=image, trigger="mine, all mine", model=MODEL)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == "/v1/loras/mine"
    view = answer.json()
    assert view | {"preview": None} == {
        "name": "mine",
        "object": "lora",
        "model": MODEL,
        "origin": "upload",
        "trigger": "mine, all mine",
        "rank": 4,
        "vectors": 0,
        "embeddings": [],
        "networks": ["transformer"],
        "bytes": len(FILE),
        "digest": DIGEST,
        "preview": None,
        "ready": True,
        "error": None,
        "warnings": [],
    }
    assert (await acme.get("/v1/loras/mine")).json() == view
    assert await store.get(lora_key("acme", DIGEST)) == FILE
    preview = await acme.get(view["preview"])
    assert (preview.content, preview.headers["content-type"]) == (image, "image/png")
    assert preview.headers["vary"] == "Authorization"
    again = await acme.get(view["preview"], headers={"If-None-Match": preview.headers["etag"]})
    assert again.status_code == 304
    body = {"prompt": "a cat", "loras": [{"name": "mine", "scale": 0.5}]}
    job = (await acme.post("/v1/generate", json=body)).json()
    assert job["request"]["loras"] == [{"name": "mine", "scale": 0.5}]
    current = await queue.get(job["id"])
    assert current is not None and [(lora.name, lora.digest) for lora in current.loras] == [
        ("mine", DIGEST)
    ]
    assert current.bucket.endswith("lora_pages=1")
    assert (await acme.delete("/v1/loras/mine")).status_code == 204
    assert stored(settings) == []
    assert (await acme.post("/v1/generate", json=body)).status_code == 422
    for path in ("/v1/loras/mine", view["preview"]):
        assert (await acme.get(path)).status_code == 404
    assert (await acme.delete("/v1/loras/mine")).status_code == 404


async def test_repeated_upload_returns_the_same_adapter(
    acme: httpx.AsyncClient, settings: Settings
) -> None:
    first = await upload(acme)
    before = stored(settings)
    again = await upload(acme, trigger="another", preview=picture())
    assert (again.status_code, again.json()) == (200, first.json())
    assert stored(settings) == before


async def test_another_file_by_that_name_is_refused(
    acme: httpx.AsyncClient, settings: Settings
) -> None:
    await upload(acme)
    answer = await upload(acme, file=adapter(seed=1))
    assert answer.status_code == 409 and answer.json()["type"].endswith("lora_exists")
    assert errors(answer)["name"] == (
        "there is another adapter 'mine', for the model 'flux-demo'; delete it first (DELETE"
        " /v1/loras/mine), or use another name"
    )
    assert stored(settings) == [lora_key("acme", DIGEST)]


async def test_two_at_once_by_one_name(acme: httpx.AsyncClient, settings: Settings) -> None:
    """One upload is stored completely; nothing is left of the other."""
    answers = await asyncio.gather(*(upload(acme, file=adapter(seed=seed)) for seed in (1, 2)))
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    winner = next(answer.json() for answer in answers if answer.status_code == 201)
    assert (await acme.get("/v1/loras/mine")).json() == winner
    assert stored(settings) == [lora_key("acme", winner["digest"])]


async def test_concurrent_uploads_of_one_file_are_stored_once(
    acme: httpx.AsyncClient, settings: Settings
) -> None:
    answers = await asyncio.gather(upload(acme), upload(acme))
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert stored(settings) == [lora_key("acme", DIGEST)]


async def test_two_names_of_one_file_share_it(acme: httpx.AsyncClient, settings: Settings) -> None:
    for name in ("a", "b"):
        assert (await upload(acme, name)).status_code == 201
    await acme.delete("/v1/loras/a")
    assert stored(settings) == [lora_key("acme", DIGEST)]
    await acme.delete("/v1/loras/b")
    assert stored(settings) == []


async def test_last_free_slot_is_assigned_once(acme: httpx.AsyncClient, settings: Settings) -> None:
    await upload(acme, "first")
    several = (upload(acme, name, adapter(seed=n)) for n, name in enumerate("ab", 1))
    answers = await asyncio.gather(*several)
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    refused = next(answer for answer in answers if answer.status_code == 409).json()
    assert refused["type"].endswith("too_many_loras")
    assert refused["detail"] == (
        "the tenant 'acme' has reached its limit of 2 adapters; delete one (DELETE"
        " /v1/loras/NAME), or ask the operator for more (tenants.acme.max_loras)"
    )
    assert len(stored(settings)) == 2
    assert (await upload(acme, "first")).status_code == 200, "an identical upload needs no slot"


async def test_tenants_cannot_see_each_others_adapters(
    acme: httpx.AsyncClient, zoo: httpx.AsyncClient, settings: Settings
) -> None:
    await upload(acme, preview=picture())
    assert await names(zoo) == ["broken", "ink", "oil"]
    for method, path in (
        ("GET", "/v1/loras/mine"),
        ("GET", "/v1/loras/mine/preview"),
        ("DELETE", "/v1/loras/mine"),
    ):
        foreign = await zoo.request(method, path)
        never = await zoo.request(method, path.replace("mine", "never"))
        assert foreign.status_code == never.status_code == 404
        assert foreign.json()["detail"].replace("mine", "never") == never.json()["detail"]
    body = {"prompt": "a cat", "loras": [{"name": "mine"}]}
    refused = await zoo.post("/v1/generate", json=body)
    assert errors(refused) == {
        "loras.0.name": "the model 'flux-demo' has no adapter 'mine'; available: ink, oil"
    }
    assert (await upload(zoo, file=adapter(seed=1))).status_code == 201, (
        "another tenant may use the name"
    )
    await zoo.delete("/v1/loras/mine")
    assert lora_key("acme", DIGEST) in stored(settings)


async def test_the_operator_s_adapters_stay(
    acme: httpx.AsyncClient, zoo: httpx.AsyncClient
) -> None:
    refused = await acme.delete("/v1/loras/ink")
    assert refused.status_code == 403
    assert refused.json()["detail"] == (
        "the adapter 'ink' belongs to the operator, who can remove it from the settings (loras.ink)"
    )
    conflict = await upload(acme, "secret")
    assert conflict.status_code == 409
    assert errors(conflict) == {"name": "'secret' belongs to the operator; use another name"}
    assert (await upload(zoo, "secret")).status_code == 201, "zoo has no access to that adapter"


async def test_an_upload_whose_name_the_operator_takes_later_can_be_deleted(
    acme: httpx.AsyncClient, queue: Queue
) -> None:
    await upload(acme)
    ink = TAKING.loras["ink"].model_copy(update={"name": "mine"})
    await queue.register("pool", TAKING.model_copy(update={"loras": {"mine": ink}}), ready=True)
    assert (await acme.get("/v1/loras/mine")).json()["origin"] == "settings"
    assert (await acme.delete("/v1/loras/mine")).status_code == 204
    assert (await acme.delete("/v1/loras/mine")).status_code == 403


def without_up() -> bytes:
    tensors = arrays()
    del tensors["transformer.blocks.0.q.lora_B.weight"]
    return file_of(tensors)


def with_nan() -> bytes:
    tensors = arrays()
    tensors["transformer.blocks.1.q.lora_A.weight"][0, 0] = np.nan
    return file_of(tensors)


LINEAR_S = 5.0
"""Processor time for a key of 40,000 parts, which takes 0.02 s; quadratic time is 15 s."""
HOSTILE = {
    "empty": (b"", "the file is an empty file; fetch or export it again"),
    "a pickle": (b"\x80\x02}q\x00.", "the file is a pickled checkpoint, which can run code"),
    "a git-lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        "the file is a git-lfs pointer, not the weights that it names; fetch them with",
    ),
    "a web page": (b"<!DOCTYPE html><html>", "the file is an HTML or XML page"),
    "GGUF": (b"GGUF\x03\0\0\0" + bytes(16), "the file is a GGUF file; send the adapter as"),
    "a longer header than the file": (b"\xff" * 8 + b"{}", "not a whole safetensors file"),
    "broken JSON": (b"\x02\0\0\0\0\0\0\0{x", "not a whole safetensors file"),
    "cut off": (FILE[:-1], "not a whole safetensors file"),
    "deep JSON": ((40_000).to_bytes(8, "little") + b"[" * 40_000, "not a whole safetensors file"),
    "an unsupported type": (
        file_of(arrays(), more={"dtype": "F4", "shape": [0], "data_offsets": [0, 0]}),
        "F4: weights of this type are not read",
    ),
    "another model's": (file_of({"down_blocks.0.lora_A.weight": np.ones((4, 8), "f4")}), "none of"),
    "half a layer": (without_up(), "blocks.0.q"),
    "not finite": (with_nan(), "NaN or infinity in transformer.blocks.1.q.lora_A.weight"),
    "magnitudes of another layer": (
        file_of(arrays() | {"transformer.blocks.0.q.dora_scale": np.ones((7, 1), "f4")}),
        "magnitudes of shape (7, 1) for 8 inputs and 8 outputs",
    ),
    "a huge Kronecker product": (
        file_of({f"transformer.blocks.0.q.lokr_w{n}": np.ones((4096, 1), "f4") for n in (1, 2)}),
        "from 1 to 16777216 features there and from 8 to 8",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_file_without_an_adapter_has_a_reason(kind: str, tmp_path: Path) -> None:
    data, message = HOSTILE[kind]
    file = OpenFile(tmp_path / "a")
    file.write_bytes(data)
    layers = ModelLayers(TAKING.lora_layers, {}).to_json().decode()
    outcome = inspect_file(file, layers, None, 64)
    assert outcome["field"] == "file" and message in outcome["error"]


def test_a_key_of_many_parts_takes_linear_time(tmp_path: Path) -> None:
    file = OpenFile(tmp_path / "a")
    file.write_bytes(file_of(arrays() | {"a." * 40_000 + "x": np.ones((1, 1), "f4")}))
    layers = ModelLayers(TAKING.lora_layers, {}).to_json().decode()
    began = time.thread_time()
    (warning,) = inspect_file(file, layers, None, 64)["warnings"]
    assert time.thread_time() - began < LINEAR_S
    assert warning.startswith("keys without effect: a.a.") and len(warning) < 200


@pytest.mark.parametrize("kind", ["cut off", "not finite"])
async def test_file_without_an_adapter_is_rejected_and_deleted(
    acme: httpx.AsyncClient, settings: Settings, kind: str
) -> None:
    file, message = HOSTILE[kind]
    answer = await upload(acme, file=file)
    assert answer.status_code == 422 and message in errors(answer)["file"], answer.text
    assert "/dev" not in answer.text and "Traceback" not in answer.text
    assert (await names(acme), stored(settings)) == (["broken", "ink", "oil", "secret"], [])


async def test_a_rank_over_the_limit_is_reduced_with_a_stated_error(
    acme: httpx.AsyncClient, queue: Queue
) -> None:
    """The layers have 8 inputs, so no reduction to a higher rank loses anything."""
    answer = await upload(acme, file=adapter(rank=65))
    (warning,) = answer.json()["warnings"]
    assert (answer.status_code, answer.json()["rank"]) == (201, 64)
    assert warning.startswith("its rank of 65 is reduced to 64, with an error of 0.0% of its")
    await queue.register("pool", TAKING.model_copy(update={"lora_pages": 1}), ready=True)
    answer = await upload(acme, name="other", file=adapter(rank=17, seed=1))
    assert (answer.status_code, answer.json()["rank"]) == (201, 16)


async def test_dora_lokr_and_loha_are_listed_with_their_ranks(acme: httpx.AsyncClient) -> None:
    name = "transformer.blocks.0.q"
    kinds = {
        "dora": arrays(4) | {f"{name}.dora_scale": np.ones((8, 1), "f4")},
        "lokr": {
            f"{name}.lokr_w1": np.ones((2, 2), "f4"),
            f"{name}.lokr_w2": np.ones((4, 4), "f4"),
        },
        "loha": {
            **{f"{name}.hada_w{n}_a": np.ones((8, 2), "f4") for n in (1, 2)},
            **{f"{name}.hada_w{n}_b": np.ones((2, 8), "f4") for n in (1, 2)},
        },
    }
    ranks = {}
    for kind, tensors in kinds.items():
        answer = await upload(acme, name=f"My {kind} v1.0.safetensors", file=file_of(tensors))
        assert answer.status_code == 201, answer.text
        listed = (await acme.get(f"/v1/loras/My%20{kind}%20v1.0")).json()
        assert listed == answer.json() and listed["warnings"] == []
        ranks[listed["name"]] = listed["rank"]
        path = f"/v1/loras/My%20{kind}%20v1.0.safetensors"
        assert (await acme.delete(path)).status_code == 204
    assert ranks == {"My dora v1.0": 4, "My lokr v1.0": 8, "My loha v1.0": 4}


async def test_ignored_keys_are_warnings(acme: httpx.AsyncClient) -> None:
    tensors = arrays() | {
        "__x0__": np.ones((2, 2), "f4"),
        "bundle_emb.cat.clip_l": np.ones(9, "f4"),
    }
    answer = await upload(acme, file=file_of(tensors))
    assert answer.json()["warnings"] == [
        "keys without effect: __x0__",
        "bundled embeddings, which are not used: bundle_emb.cat.clip_l",
    ]


async def test_a_file_over_the_limit(acme: httpx.AsyncClient, settings: Settings) -> None:
    answer = await upload(acme, file=bytes(MAX_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["detail"] == f"an adapter's file may have {MAX_BYTES} bytes"
    assert stored(settings) == []


async def test_invalid_preview_is_rejected(acme: httpx.AsyncClient, settings: Settings) -> None:
    answer = await upload(acme, preview=b"<svg onload='alert(1)'/>")
    assert errors(answer) == {"preview": "is not a PNG, JPEG or WebP image"}
    assert stored(settings) == []


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ({"name": "../ink"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"expert": "middle"}, "expert"),
        ({"trigger": "\x00"}, "trigger"),
        ({"trigger": "x" * 513}, "trigger"),
        ({"path": "/etc/passwd"}, "path"),
        ({"expert": "low"}, "expert"),
    ],
)
async def test_invalid_upload_fields_are_named(
    acme: httpx.AsyncClient, texts: dict[str, str], field: str
) -> None:
    answer = await upload(acme, **texts)
    assert answer.status_code == 422 and errors(answer).keys() == {field}, answer.text


async def test_unknown_models_or_models_without_adapters_are_rejected(
    acme: httpx.AsyncClient, queue: Queue
) -> None:
    assert (await upload(acme, model="never")).status_code == 404
    for spec in (SPEC.model_copy(update={"name": "plain"}), OTHER):
        await queue.register(spec.name, spec, ready=True)
    assert errors(await upload(acme, model="plain")) == {
        "model": "the model 'plain' accepts no adapters; its operator can enable them in"
        " models.plain.lora_pages"
    }
    assert errors(await upload(acme)) == {"model": "available: flux-demo, other, plain"}
    assert (await upload(acme, model="other")).json()["model"] == "other"
    body = {"prompt": "a cat", "model": MODEL, "loras": [{"name": "mine"}]}
    assert errors(await acme.post("/v1/generate", json=body)) == {
        "loras.0.name": "the adapter 'mine' is for the model 'other', not for 'flux-demo'"
    }


async def test_tenant_with_zero_adapters_allowed_is_rejected(
    app: FastAPI, keys: ApiKeys, queue: Queue
) -> None:
    await queue.register("pool", TAKING, ready=True)
    async with await client(app, keys, "poor") as poor:
        assert (await upload(poor)).json()["type"].endswith("too_many_loras")


async def test_failing_store_leaves_no_adapter_record(
    acme: httpx.AsyncClient, store: Store, app: FastAPI, queue: Queue
) -> None:
    app.state.front.store = Failing(store.url)
    assert (await upload(acme)).status_code == 503
    assert await queue.loras("acme") == {}
    app.state.front.store = store
    assert (await upload(acme)).status_code == 201, "the lock was not released"


async def test_failed_adapter_deletion_can_be_repeated(
    acme: httpx.AsyncClient, store: Store, app: FastAPI, settings: Settings
) -> None:
    await upload(acme)
    app.state.front.store = Failing(store.url)
    assert (await acme.delete("/v1/loras/mine")).status_code == 503
    assert "mine" in await names(acme)
    app.state.front.store = store
    assert (await acme.delete("/v1/loras/mine")).status_code == 204
    assert stored(settings) == []


class Failing(Store):
    """Store that fails to write or delete."""

    async def put_file(self, *_: Any) -> None:
        raise StoreError("the disk is full")

    async def delete(self, keys: Any) -> None:
        if [*keys]:
            raise StoreError("the disk is gone")


async def test_other_front_ends_list_a_new_adapter_after_the_cache_age(
    acme: httpx.AsyncClient, settings: Settings, queue: Queue, store: Store
) -> None:
    """The copy is outdated at once, except for the time of a read."""
    other = create_app(settings, queue, store)

    async def sees_it() -> bool:
        return "mine" in {lora.name for lora in await other.state.front.loras.of("acme")}

    async with other.router.lifespan_context(other):
        assert not await sees_it()
        await upload(acme)
        await eventually(sees_it)


async def test_front_end_lists_its_changes_immediately(
    settings: Settings, queue: Queue, store: Store, keys: ApiKeys
) -> None:
    old = settings.server.model_copy(update={"models_age_s": 1000})
    await queue.register("pool", TAKING, ready=True)
    app = create_app(settings.model_copy(update={"server": old}), queue, store)
    async with app.router.lifespan_context(app), await client(app, keys, "acme") as http:
        for name in (["mine"], []):
            listed = [item for item in await names(http) if item == "mine"]
            assert listed != name
            await (upload(http) if name else http.delete("/v1/loras/mine"))
            assert [item for item in await names(http) if item == "mine"] == name


async def test_uploads_of_a_client_are_bounded(acme: httpx.AsyncClient, app: FastAPI) -> None:
    uploads = app.state.front.uploads
    with uploads.slot("acme"), uploads.slot("acme"):
        answer = await upload(acme)
    assert answer.status_code == 429 and "retry-after" in answer.headers
    assert answer.json()["type"].endswith("too_many_uploads")
    assert (await upload(acme)).status_code == 201


async def test_slow_uploads_do_not_block_others(
    app: FastAPI, keys: ApiKeys, acme: httpx.AsyncClient
) -> None:
    """Four stalled uploads of two tenants, before a fast one."""
    async with await client(app, keys, "zoo") as zoo, await client(app, keys, "bar") as bar:
        slow = [asyncio.create_task(upload_slowly(item)) for item in (zoo, zoo, bar, bar)]
        while len(app.state.front.uploads.uploads) < len(slow):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await upload(acme)).status_code == 503
        for item in app.state.front.uploads.uploads:
            item.began -= GRACE_S
        assert (await upload(acme)).status_code == 201
        ended, _ = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
        (answer,) = [task.result() for task in ended]
        assert answer.status_code == 503
        assert answer.json()["type"].endswith("upload_too_slow")
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_locked_file_returns_a_retry(acme: httpx.AsyncClient, queue: Queue) -> None:
    async with queue.lora_lock("acme", DIGEST):
        answer = await upload(acme)
    assert answer.status_code == 429 and answer.json()["type"].endswith("lora_busy")
    assert (await upload(acme)).status_code == 201


async def test_records_survive_a_newer_version_s_fields(
    acme: httpx.AsyncClient, empty_redis: Redis
) -> None:
    await upload(acme)
    record = json.loads(await empty_redis.hget("{atelier}:loras:acme", "mine"))
    await empty_redis.hset("{atelier}:loras:acme", "mine", json.dumps(record | {"new": 1}))
    assert (await acme.get("/v1/loras/mine")).status_code == 200
