"""What a launcher is told and what it means here, both ways: a flag with the settings that it stands for.

A dialect (Megatron-LM's flags, torchtitan's keys, ...) is a table of :class:`Option`.  Each reads what was
said into settings (``section.key`` -> value) and writes a job's settings as words; there is no other place in
which a flag and a setting meet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from simcore.errors import InputError, nearest
from simcore.records import dataclass
from workloads.jobs.complete import Description

T = TypeVar("T")

#: ``section.key`` -> value, as ``workloads.jobs.complete`` takes them in sections.
Settings = Mapping[str, Any]
#: Words behind each name; a switch has none.
Words = Mapping[str, tuple[str, ...]]

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_MOST: Final = 1 << 24
_TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


class Said:
    """Words of a launch as options read them.  ``num_gpus``: GPUs that the job is launched on.

    ``notes``: what readers took for granted.  Errors: InputError for words that do not fit their name.
    """

    def __init__(self, words: Words, where: str, num_gpus: int) -> None:
        self.words, self.where, self.num_gpus = words, where, num_gpus
        self.notes: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the name was given, as a switch or with a word."""
        return name in self.words

    def wrong(self, name: str, why: str) -> InputError:
        """What is wrong with a name's words."""
        shown = " ".join((name, *self.words.get(name, ())))
        return InputError(f"{self.where}: {shown[:120]!r}: {why}")

    def text(self, name: str, default: T) -> str | T:
        """The one word behind a name."""
        if name not in self.words:
            return default
        found = self.words[name]
        if len(found) != 1:
            raise self.wrong(name, f"one value, not {len(found)}" if found else "has no value")
        return found[0]

    def number(self, name: str, default: T) -> int | T:
        """A whole number."""
        text = self.text(name, None)
        if text is None:
            return default
        found = whole(text)
        if found is None:
            raise self.wrong(name, "must be a whole number")
        return found

    def count(self, name: str, default: int = 1) -> int:
        """A degree, or a number of stages: at least 1, and no more than ranks can be."""
        found = self.number(name, default)
        if not 0 < found <= _MOST:
            raise self.wrong(name, f"must be between 1 and {_MOST:,}")
        return found

    def needed(self, name: str) -> int:
        """A whole number without which there is no job."""
        found = self.number(name, None)
        if found is None:
            raise InputError(f"{self.where}: {name} is missing")
        return found

    def real(self, name: str, default: T) -> float | T:
        """A number."""
        text = self.text(name, None)
        if text is None:
            return default
        try:
            found = float(text)
        except ValueError:
            raise self.wrong(name, "must be a number") from None
        if not abs(found) < 1e18:
            raise self.wrong(name, "must be a finite number")
        return found

    def meant(self, name: str, meanings: Mapping[str, T], default: T) -> T:
        """What one of several words means."""
        text = self.text(name, None)
        if text is None:
            return default
        if text not in meanings:
            raise self.wrong(name, f"unknown value{nearest(text, meanings)}")
        return meanings[text]

    def truth(self, name: str, *, default: bool) -> bool:
        """True or false, where names are no switches."""
        text = self.text(name, None)
        if text is None:
            return default
        if text.lower() not in _TRUTHS:
            raise self.wrong(name, "must be true or false")
        return _TRUTHS[text.lower()]


def whole(text: str) -> int | None:
    """The whole number that ``text`` is: ASCII digits, at most 18 of them; None for anything else."""
    return int(text) if _WHOLE.fullmatch(text) else None


@dataclass(frozen=True)
class Option:
    """Names of a dialect that belong together, and the settings that they are."""

    names: tuple[str, ...]
    read: Callable[[Said], Settings]
    write: Callable[[Description], Words]


def value_of(job: Description, key: str) -> Any:
    """The value of ``section.key`` (``model.moe.top_k``) in a complete job; None where it has none."""
    found: Any = job
    for part in key.split("."):
        found = None if found is None else getattr(found, part)
    return found


def number(name: str, key: str, default: int | None = None, *, always: bool = False) -> Option:
    """A whole number; without ``default`` it must be said.  ``always``: the default is written, too."""

    def read(said: Said) -> Settings:
        return {key: said.needed(name) if default is None else said.number(name, default)}

    def write(job: Description) -> Words:
        value = value_of(job, key)
        return {} if value == default and not always else {name: (str(value),)}

    return Option((name,), read, write)


def switch(name: str, key: str, *, on: Any = True, off: Any = False) -> Option:
    """A flag without a word: the setting is ``on`` with it and ``off`` without."""

    def read(said: Said) -> Settings:
        return {key: on if said.has(name) else off}

    def write(job: Description) -> Words:
        return {name: ()} if value_of(job, key) == on else {}

    return Option((name,), read, write)


def truth(name: str, key: str, *, default: bool) -> Option:
    """A key that is true or false, always written."""

    def read(said: Said) -> Settings:
        return {key: said.truth(name, default=default)}

    def write(job: Description) -> Words:
        return {name: (str(bool(value_of(job, key))).lower(),)}

    return Option((name,), read, write)


def choice(name: str, key: str, meanings: Mapping[str, Any], default: str) -> Option:
    """One of several words; the first word of a meaning is written, ``default`` is not."""

    def read(said: Said) -> Settings:
        return {key: said.meant(name, meanings, meanings[default])}

    def write(job: Description) -> Words:
        value = value_of(job, key)
        word = next((word for word, meaning in meanings.items() if meaning == value), default)
        return {} if meanings[word] == meanings[default] else {name: (word,)}

    return Option((name,), read, write)


def settings_of(said: Said, table: Iterable[Option]) -> dict[str, Any]:
    """All settings that the options of ``table`` read.  InputError as they say."""
    found: dict[str, Any] = {}
    for option in table:
        found.update(option.read(said))
    return found


def words_of(job: Description, table: Iterable[Option]) -> dict[str, tuple[str, ...]]:
    """All words that the options of ``table`` write for a job."""
    found: dict[str, tuple[str, ...]] = {}
    for option in table:
        found.update(option.write(job))
    return found


def sections_of(settings: Settings) -> dict[str, dict[str, Any]]:
    """Settings by section, keys with dots as mappings in each other."""
    content: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        place: dict[str, Any] = content
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return content


def flat_words(content: Mapping[str, Any], where: str) -> dict[str, tuple[str, ...]]:
    """Words of a parsed file: keys of tables in each other with dots between, null left out."""
    found: dict[str, tuple[str, ...]] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            inner = flat_words(value, where)
            found.update({f"{key}.{name}": words for name, words in inner.items()})
        elif isinstance(value, list):
            found[str(key)] = tuple(map(_word, value))
        elif value is not None:
            found[str(key)] = (_word(value),)
    return found


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
