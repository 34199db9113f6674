"""Base of all sections of the settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and says what is wrong."""


class Section(BaseModel):
    """Base of the sections: frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
