"""Where messages between ranks lie that are run one after the other (see Note [Mail between runs])."""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]
import contextlib
import hashlib
import pickle
from pathlib import Path

from simcore.records import dataclass

#: The target of a broadcast of objects, of one of values, and of a barrier; values to the n-th place of a
#: group have the target ``VALUES_TO - n``.
EVERYBODY, EVERYBODY_VALUES, BARRIER, VALUES_TO = -1, -2, -3, -4


@dataclass(frozen=True)
class Address:
    """The ``number``-th message from rank ``source``, at ``place`` in its group of family ``group``, to the
    rank at ``target`` there (or to :data:`EVERYBODY`).

    ``shared``: what members of a group tell each other; it may stay away (:func:`stays_away`), and what is
    found is that of the lowest rank at the same place, of the highest at the last: those are always run.
    """

    group: str
    source: int
    place: int
    target: int
    number: int
    shared: bool = False
    is_last: bool = False

    def path(self, folder: Path) -> Path:
        """Where the message from this very rank lies."""
        return folder / f"{self._key()}.{self.source:07}"

    def found(self, folder: Path) -> Path | None:
        """The message, else that of the lowest rank at the same place; None: neither was sent."""
        own = self.path(folder)
        if not self.shared and own.exists():
            return own
        return (max if self.is_last else min)(folder.glob(f"{self._key()}.???????"), default=None)

    def _key(self) -> str:
        text = repr((self.group, self.place, self.target, self.number))
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Waiting:
    """``rank`` waits at ``site`` of its script for the message at ``address``."""

    rank: int
    address: Address
    site: str

    def path(self, folder: Path) -> Path:
        """Where a rank says so while it waits."""
        return folder / f"waiting.{self.rank:07}"


def deliver(path: Path, content: object) -> None:
    """Write a file that others see only when it is complete."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_bytes(pickle.dumps(content))
    scratch.replace(path)


def stays_away(address: Address, folder: Path) -> None:
    """Nobody will send the shared message at ``address``."""
    deliver(address.path(folder), None)


def unlink_segments(folder: Path) -> None:
    """Give back the memory that ranks have noted there (:mod:`workloads.tracing.fake.shared_segments`)."""
    for path in folder.glob("segment.*"):
        with contextlib.suppress(FileNotFoundError):
            _posixshmem.shm_unlink(f"/{path.name.removeprefix('segment.')}")


def who_waits(folder: Path) -> list[Waiting]:
    """Every rank that waits now, lowest first."""
    found = []
    for path in sorted(folder.glob("waiting.???????")):
        with contextlib.suppress(FileNotFoundError):  # it has just been answered
            found.append(pickle.loads(path.read_bytes()))
    return found
