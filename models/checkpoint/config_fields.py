"""Conversion of a parsed `config.json` to the arguments of a config dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import fields
from typing import Any, ClassVar, Self

from models.spec.notices import notice

OF_AVERAGING = frozenset(
    {
        "decay",
        "inv_gamma",
        "min_decay",
        "optimization_step",
        "power",
        "update_after_step",
        "use_ema_warmup",
    }
)
"""Fields that diffusers' training writes with averaged weights; no network reads them."""


class TransformerConfig:
    """Base of the config dataclasses of denoising transformers, with diffusers' field names."""

    WITHOUT_EFFECT: ClassVar[Set[str]] = frozenset()
    """Keys of published configs without effect."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Read a checkpoint's transformer config.

        Raises: ValueError: an invalid value.
        """
        return cls(**arguments(cls, config, "transformer/config.json", cls.WITHOUT_EFFECT))

    def check_integers(self, *names: str, least: int = 1) -> None:
        """Validate that fields are integers of at least `least`. Raises: ValueError."""
        for name in names:
            value = getattr(self, name)
            if type(value) is not int or value < least:
                kind = "positive integer" if least else "whole number"
                raise ValueError(f"{name} must be a {kind}, not {value!r}")

    def check_axes(self, name: str, axes: int, head: str, size: float) -> None:
        """Validate that a field divides a head's dimensions among the axes of a position.

        Args:
            head, size: field of the head's dimensions, and its value.

        Raises: ValueError: not that many sizes, an odd one (RoPE rotates pairs), or another sum.
        """
        dims = getattr(self, name)
        if len(dims) != axes or sum(dims) != size or any(dim % 2 for dim in dims):
            raise ValueError(
                f"{name} {dims} must be {axes} even sizes that add up to {head} {size:g}"
            )


class HeadedConfig(TransformerConfig):
    """Base of configs that define a token's width by attention heads."""

    attention_head_dim: int
    num_attention_heads: int

    @property
    def width(self) -> int:
        """Features of a token: heads times head dimension."""
        return self.num_attention_heads * self.attention_head_dim

    def check_rope(self, axes: int) -> None:
        """Validate `axes_dims_rope` for positions of that many axes. Raises: ValueError."""
        self.check_axes("axes_dims_rope", axes, "attention_head_dim", self.attention_head_dim)


def arguments(
    kind: type, config: Mapping[str, Any], file: str, without_effect: Set[str] = frozenset()
) -> dict[str, Any]:
    """Return the config values that shape a network, with lists as tuples, without "_" keys.

    Args:
        kind: the dataclass.
        file: of the config, for messages.
        without_effect: keys that the reference writes and does not read.

    Keys that the dataclass lacks have no effect, as in diffusers; a notice names them.
    """
    ignored = OF_AVERAGING | without_effect
    values = {
        key: frozen(value)
        for key, value in config.items()
        if not key.startswith("_") and key not in ignored
    }
    if unknown := sorted(values.keys() - {field.name for field in fields(kind)}):
        notice(f"{file}: keys without effect: {', '.join(unknown)}")
    return {key: value for key, value in values.items() if key not in unknown}


def check_fit(*pairs: tuple[str, int, str, int]) -> None:
    """Validate that the sizes of a checkpoint's components match.

    Args:
        pairs: (component and field, its size, another component and field, its size).

    Raises: ValueError: two sizes differ.
    """
    for first, a, second, b in pairs:
        if a != b:
            raise ValueError(f"{first} is {a}, but {second} is {b}: the parts do not fit")


def frozen(value: Any) -> Any:
    """Convert nested lists to tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value
