"""Base class of all sections of the settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigError(Exception):
    """Unusable configuration. The message names the key and states the problem."""


class Section(BaseModel):
    """Base class of the sections: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
