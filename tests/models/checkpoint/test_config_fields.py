"""Fields of a `config.json` that shape a network, and fields that are ignored."""

from __future__ import annotations

from dataclasses import dataclass

from models.checkpoint.config_fields import OF_AVERAGING, arguments
from models.spec.notices import collected_notices


@dataclass(frozen=True)
class Sizes:
    width: int = 1
    levels: tuple[tuple[int, ...] | int, ...] = ()


def test_nested_lists_become_tuples() -> None:
    assert Sizes(**arguments(Sizes, {"levels": [[1, 2], 3]}, "config.json")) == Sizes(
        levels=((1, 2), 3)
    )


def test_keys_outside_the_network_are_ignored() -> None:
    """Ignored keys: class names, options of weight averaging in training, and keys without
    effect.
    """
    config = {"_class_name": "Sizes", "width": 2, "dropout": 0.1, **dict.fromkeys(OF_AVERAGING, 1)}
    assert arguments(Sizes, config, "config.json", {"dropout"}) == {"width": 2}


def test_other_keys_are_ignored_with_a_warning() -> None:
    """The reference ignores keys that its classes lack, too."""
    config = {"heads": 1, "depth": 2, "width": 3}
    with collected_notices() as notices:
        assert arguments(Sizes, config, "unet/config.json") == {"width": 3}
    assert notices == ["unet/config.json: keys without effect: depth, heads"]
