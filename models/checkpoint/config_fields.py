"""A parsed `config.json` → the arguments of a config's dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import fields
from typing import Any, ClassVar, Self

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
"""Fields that diffusers' training leaves in the file of averaged weights; no network reads them."""


class TransformerConfig:
    """Base of the configs of denoising transformers: dataclasses whose fields are diffusers'."""

    WITHOUT_EFFECT: ClassVar[Set[str]] = frozenset()
    """Keys of published configs that change nothing."""

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Read a checkpoint's config.

        Raises: ValueError for a key that this network does not know, or a wrong value.
        """
        return cls(**arguments(cls, config, "transformer/config.json", cls.WITHOUT_EFFECT))

    def check_whole(self, *names: str, least: int = 1) -> None:
        """Check that fields are whole numbers of at least 0 or 1. Raises: ValueError."""
        for name in names:
            value = getattr(self, name)
            if type(value) is not int or value < least:
                kind = "positive integer" if least else "whole number"
                raise ValueError(f"{name} must be a {kind}, not {value!r}")


class HeadedConfig(TransformerConfig):
    """Base of those that say a token's width by the heads of attention."""

    attention_head_dim: int
    num_attention_heads: int

    @property
    def width(self) -> int:
        """Features of a token: those of all heads."""
        return self.num_attention_heads * self.attention_head_dim


def arguments(
    kind: type, config: Mapping[str, Any], file: str, without_effect: Set[str] = frozenset()
) -> dict[str, Any]:
    """The values that shape a network, lists as tuples; keys that begin with "_" are not its own.

    Args:
        kind: the dataclass.
        file: of the config, for messages.
        without_effect: keys that the reference writes and does not read.

    Raises: ValueError: keys that the dataclass does not have, all of them at once.
    """
    aside = OF_AVERAGING | without_effect
    values = {
        key: frozen(value)
        for key, value in config.items()
        if not key.startswith("_") and key not in aside
    }
    unknown = sorted(values.keys() - {field.name for field in fields(kind)})
    if unknown:
        raise ValueError(f"{file} has keys not served here: {unknown}")
    return values


def check_fit(*pairs: tuple[str, int, str, int]) -> None:
    """Check that parts of one checkpoint fit each other.

    Args:
        pairs: (part and field, its size, another part and field, its size).

    Raises: ValueError: two sizes that differ.
    """
    for ours, a, theirs, b in pairs:
        if a != b:
            raise ValueError(f"{ours} is {a}, but {theirs} is {b}: the parts do not fit")


def frozen(value: Any) -> Any:
    """Lists, and lists in them, as tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value
