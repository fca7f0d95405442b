"""Values of specs: from text, and checked with messages that name key, reason and nearest name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from simcore.errors import InputError, nearest
from simcore.outside import yaml_document

M = TypeVar("M", bound=BaseModel)

_WHOLE = re.compile("0|[1-9][0-9]{0,17}", re.ASCII)  # longer ones are for the parser to refuse
_WORD = re.compile("[a-z][a-z0-9_]*", re.ASCII)
#: Words that YAML takes for something else than text.
_TRUTHS = {"true": True, "false": False}
_NO_TEXT = {*_TRUTHS, "yes", "no", "on", "off", "y", "n", "null"}


def value_of(text: str, key: str) -> Any:
    """What ``KEY=VALUE`` means by VALUE: a number, a truth value, a list, a mapping or text (as in YAML).

    InputError when it is not YAML.
    """
    if _WHOLE.fullmatch(text):  # most are: they need no parser
        return int(text)
    if text in _TRUTHS:
        return _TRUTHS[text]
    if _WORD.fullmatch(text) and text not in _NO_TEXT:
        return text
    return yaml_document(text, f"{key} = {text[:80]!r}")


def checked(kind: type[M], values: Mapping[str, Any], where: str) -> M:
    """``kind`` with ``values``.  InputError for unknown keys, with the nearest, and for impossible values."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise refused(kind, error, where) from None


def refused(kind: type[BaseModel], error: ValidationError, where: str) -> InputError:
    """What pydantic has against the values of a ``kind``, as an error of ours."""
    # An unknown key first: it may be the misspelt name of one that is missing.
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    return InputError(_message(kind, details[0], where))


def _message(kind: type[BaseModel], detail: Mapping[str, Any], where: str) -> str:
    at = [str(part) for part in detail["loc"]]
    key = ".".join([where, *at])
    holder = _holder(kind, at[:-1])
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key!r}{nearest(at[-1], holder.model_fields)}"
    if detail["type"] == "missing":
        return f"{key} is missing"
    found = detail.get("input")
    if detail["type"] in ("literal_error", "unknown_name"):
        known = detail.get("ctx", {}).get("names") or _choices(holder, at)
        choices = [str(choice) for choice in known]
        if str(found).lower() in choices:
            return f"{key} cannot be {found!r}; did you mean {str(found).lower()!r}?"
        return f"{key} cannot be {found!r}{nearest(str(found), choices)}"
    if detail["type"] == "model_type":
        fields = ", ".join(_holder(kind, at).model_fields)
        return f"{key} maps keys to values, not {found!r}; keys: {fields}"
    limits = {name: detail.get("ctx", {}).get(name) for name in ("gt", "ge", "lt", "le")}
    if detail["type"] == "greater_than" and limits["gt"] is not None and isinstance(found, int):
        return f"{key} = {found!r}: must be more than {limits['gt']}; nearest: {limits['gt'] + 1:g}"
    if detail["type"] == "greater_than_equal" and limits["ge"] is not None:
        return f"{key} = {found!r}: must be at least {limits['ge']:g}; nearest: {limits['ge']:g}"
    if detail["type"] == "less_than_equal":
        return f"{key} = {found!r}: is more than can be simulated; nearest: {limits['le']}"
    if detail["type"] in ("int_parsing", "int_type", "int_from_float"):
        return f"{key} = {found!r}: must be a whole number{_number_in(found)}"
    if detail["type"] == "bool_parsing":
        return f"{key} = {found!r}: must be true or false"
    if detail["type"] == "tuple_type":
        return f"{key} = {found!r}: must be a list; nearest: [{found}]"
    reason = detail["msg"]
    return f"{key} = {found!r}: {reason[0].lower()}{reason[1:]}"


def _holder(kind: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """The model that holds the key at the end of ``path``."""
    for name in path:
        inner = _annotation(kind, name)
        options = get_args(inner) if get_origin(inner) is not None or get_args(inner) else (inner,)
        models = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
        if not models:
            return kind
        kind = models[0]
    return kind


def _annotation(kind: type[BaseModel], name: str) -> Any:
    field = kind.model_fields.get(name)
    return field.annotation if field is not None else None


def _choices(holder: type[BaseModel], at: list[str]) -> tuple[Any, ...]:
    """The words that the key at the end of ``at`` may be; of a list's element, those of the list."""
    if at[-1].isdecimal() and len(at) > 1:
        return get_args(next(iter(get_args(_annotation(holder, at[-2]))), None))
    return get_args(_annotation(holder, at[-1]))


def _number_in(found: Any) -> str:
    """What was probably meant by a number with a letter ("8k" tokens are 8192) or a fraction."""
    thousands = re.fullmatch(r"(\d+)\s*[kK]", found.strip()) if isinstance(found, str) else None
    if thousands:
        return f"; nearest: {1024 * int(thousands[1])}"
    return f"; nearest: {round(found)}" if isinstance(found, float) else ""
