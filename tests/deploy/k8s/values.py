"""Values files that no overlay is written from. `python -m` prints the one with all features."""

from __future__ import annotations

from typing import Any

from tools.cluster.merging import plain
from tools.cluster.values import Values

A_MODEL: dict[str, Any] = {
    "name": "flux-dev",
    "source": "/weights/FLUX.1-dev",
    "chip": "v6e",
    "topology": "2x4",
    "objective_s": 25,
}
WAYS = [
    {"reservation": "ours"},
    {"reservation": "projects/other/reservations/theirs"},
    "spot",
    "on-demand",
    "flex-start",
]
ALL_WAYS = Values.model_validate(
    {
        "namespace": "pictures",
        "cluster": "east",
        "backup": {"schedule": "*/30 3 * * mon-fri"},
        "models": [
            A_MODEL | {"capacity": WAYS},
            A_MODEL | {"name": "Flux dev 1.0", "chip": "h100", "topology": "4", "capacity": WAYS},
            A_MODEL
            | {"name": "wan", "topology": "4x4", "capacity": ["on-demand"], "min": 1, "max": 2},
            A_MODEL
            | {
                "name": "sdxl",
                "chip": "h200",
                "topology": "1",
                "slots": 3,
                "objective_s": 12.5,
                "layout": {"data": 1},
                "warmup": [{"width": 512, "height": 512}, {}],
                "cold_start_s": 60,
                "model_settings": {"vae_tiling": {"side": 256, "stride": 192}},
                "pool_settings": {"quantum_s": 2.5, "flags": ["a=b", 'c="d"']},
            },
        ],
    }
)
"""Several models with every way to get machines."""
ODD = Values.model_validate(
    {
        "namespace": "123",
        "cluster": "a #b: c",
        "env": {"A": "1e-3", "B": '"x"', "C": "y", "D": "a=b #c: d", "E": "{{ x }}", "F": "<a>&b"},
        "frontend": "  # {{ a }}\n[server]\nkeys = true\n",
        "models": [
            A_MODEL | {"name": "flux #1: dev"},
            A_MODEL
            | {
                "name": "<b>&amp;</b>",
                "source": "/weights/<a>&b",
                "model_settings": {"defaults": {"prompt": "\\u003c < \u2028"}},
                "sections": {"loras": {"<&>": {"model": "m", "source": "/x?a=1&b=<2>"}}},
                "pool_settings": {"flags": ["--a<b", "--c>=1&&d", "\\u0026 &"]},
            },
            A_MODEL | {"name": "1e3", "source": "0o7", "objective_s": 1000000},
            A_MODEL | {"name": "y", "source": "on", "objective_s": 12.3456789},
            A_MODEL | {"name": "modèle 😀@r2/{{ x }}", "pool": "null"},
            A_MODEL
            | {
                "name": "an 'x'",
                "capacity": [{"reservation": "123"}],
                "sections": {
                    "output": {"prompts": False},
                    "loras": {"a b": {"model": "m", "source": "/x"}},
                },
                "pool_settings": {"flags": ["--x=#1", "😀", "a\nb", 'c"d\\']},
            },
        ],
    }
)
"""Texts that YAML, TOML or a template might misinterpret."""


if __name__ == "__main__":  # `make lint-deploy`
    print(plain(ALL_WAYS.model_dump(mode="json", exclude_defaults=True)))
