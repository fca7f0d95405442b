"""The one loader of tables: TOML files of numbers with units and sources, checked against declared schemas.

Note [Schemas]
    A schema is data.  It is one of

    * :class:`~simcore.units.Number`: ``{ value = 2.8, unit = "us", source = "..." }``, read in SI;
    * :class:`Listed`: ``{ value = [...], source = "..." }``;
    * :class:`Text`, :class:`Plain`: a text, a number whose unit stands in its key;
    * a mapping of keys to schemas, or a dataclass whose fields are annotated with types or schemas: a table
      with these keys and no others; :class:`Maybe` and fields with a default may be left out;
    * :class:`Sourced`: a table that says in ``source`` where all of its numbers come from;
    * :class:`Each`: a table of alike entries; :class:`Rows`: an array of them; ``Any``: whatever is there.

    Sources of single numbers are collected by dotted key.  What is refused is refused with file, table and
    key, and the nearest right word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from simcore.errors import InputError, nearest
from simcore.outside import read_text, toml_document
from simcore.records import dataclass
from simcore.units import Number

#: Tables of fewer keys are spelt out in messages.
_FEW: Final = 5
_LISTED: Final = '{ value = [...], source = "..." }'
_QUANTITY: Final = '{ value = ..., unit = "...", source = "..." }'


@dataclass(frozen=True)
class Text:
    """A text that is not blank; one of ``choices`` where there are any."""

    choices: tuple[str, ...] | None = None

    def from_value(self, value: object, where: str) -> str:
        """``value`` if it is such a text, else InputError with the nearest choice."""
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{where} must be a text, got {value!r}")
        if self.choices is not None and value not in self.choices:
            raise InputError(f"{where} cannot be {value!r}{nearest(value, self.choices)}")
        return value

    from_text = from_value


@dataclass(frozen=True)
class Plain:
    """A finite number of 0 or more; ``share``: at most 1."""

    share: bool = False
    zero_allowed: bool = True
    integer: bool = False

    def from_value(self, value: object, where: str) -> float:
        """``value`` if it is such a number, else InputError."""
        known = int if self.integer else int | float
        if isinstance(value, bool) or not isinstance(value, known) or not 0 <= value < float("inf"):
            raise InputError(f"{where} = {value!r} must be a {'whole ' if self.integer else ''}number >= 0")
        if not self.zero_allowed and value == 0:
            raise InputError(f"{where} must be above 0")
        if self.share and value > 1:
            raise InputError(f"{where} = {value} is a share and must be at most 1")
        return value if self.integer else float(value)


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def from_value(self, value: object, where: str) -> bool:
        """``value`` if it is one of them, else InputError."""
        if not isinstance(value, bool):
            raise InputError(f"{where} must be true or false, got {value!r}")
        return value


@dataclass(frozen=True)
class Listed:
    """A list with its source; ``items`` says what it lists, ``fits`` whether an item is such a one."""

    items: str
    fits: Callable[[Any], bool]

    def from_value(self, value: object, where: str) -> list[Any]:
        """``value`` if it is such a list, else InputError with the first item that does not fit."""
        if not isinstance(value, list) or not value:
            raise InputError(f"{where}: expected a list of {self.items}, got {value!r}")
        for item in value:
            if not self.fits(item):
                raise InputError(f"{where}: expected a list of {self.items}, but it has {item!r}")
        return value

    def from_text(self, text: str, where: str) -> list[Any]:
        """A list as overrides write it: ``0,0,1,1`` or ``[[0, 1, 2]]``."""
        bare = text if text.lstrip().startswith("[") else f"[{text}]"
        try:
            value = toml_document(f"value = {bare}", where)["value"]
        except InputError:
            raise InputError(f"{where}: expected a list such as 0,0,1,1, got {text[:200]!r}") from None
        return self.from_value(value, where)


@dataclass(frozen=True)
class Maybe:
    """A key of ``schema`` that may be left out."""

    schema: Any


@dataclass(frozen=True)
class Sourced:
    """A table of ``schema`` with a ``source`` for all of it."""

    schema: Any


@dataclass(frozen=True)
class Each:
    """A table of entries of one ``schema``; ``names``: those that it may have (None: any).

    ``must``: entries that have to be there, by schemas of their own.
    """

    schema: Any
    names: tuple[str, ...] | None = None
    must: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """An array of one ``schema``; ``length`` where it is fixed."""

    schema: Any
    length: int | None = None


TEXT: Final = Text()
#: Annotations of dataclass fields.
Share = Annotated[float, Plain(share=True)]
Positive = Annotated[float, Plain(zero_allowed=False)]
PositiveShare = Annotated[float, Plain(share=True, zero_allowed=False)]

_OF_TYPE: Final[dict[Any, Any]] = {
    float: Plain(), int: Plain(integer=True), bool: Flag(), str: TEXT, Any: Any,
}  # fmt: skip


@cache
def names(package: str, folder: str = ".") -> tuple[str, ...]:
    """Names of the tables that ``package`` keeps in ``folder``, sorted."""
    entries = resources.files(package).joinpath(folder).iterdir()
    return tuple(sorted(e.name.removesuffix(".toml") for e in entries if e.name.endswith(".toml")))


def parse(text: str, where: str) -> dict[str, Any]:
    """TOML as nested dicts.  InputError with ``where`` for a text that is none."""
    return toml_document(text, where)


def load(schema: Any, package: str, path: str) -> Any:
    """The table at ``path`` in ``package``, as :func:`read`."""
    return read(schema, deepcopy(_packaged(package, path)), f"{package.replace('.', '/')}/{path}")


@cache
def _packaged(package: str, path: str) -> dict[str, Any]:
    """A file of the package, parsed once: the same ones are asked for with every cluster."""
    return parse(text(package, path), f"{package.replace('.', '/')}/{path}")


def text(package: str, path: str) -> str:
    """A file of the package, not parsed, which takes five times as long as to read it."""
    return resources.files(package).joinpath(path).read_text(encoding="utf-8")


def load_named(schema: Any, kind: str, name: str, what: str) -> Any:
    """``hardware_profiles/<kind>/<name>.toml``.  InputError, with the nearest name, where there is none."""
    known = names("hardware_profiles", kind)
    if name not in known:
        raise InputError(f"{what} {name!r}{nearest(name, known)}")
    return load(schema, "hardware_profiles", f"{kind}/{name}.toml")


def read_file(path: Path, what: str) -> dict[str, Any]:
    """A user's TOML file.  InputError if it cannot be read or is none."""
    return toml_document(read_text(path, what), str(path))


def read(schema: Any, raw: str | Mapping[str, Any], where: str, sources: dict[str, str] | None = None) -> Any:
    """What ``raw``, the text of a file or its parsed TOML, holds by ``schema``; see Note [Schemas].

    ``where`` names the file in messages.  A mapping is read as a dict of the keys that are there, a dataclass
    as an instance; ``sources`` gets the source of each number.  Errors: InputError.
    """
    table = parse(raw, where) if isinstance(raw, str) else raw
    return _read(schema, table, _Place(where, (), {} if sources is None else sources))


@dataclass(frozen=True)
class _Place:
    where: str
    path: tuple[str, ...]
    sources: dict[str, str]

    @property
    def table(self) -> str:
        """How messages call the table here."""
        return _table_at(self.where, self.path)

    @property
    def key(self) -> str:
        """How messages call the value here."""
        return f"{_table_at(self.where, self.path[:-1])}: {self.path[-1]}" if self.path else self.where

    def at(self, key: str) -> _Place:
        return _Place(self.where, (*self.path, key), self.sources)


def _table_at(where: str, path: tuple[str, ...]) -> str:
    return f"{where} [{'.'.join(path)}]" if path else where


def _read(schema: Any, value: Any, place: _Place) -> Any:
    if isinstance(schema, Text | Plain | Flag):
        return schema.from_value(value, place.key)
    if isinstance(schema, Number | Listed):
        return _with_source(schema, value, place)
    if isinstance(schema, Rows):
        if not isinstance(value, list) or schema.length not in (None, len(value)):
            some = "a list" if schema.length is None else f"{schema.length} values"
            raise InputError(f"{place.key}: expected {some}, got {value!r}")
        return tuple(_read(schema.schema, item, place.at(str(row))) for row, item in enumerate(value))
    if schema is Any:
        return value
    keys: Any = keys_of(schema) if isinstance(schema, type) else schema
    if not isinstance(value, dict):
        spelt = f" of {', '.join(keys)}" if isinstance(keys, Mapping) and len(keys) < _FEW else ""
        raise InputError(f"{place.key}: expected a table{spelt}, got {value!r}")
    if isinstance(schema, Sourced):
        if not str(value.get("source", "")).strip():
            raise InputError(f"{place.table}: source must say where the numbers come from")
        return _read(schema.schema, {key: entry for key, entry in value.items() if key != "source"}, place)
    if isinstance(schema, Each):
        known = value if schema.names is None else schema.names
        keys = {**dict.fromkeys(known, Maybe(schema.schema)), **schema.must}
    found = _read_keys(keys, value, place)
    return schema(**found) if isinstance(schema, type) else found


def _read_keys(schema: Mapping[str, Any], value: Mapping[str, Any], place: _Place) -> dict[str, Any]:
    _refuse_unknown(value, schema, place.table)
    found: dict[str, Any] = dict.fromkeys(value)  # in the order of the file
    for key, entry in schema.items():
        if key in value:
            found[key] = _read(entry.schema if isinstance(entry, Maybe) else entry, value[key], place.at(key))
        elif not isinstance(entry, Maybe):
            raise InputError(f"{place.table}: key {key!r} is missing")
    return found


def _with_source(schema: Number | Listed, entry: Any, place: _Place) -> Any:
    has_unit = isinstance(schema, Number)
    if not isinstance(entry, dict):
        raise InputError(f"{place.key}: expected {_QUANTITY if has_unit else _LISTED}, got {entry!r}")
    keys = ("value", "unit", "source") if has_unit else ("value", "source")
    _refuse_unknown(entry, keys, place.key)
    for key in (*keys[1:], "value"):
        if key not in entry:
            raise InputError(f"{place.key}: key {key!r} is missing")
    place.sources[".".join(place.path)] = TEXT.from_value(entry["source"], f"{place.key}: source")
    if isinstance(schema, Listed):
        return schema.from_value(entry["value"], place.key)
    return schema.from_value(entry["value"], TEXT.from_value(entry["unit"], f"{place.key}: unit"), place.key)


def _refuse_unknown(table: Mapping[str, Any], known: Mapping[str, Any] | tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}{nearest(key, known)}")


@cache
def keys_of(kind: Any) -> dict[str, Any]:
    """The schema of a dataclass, by field."""
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for spec in fields(kind):
        schema = _of_hint(hints[spec.name])
        optional = spec.default is not MISSING or spec.default_factory is not MISSING
        found[spec.name] = Maybe(schema) if optional else schema
    return found


def _of_hint(hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return inner[1]
    if origin is tuple:
        return Rows(_of_hint(inner[0]), None if inner[-1] is ... else len(inner))
    if origin in (dict, Mapping):
        return Each(_of_hint(inner[1]))
    if origin is UnionType:
        return _of_hint(inner[0])
    return hint if is_dataclass(hint) else _OF_TYPE[hint]
