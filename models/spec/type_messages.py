"""Messages of this project for the errors of pydantic, whose own texts never reach clients.

Each is a predicate: a field's name precedes it, as in `seed: must be a whole number`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MESSAGES: Mapping[str, str] = {
    "missing": "is required",
    "extra_forbidden": "there is no such field",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dataclass_type": "must be an object",
    "dict_type": "must be an object",
    "invalid_key": "must be an object whose names are texts",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "string_type": "must be a text",
    "string_unicode": "must be a text in UTF-8",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "none_required": "must be null",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "union_tag_invalid": "has a type that is not accepted here",
    "union_tag_not_found": "has a type that is not accepted here",
}
"""Message by pydantic's type of error; names in braces are members of the error's context."""
_OTHER = "has a value that is not accepted here; see /docs"
_VALIDATORS = frozenset({"value_error", "assertion_error"})
"""Errors that this project's validators raise, with their own messages."""


def type_message(error: Mapping[str, Any]) -> str:
    """Return the message of one of pydantic's errors, without the client's value.

    Args:
        error: an entry of `ValidationError.errors()`.
    """
    context = error.get("ctx", {})
    if error["type"] in _VALIDATORS:
        return str(context["error"])
    shown = {name: _shown(value) for name, value in context.items()}
    return _singular(_MESSAGES.get(error["type"], _OTHER).format(**shown))


def _shown(value: Any) -> Any:
    """Format a bound: 1000000.0 as 1000000, and the values of JSON as JSON writes them."""
    if isinstance(value, str):
        return {"True": "true", "False": "false", "None": "null"}.get(value, value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _singular(message: str) -> str:
    """Correct the plural after the number 1 in a message."""
    return message.replace(" 1 entries", " 1 entry").replace(" 1 characters", " 1 character")
