"""Suite entry of Chroma."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from tests.families.suite.entry import (
    GUIDED,
    SMALLEST,
    T5,
    Fields,
    SuiteEntry,
    drawn_by_diffusers,
    tiny,
)

chroma = partial(tiny, "tiny_chroma:make_chroma")


def _drawn_with_masks(folder: Path, request: Fields) -> np.ndarray:
    from tests.parity.tiny_chroma import MaskedChroma

    return drawn_by_diffusers(folder, request, of=MaskedChroma.from_pretrained)


PLAIN = SuiteEntry(
    place=28,
    make=chroma(
        transformer={"num_attention_heads": 8, "num_layers": 1, "num_single_layers": 2}, t5=T5
    ),
    least=chroma(transformer={"num_layers": 1, "num_single_layers": 1}),
    request={**GUIDED, "max_sequence_length": 20},
    smallest_request={**SMALLEST, "negative_prompt": "", "max_sequence_length": 16},
    reference=_drawn_with_masks,
    guided={"guidance_scale": 3.0},
    unguided={"guidance_scale": 1.0},
    published={"chroma1-hd": "Chroma1-HD"},
)

ENTRIES: Mapping[str, SuiteEntry] = {"chroma": PLAIN}
