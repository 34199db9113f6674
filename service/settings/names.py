"""Names of models and their aliases in settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping

MAX_NAME_CHARS = 200
"""Maximum length of a model's name in requests."""
_RESERVED = frozenset({"", ".", "..", "requests", "predictions"})
"""Parts between slashes that paths of the API cannot contain. `requests` and `predictions` follow a
model's name in addresses of fal and Replicate."""


def check_model_name(name: str) -> None:
    """Check that every endpoint can name a model, some of them in their path.

    Raises: ValueError: a name that a request or a path cannot contain.
    """
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise ValueError(f"{name!r} must have 1 to {MAX_NAME_CHARS} printable characters")
    if wrong := sorted(_RESERVED & {*name.split("/")}):
        raise ValueError(
            f"{name!r} has the part {wrong[0]!r} between slashes, which paths of the API cannot"
            " contain; choose another name"
        )


def check_aliases(aliases: Mapping[str, str], models: Collection[str]) -> None:
    """Check that aliases are names of their own and stand for models.

    Raises: ValueError: an alias has the name of a model, or stands for another alias.
    """
    for alias, model in aliases.items():
        check_model_name(alias)
        if alias in models:
            raise ValueError(f"aliases.{alias}: a model has this name; choose another one")
        if model in aliases:
            raise ValueError(f"aliases.{alias}: {model!r} is an alias; name a model")
