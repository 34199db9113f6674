"""Options and lists of AUTOMATIC1111's API: each client has its own chosen model."""

from __future__ import annotations

import asyncio

import httpx
from fastapi import FastAPI
from webuiapi import WebUIApi

from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from tests.service.routes.compat.a1111.conftest import SDXL
from tests.service.routes.compat.keyed import Keyed
from tests.service.standin import MODEL, VIDEO, StandIn

OPTIONS = "/sdapi/v1/options"
PATH = "/sdapi/v1/txt2img"


async def test_a_model_is_chosen_by_webuiapi(api: WebUIApi, sdxl: StandIn, pool: StandIn) -> None:
    names = await asyncio.to_thread(api.util_get_model_names)
    assert names == [MODEL, "sdxl-demo"]
    assert await asyncio.to_thread(api.util_get_current_model) == MODEL
    await asyncio.to_thread(api.util_set_model, "sdxl")
    assert await asyncio.to_thread(api.util_get_current_model) == "sdxl-demo"
    await asyncio.to_thread(api.txt2img, prompt="a", width=64, height=64)
    assert len(sdxl.received) == 1 and not pool.received


async def test_open_webui_sends_all_options_back(
    wire: httpx.AsyncClient, sdxl: StandIn, pool: StandIn
) -> None:
    options = (await wire.get(OPTIONS)).json()
    options["sd_model_checkpoint"] = "sdxl-demo"
    assert (await wire.post(OPTIONS, json=options)).status_code == 200
    assert (await wire.get(OPTIONS)).json()["sd_model_checkpoint"] == "sdxl-demo"


async def test_other_options_and_models_are_refused_by_name(
    wire: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    await queue.register("clips", VIDEO, ready=True)
    for options, message in [
        ({"sd_vae": "mine"}, 'sd_vae: is not supported; leave it out or send "Automatic"'),
        ({"what": 1}, "what: is not supported"),
        ({"sd_model_checkpoint": "nobody"}, f"available: {MODEL}"),
        ({"sd_model_checkpoint": VIDEO.name}, "generates videos"),
    ]:
        answer = await wire.post(OPTIONS, json=options)
        assert answer.status_code in (404, 422) and message in answer.json()["detail"], answer.text
        assert answer.json()["errors"].startswith(f"{next(iter(options))}: ")
    assert (await wire.get(OPTIONS)).json()["sd_model_checkpoint"] == MODEL
    listed = (await wire.get("/sdapi/v1/sd-models")).json()
    assert [item["title"] for item in listed] == [MODEL]


async def test_options_that_a_request_may_override_are_accepted(
    wire: httpx.AsyncClient, pool: StandIn
) -> None:
    options = {
        "samples_format": "jpg",
        "CLIP_stop_at_last_layers": 2,
        "sd_vae": "Automatic",
        "forge_additional_modules": [],
        "eta_noise_seed_delta": 0,
        "filter_nsfw": False,
        "enable_pnginfo": True,
        **dict.fromkeys(("samples_save", "grid_save", "save_to_dirs", "live_previews_enable")),
        "outdir_samples": "/tmp/out",
        "show_progressbar": True,
    }
    assert (await wire.post(OPTIONS, json=options)).status_code == 200
    answer = await wire.post(PATH, json={"prompt": "a", "override_settings": options})
    assert answer.status_code == 200


async def test_chosen_model_that_is_unregistered_is_ignored(
    wire: httpx.AsyncClient, pool: StandIn, queue: Queue
) -> None:
    await queue.choose_model("client:127.0.0.1", "gone")
    assert (await wire.get(OPTIONS)).json()["sd_model_checkpoint"] == MODEL
    assert (await wire.post(PATH, json={"prompt": "a"})).status_code == 200


async def test_lists_by_webuiapi(api: WebUIApi, sdxl: StandIn) -> None:
    assert "Euler a" in await asyncio.to_thread(api.util_get_sampler_names)
    assert "UniPC" not in await asyncio.to_thread(api.util_get_sampler_names)
    assert "karras" in await asyncio.to_thread(api.util_get_scheduler_names)
    for name in (
        *("loras", "sd_vae", "hypernetworks", "face_restorers", "prompt_styles"),
        "realesrgan_models",
    ):
        assert await asyncio.to_thread(getattr(api, f"get_{name}")) == []
    upscalers = await asyncio.to_thread(api.get_upscalers)
    assert [upscaler["name"] for upscaler in upscalers] == ["Lanczos", "None"]
    assert await asyncio.to_thread(api.get_latent_upscale_modes) == [{"name": "Latent"}]
    assert (await asyncio.to_thread(api.get_embeddings))["loaded"] == {}
    assert await asyncio.to_thread(api.get_cmd_flags) == {}
    assert (await asyncio.to_thread(api.get_memory)).keys() == {"ram", "cuda"}


class TestWithKeys(Keyed):
    async def test_a_key_is_bearer_or_basics_password(
        self, http: httpx.AsyncClient, keys: ApiKeys, pool: StandIn
    ) -> None:
        _, key = await keys.create("acme")
        by_bearer = await http.get(OPTIONS, headers={"Authorization": f"Bearer {key}"})
        by_basic = await http.get(OPTIONS, auth=("anybody", key))
        assert by_bearer.status_code == by_basic.status_code == 200
        elsewhere = await http.get("/v1/models", auth=("anybody", key))
        assert elsewhere.status_code == 401

    async def test_a_choice_is_a_keys_own(
        self, app: FastAPI, http: httpx.AsyncClient, keys: ApiKeys, pool: StandIn, sdxl: StandIn
    ) -> None:
        pairs = [("a", (await keys.create("acme"))[1]) for _ in range(2)]
        chosen = await http.post(OPTIONS, json={"sd_model_checkpoint": SDXL.name}, auth=pairs[0])
        assert chosen.status_code == 200
        names = [
            (await http.get(OPTIONS, auth=pair)).json()["sd_model_checkpoint"] for pair in pairs
        ]
        assert names == [SDXL.name, MODEL]
