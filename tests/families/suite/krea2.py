"""Suite entry of Krea 2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tests.families.suite.entry import CLIP, GUIDED, SMALLEST, SuiteEntry, drawn_by_diffusers, tiny

krea2 = partial(tiny, "tiny_krea2:make_krea2", text_encoder=CLIP, states=(1, 2))
HEADS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "axes_dims_rope": (2, 2, 4),
    "num_layers": 2,
}
SMALL = {"num_layers": 1, "num_layerwise_text_blocks": 1, "num_refiner_text_blocks": 1}

PLAIN = SuiteEntry(
    place=23,
    make=krea2(transformer=HEADS),
    least=krea2(transformer=SMALL),
    request={**GUIDED, "max_sequence_length": 160},
    smallest_request={**SMALLEST, "negative_prompt": "", "max_sequence_length": 160},
    reference=drawn_by_diffusers,
    guided={"guidance_scale": 3.0},
    unguided={"guidance_scale": 0.0},
    published={"krea-2-raw": "Krea-2-Raw", "krea-2-turbo": "Krea-2-Turbo"},
    has_strength=False,
    weighted_prompts=False,
)

ENTRIES: Mapping[str, SuiteEntry] = {"krea2": PLAIN}
