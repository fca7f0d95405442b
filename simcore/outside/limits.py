"""How much of what comes from outside is read: stated limits, which a setting raises.

The setting is the environment variable ``SIMCORE_LIMITS``, so that it holds for every command, for worker
processes and for the Python interface alike: ``SIMCORE_LIMITS=json=1GiB,events=50M,memory=8GiB``.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Final

from simcore.errors import InputError, nearest
from simcore.records import dataclass
from simcore.units import GIB, KIB, MIB, Number, format_bytes

VARIABLE: Final = "SIMCORE_LIMITS"
_SHARE_OF_FREE_MEMORY: Final = 0.85
_LEAST_MEMORY: Final = GIB  # below it, Python with its libraries does not work
_THOUSANDS: Final = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
_OF: Final = {
    "text": "of text", "json": "of JSON", "depth": "levels in each other", "ops": "op executions",
}  # fmt: skip
_SIZES: Final = frozenset({"text", "json", "unpacked", "memory"})


@dataclass(frozen=True)
class Limits:
    """What is read or used at most; beyond it, an InputError says so before memory or time are spent.

    ``text``: bytes of a TOML or YAML file, ``json`` of a JSON document that is read whole.  ``depth``: levels
    of lists and tables in each other.  ``digits`` of a number.  ``unpacked``: bytes of a trace after
    unpacking, ``events`` in it.  ``rows`` of a table.  ``ops``: op executions of a step, alike ranks counted
    once.  ``memory``: bytes that this process may take (None: most of what is free when it starts),
    ``seconds`` that a command may run (None: no end).
    """

    text: int = MIB
    json: int = 256 * MIB
    depth: int = 64
    digits: int = 40
    unpacked: int = 16 * GIB
    events: int = 20_000_000
    rows: int = 50_000_000
    ops: int = 20_000_000
    memory: int | None = None
    seconds: int | None = None


def limits() -> Limits:
    """The limits in force.  InputError when the variable cannot be understood."""
    return _parsed(os.environ.get(VARIABLE, ""))


def over(name: str, found: int, where: str) -> InputError:
    """The error for a ``found`` amount (0: unknown) over the limit called ``name``, and how to raise it."""
    allowed = getattr(limits(), name)
    shown = format_bytes if name in _SIZES else "{:,}".format
    what = _OF.get(name, name)
    much = f"{shown(found)} {what}" if found else f"more than {shown(allowed)} {what}"
    if name in _SIZES and name not in ("text", "json"):
        much = much.removesuffix(name) + ("unpacked" if name == "unpacked" else "of memory")
    most = "not read further"
    if found:
        most = f"at most {shown(allowed)} are {'played' if name == 'ops' else 'read'}"
    return InputError(f"{where}: {much}; {most} ({VARIABLE}={name}=... raises the limit)")


def memory_budget() -> int:
    """Bytes that this process may take: the limit in force, by default most of what is free now."""
    given = limits().memory
    return given if given is not None else max(_LEAST_MEMORY, int(_SHARE_OF_FREE_MEMORY * _free_bytes()))


def refuse_beyond_memory(needed: int, what: str, of: str) -> None:
    """InputError where ``what`` needs more bytes than may be taken: of what it is so much is told, too."""
    if needed > _LEAST_MEMORY and needed > (budget := memory_budget()):
        raise InputError(
            f"{what} needs about {format_bytes(needed)}: {of}; {format_bytes(budget)} may be taken"
            f" ({VARIABLE}=memory=... says otherwise)"
        )


def held_memory() -> int:
    """Bytes that this process holds now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * mmap.PAGESIZE


@lru_cache(maxsize=8)
def _parsed(text: str) -> Limits:
    known = {field.name for field in fields(Limits)}
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise InputError(f"{VARIABLE}: unknown limit {name!r}{nearest(name, known)}")
        found[name] = _amount(name, value)
    return Limits(**found)


def _amount(name: str, value: str) -> int:
    where = f"{VARIABLE}: {name}"
    if name in _SIZES:
        found = int(Number("size", integer=True).from_text(value, where))
    else:
        factor = _THOUSANDS.get(value[-1:], 1)
        number = Number("count").from_text(value[:-1] if factor > 1 else value, where)
        found = int(number * factor)
    if found < 1 or (name == "memory" and found < _LEAST_MEMORY):
        least = format_bytes(_LEAST_MEMORY) if name == "memory" else "1"
        raise InputError(f"{where}: must be at least {least}, got {value}")
    return found


def _free_bytes() -> int:
    """Memory that is free on this machine, or in the container's group of processes; 4 GiB if unknown."""
    free = 4 * GIB
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known = dict(line.split(":", 1) for line in lines)
        free = int(known["MemAvailable"].split()[0]) * KIB
        most, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current"))
        free = min(free, int(most) - int(used))
    except (OSError, KeyError, ValueError):  # another system, or no limit ("max")
        pass
    return free
