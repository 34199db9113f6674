"""Flux.1 and its tools: their checkpoints, and what their loader accepts."""

from __future__ import annotations

from collections.abc import Mapping

from models.flux import published
from models.interface.family import (
    Config,
    ConfigFiles,
    Family,
    PublishedCheckpoint,
    SingleFiles,
    config_files,
    with_control,
)
from models.sampling.published import FLOW_MATCH, SHIFTED_BY_TOKENS
from models.vision.preprocess import FILE as PREPROCESSOR

PLAIN, FROM_IMAGE = "FluxPipeline", "FluxImg2ImgPipeline"
FILL, CONTROL, KONTEXT = "FluxFillPipeline", "FluxControlPipeline", "FluxKontextPipeline"
PIPELINES = (PLAIN, FROM_IMAGE, FILL, CONTROL, KONTEXT)
NOT_SHIFTED = {**FLOW_MATCH, "shift": 1.0, "use_dynamic_shifting": False}


def _files(pipeline: str, networks: Mapping[str, Config]) -> ConfigFiles:
    return config_files(pipeline, SHIFTED_BY_TOKENS, networks)


DEV = _files(PLAIN, published.FLUX_DEV)
REDUX = {
    **DEV,
    **{f"redux/{name}/config.json": config for name, config in published.REDUX.items()},
    f"redux/feature_extractor/{PREPROCESSOR}": {"size": {"height": 384, "width": 384}},
}

FAMILY = Family(
    "flux",
    "Flux",
    dict.fromkeys(PIPELINES, f"{__package__}.load"),
    options=frozenset({"image_prompts", "controls", "token_buckets", "pipeline"}),
    single_files=SingleFiles(("text_encoder*", "vae"), "double_blocks or transformer_blocks"),
    published={
        "flux-dev": PublishedCheckpoint(DEV),
        "flux-schnell": PublishedCheckpoint(
            config_files(PLAIN, NOT_SHIFTED, published.FLUX_SCHNELL)
        ),
        "flux-fill": PublishedCheckpoint(_files(FILL, published.FLUX_FILL)),
        "flux-canny": PublishedCheckpoint(_files(CONTROL, published.FLUX_CONTROL)),
        "flux-depth": PublishedCheckpoint(_files(CONTROL, published.FLUX_CONTROL)),
        "flux-kontext": PublishedCheckpoint(_files(KONTEXT, published.FLUX_DEV)),
        "flux-redux": PublishedCheckpoint(REDUX, image_prompts={"redux": "redux"}),
        "flux-controlnet-union": with_control(
            DEV, published.CONTROLNET_UNION, "pose", "depth", "canny"
        ),
        "flux-controlnet-union-pro-2": with_control(DEV, published.CONTROLNET_UNION_PRO_2),
    },
)
