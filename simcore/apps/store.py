"""Results kept in a file by what they are results of: whoever asks again takes them from there.

Note [Content, not names].  A key hashes all that decides a result: the question, complete, and the text of
the code and profiles that answer it.  So a file never goes stale, going on after a kill is asking again, and
files of several machines are merged line by line, in any order and as often as one likes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from simcore.apps.progress import say
from simcore.errors import InputError
from simcore.files import append_line
from simcore.outside import json_document, read_text

#: What each line begins with, as it is written.
_BEGIN: Final = '{"key": "'
#: Endings of what is hashed: code, and the tables that it reads.
_TEXTS: Final = (".py", ".toml", ".csv", ".json")


class Store:
    """Results by key in ``path``, a file of JSON lines, each appended and on the disk when it is known.

    ``check`` raises a ValueError, TypeError or KeyError for what is no result (``what``, for messages).  A
    line that is none, the half of one that a kill left among them, is told of and its result found again.
    Several lines of one key add to each other, later ones first.  ``also``: files that are only read.
    Errors: InputError for a file that cannot be read or written, or that is something else.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        check: Callable[[Mapping[str, Any]], object],
        also: Iterable[Path] = (),
    ) -> None:
        self.path, self._what, self._check = path, what, check
        self._known: dict[str, dict[str, Any]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None
        for one in (path, *also):
            if one.exists():
                self._known |= self._read(one)

    def __len__(self) -> int:
        """How many results are known."""
        return len(self._known)

    def get(self, key: str) -> Mapping[str, Any] | None:
        """What is known by ``key``."""
        return self._known.get(key)

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Remember a result."""
        self._known[key] = {**self._known.get(key, {}), **result}
        append_line(self.path, json.dumps({"key": key, **result}))

    def merge(self, path: Path) -> int:
        """Take over what the file ``path`` knows and this one does not; how many results that are."""
        found = self._read(path)
        fresh = {
            key: one for key, one in found.items() if not one.items() <= self._known.get(key, {}).items()
        }
        for key, result in fresh.items():
            self.put(key, result)
        return len(fresh)

    def _read(self, path: Path) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        damaged = []
        for number, line in enumerate(read_text(path, f"{self._what}s", "json").splitlines(), start=1):
            if not line.startswith(_BEGIN) and not _BEGIN.startswith(line):
                raise InputError(
                    f"{path}: line {number:,}: no {self._what} of an earlier run; choose another file"
                )
            try:
                entry = json_document(line, f"{path}: line {number:,}")
                key = str(entry.pop("key"))
                self._check(entry)
                found.setdefault(key, {}).update(entry)
            except (InputError, ValueError, TypeError, KeyError, AttributeError):
                damaged.append(number)
        if damaged:
            more = f" and {len(damaged) - 1:,} more" if damaged[1:] else ""
            say(f"{path}: line {damaged[0]:,}{more}: no {self._what}; simulated again")
        return found


def text_digest(parts: Mapping[str, Sequence[str]]) -> str:
    """Hash of code and tables: of each package the modules, files and folders that are named."""
    return _digest(tuple((package, tuple(names)) for package, names in parts.items()))


@cache
def _digest(parts: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    found = hashlib.sha256()
    for package, names in parts:
        for name in names:
            _add(found, resources.files(package) / name, f"{package}/{name}")
    return found.hexdigest()


def _add(found: hashlib._Hash, item: Traversable, name: str) -> None:
    if item.is_dir():
        for child in sorted(item.iterdir(), key=lambda child: child.name):
            _add(found, child, f"{name}/{child.name}")
    elif name.endswith(_TEXTS):
        found.update(name.encode() + item.read_bytes())
