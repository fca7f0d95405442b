"""Cases of fuzzing: what is put before a door, who stands there, and how cases are kept as files."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Case:
    """An input: ``files`` by name, which a door finds in a folder, and ``words`` said beside them.

    ``unknown``: a key that no reader can know, put in place of one that it does; it must be told.
    """

    format: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    unknown: str = ""


@dataclass(frozen=True)
class Answer:
    """What a door gave: the step's seconds where there is one, and what was said with it, as JSON values.

    ``wrong``: why it should not have answered.
    """

    seconds: float | None = None
    said: Any = None
    wrong: str = ""


@dataclass(frozen=True)
class Format:
    """A kind of input: ``make`` draws a case, ``door`` shows it to the product as a user would.

    A door gets the folder of the case's files; its working folder is another one, empty, and may hold what is
    in ``writes`` afterwards when all went well.
    """

    name: str
    make: Callable[[Random], Case]
    door: Callable[[Path, Case], Answer]
    writes: tuple[str, ...] = ()


FORMATS: dict[str, Format] = {}


def register(formats: Iterable[Format]) -> None:
    """Have cases of ``formats`` drawn."""
    for one in formats:
        assert one.name not in FORMATS, one.name
        FORMATS[one.name] = one


def drawn(name: str, seed: int, number: int) -> Case:
    """The ``number``-th case of a format by a seed: the same on every machine."""
    return FORMATS[name].make(Random(f"{name} {seed} {number}"))


def to_json(case: Case, found: str = "") -> str:
    """The case as text; ``found`` is what went wrong with it once."""
    files: dict[str, Any] = {}
    for name, data in case.files.items():
        try:
            files[name] = data.decode("ascii")
        except UnicodeDecodeError:
            files[name] = {"base64": base64.b64encode(data).decode("ascii")}
    content = {"format": case.format, "found": found, "words": list(case.words), "files": files}
    return json.dumps(content, indent=1) + "\n"


def from_json(text: str) -> Case:
    """The case of :func:`to_json`."""
    content = json.loads(text)
    files = {
        name: data.encode("ascii") if isinstance(data, str) else base64.b64decode(data["base64"])
        for name, data in content["files"].items()
    }
    return Case(content["format"], files, tuple(content["words"]))
