"""What a scheduled HLO module says of its collectives: kind, size, group, and who uses the result first.

An asynchronous collective is a pair of instructions, start and done; some are an ``async-start`` that wraps a
computation with the collective in it.  A thunk bears the name of the instruction that does the work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from simcore.collectives.kinds import kind_of
from simcore.errors import InputError
from simcore.records import dataclass
from workloads.imports.collective_names import collective_kind
from workloads.imports.fields import WrongFieldError, entries, text, whole
from workloads.imports.recorded import MAX_RANKS

_COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-broadcast",
    "collective-permute", "send", "recv",
)  # fmt: skip
#: A thunk that no instruction describes may still bear a collective's name, as a copy of one does
#: ("reduce-scatter.57.double_buffer_clone.1").
_NAMED = re.compile(rf"^({'|'.join(sorted(_COLLECTIVES, key=len, reverse=True))})(-start)?(\.\w+)*$")

_MAX_BYTES = 1 << 50


@dataclass(frozen=True)
class HloCollective:
    """A collective instruction: nccl-tests' size in bytes (-1: not recorded), its groups, and its users.

    ``users`` are thunks that need its result, directly or through instructions that do no work.
    """

    kind: str
    num_bytes: int
    groups: tuple[tuple[int, ...], ...]
    users: frozenset[str]


@dataclass(frozen=True)
class _Instruction:
    name: str
    opcode: str
    target: str
    operands: tuple[str, ...]
    in_bytes: int
    out_bytes: int
    groups: tuple[tuple[int, ...], ...]
    computation: int


class HloModule:
    """The instructions of a module's computations.

    Errors: InputError with the computation and the instruction for what is no such list.
    """

    def __init__(self, label: str, computations: Any) -> None:
        self._by_name: dict[str, _Instruction] = {}
        self._users: dict[str, list[str]] = {}
        if not isinstance(computations, list):
            raise InputError(f"{label}: hlo is no list of computations")
        for number, computation in enumerate(computations):
            where = f"{label}: hlo[{number}]"
            if not isinstance(computation, dict) or not isinstance(computation.get("instructions"), list):
                raise InputError(f"{where}: has no list of instructions")
            for place, entry in enumerate(computation["instructions"]):
                try:
                    instruction = _instruction(entry, number)
                    control = _names(entry, "control")
                except WrongFieldError as error:
                    raise InputError(f"{where}.instructions[{place}]: {error}") from None
                self._by_name[instruction.name] = instruction
                for operand in (*instruction.operands, *control):
                    self._users.setdefault(operand, []).append(instruction.name)
        self._wrapped = self._match_wrapped()

    def collective(self, name: str, thunks: frozenset[str]) -> HloCollective | None:
        """The collective that the thunk ``name`` carries out; None when it computes.

        ``thunks`` are the names of all thunks.
        """
        found = self._by_name.get(name)
        if found is None:
            named = _NAMED.match(name)
            if named is None:
                return None
            return HloCollective(_kind(named.group(1)), -1, (), frozenset())
        if found.opcode.removesuffix("-start") not in _COLLECTIVES:
            return None
        kind = _kind(found.opcode)
        result = self._wrapped.get(name, name)
        done = [user for user in self._users.get(result, ()) if self._by_name[user].opcode.endswith("-done")]
        size = found.in_bytes
        if kind_of(kind).gives_part:
            # The result of a start holds the operands as well.
            size = self._by_name[done[0]].out_bytes if done else found.out_bytes
        users = self._thunks_after(done or [result], thunks)
        return HloCollective(kind, size, found.groups, users)

    def title(self, name: str) -> str:
        """The thunk ``name`` with the library function that it calls ("__cublas$gemm"): a name that tells
        what it does.
        """
        found = self._by_name.get(name)
        return f"{found.target} {name}" if found is not None and found.target else name

    def moved(self, name: str) -> tuple[int, int]:
        """Bytes of the operands and of the result of the thunk ``name``; 0 where the module does not tell."""
        found = self._by_name.get(name)
        return (max(0, found.in_bytes), max(0, found.out_bytes)) if found is not None else (0, 0)

    def _match_wrapped(self) -> dict[str, str]:
        """By collective inside a wrapped computation: its ``async-start``.

        The module does not name the computation that an ``async-start`` calls: those of equal sizes belong
        together, in the order of the module.
        """
        entries = {i.computation for i in self._by_name.values() if i.opcode == "async-start"}
        inner = [
            instruction
            for instruction in self._by_name.values()
            if instruction.opcode in _COLLECTIVES and instruction.computation not in entries
        ]
        starts = [i for i in self._by_name.values() if i.opcode == "async-start"]
        matched: dict[str, str] = {}
        for instruction in inner:
            word = instruction.opcode
            fitting = [s for s in starts if s.in_bytes == instruction.in_bytes and s.name.startswith(word)]
            if fitting:
                matched[instruction.name] = fitting[0].name
                starts.remove(fitting[0])
        return matched

    def _thunks_after(self, sources: Iterable[str], thunks: frozenset[str]) -> frozenset[str]:
        """The first thunks downstream of instructions, through those that do no work."""
        found: set[str] = set()
        seen = set(sources)
        open_ends = list(seen)
        while open_ends:
            for user in self._users.get(open_ends.pop(), ()):
                if user in seen:
                    continue
                seen.add(user)
                if user in thunks:
                    found.add(user)
                else:
                    open_ends.append(user)
        return frozenset(found)


def _kind(opcode: str) -> str:
    """A permute is sends and receives, as is whatever names no collective."""
    return collective_kind(opcode.replace("-", "_"))


def _instruction(entry: Any, computation: int) -> _Instruction:
    if type(entry) is not dict:
        raise WrongFieldError("instruction", entry, "no object")
    sizes = [whole(entry, key, -1) for key in ("in_bytes", "out_bytes")]
    for key, size in zip(("in_bytes", "out_bytes"), sizes, strict=True):
        if not -1 <= size <= _MAX_BYTES:
            raise WrongFieldError(key, size, "no size")
    groups = entries(entry, "groups", "lists of ranks", lambda group: type(group) is list)
    if not all(type(rank) is int and 0 <= rank < MAX_RANKS for group in groups for rank in group):
        raise WrongFieldError("groups", groups, "no lists of ranks")
    return _Instruction(
        text(entry, "name"), text(entry, "opcode"), _target(entry), _names(entry, "operands"), sizes[0],
        sizes[1], tuple(tuple(group) for group in groups), computation,
    )  # fmt: skip


def _target(entry: dict[str, Any]) -> str:
    """The library function that a custom call calls; "" for other instructions."""
    return text(entry, "target") if entry.get("target") is not None else ""


def _names(entry: dict[str, Any], key: str) -> tuple[str, ...]:
    return tuple(entries(entry, key, "names", lambda name: type(name) is str))
