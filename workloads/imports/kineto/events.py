"""Events of a Kineto trace as they stand in the file: typed records, decoded many at a time.

Values are as the standard library's reader gives them, with fractional numbers as text
(1712195495519689.123 us does not fit in a double); fields that no graph is made of are skipped unread.  What
lists of shapes hold is left as JSON text: few are different, and each is decoded once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from simcore.outside import quoted
from workloads.imports.fields import ABSENT, RefusedError, WrongFieldError
from workloads.imports.json_events import JSON, Piece

_NO_JSON: Final = msgspec.Raw(b"")


def _named(key: str, default: Any = None) -> Any:
    return msgspec.field(default=default, name=key)


class Args(msgspec.Struct, gc=False):
    """The arguments of an event, of any category; None, unless said otherwise, where it lacks them."""

    device: Any = ABSENT
    stream: Any = ABSENT
    correlation: Any = None
    bytes: Any = None
    grid: msgspec.Raw = _NO_JSON
    block: msgspec.Raw = _NO_JSON
    registers: Any = _named("registers per thread")
    shared_memory: Any = _named("shared memory")
    occupancy: Any = _named("est. achieved occupancy %")
    shapes: msgspec.Raw = _named("Input Dims", _NO_JSON)
    shapes_of_old: msgspec.Raw = _named("Input dims", _NO_JSON)
    types: msgspec.Raw = _named("Input type", _NO_JSON)
    types_of_old: msgspec.Raw = _named("Input Type", _NO_JSON)
    sequence: Any = _named("Sequence number")
    function_id: Any = _named("Record function id")
    external_id: Any = _named("External id")
    event_index: Any = _named("Ev Idx")
    collective: Any = _named("Collective name", ABSENT)
    group: Any = _named("Process Group Name")
    group_ranks: Any = _named("Process Group Ranks")
    dtype: Any = None
    in_elements: Any = _named("In msg nelems")
    out_elements: Any = _named("Out msg nelems")
    group_size: Any = _named("Group size")
    call_number: Any = _named("Seq")
    receiver: Any = _named("Dst Rank", ABSENT)
    sender: Any = _named("Src Rank", ABSENT)
    sync_kind: Any = _named("cuda_sync_kind", ABSENT)
    wait_on_stream: Any = None
    wait_on_record: Any = _named("wait_on_cuda_event_record_corr_id")


class TraceEvent(msgspec.Struct, gc=False):
    """An event; ``args`` that are no object stand as they are."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = ABSENT
    dur: Any = ABSENT
    args: Args | None = None


_DECODER: Final = msgspec.json.Decoder(list[TraceEvent], float_hook=str)
_FIELDS: Final = tuple(
    (field.name, field.encode_name, field.type is msgspec.Raw) for field in msgspec.structs.fields(Args)
)
_NO_ARGS: Final = Args()


def decode(piece: Piece) -> list[TraceEvent]:
    """The events of a piece of a trace, as :func:`events_of`."""
    return events_of(piece.text)


def events_of(text: str) -> list[TraceEvent]:
    """The events of a JSON array; ValueError where not all are plain, to be read one by one."""
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def event_of(value: dict[str, Any]) -> TraceEvent:
    """An event that was decoded by itself."""
    args = value.get("args")
    if type(args) is dict:
        args = Args(
            **{
                name: msgspec.Raw(json.dumps(args[key]).encode()) if raw else args[key]
                for name, key, raw in _FIELDS
                if key in args
            }
        )
    return TraceEvent(
        value.get("ph"), value.get("cat"), value.get("name"), value.get("pid"), value.get("tid"),
        value.get("ts", ABSENT), value.get("dur", ABSENT), args,
    )  # fmt: skip


def args_of(events: Sequence[TraceEvent]) -> list[Args]:
    """The arguments of each event, empty where it has none.  WrongFieldError where they are no object."""
    args: list[Any] = [event.args for event in events]
    if set(map(type, args)) == {Args}:
        return args
    for given in args:
        if given is not None and type(given) is not Args:
            raise WrongFieldError("args", given, "no object")
    return [given or _NO_ARGS for given in args]


class Decoded:
    """Numbers for values that were left as JSON text, each worked out once; null for one that is absent."""

    def __init__(self, number_of: Callable[[Any], int]) -> None:
        self._number_of = number_of
        self._known: dict[bytes, int] = {}

    def numbers(self, args: Sequence[Args], field: str, of_old: str | None = None) -> list[int]:
        """The number of each one's ``field``, or of what it was called of old where that is absent."""
        texts = list(map(bytes, map(attrgetter(field), args)))
        if of_old is not None and b"" in texts:
            older = map(bytes, map(attrgetter(of_old), args))
            texts = [new or old for new, old in zip(texts, older, strict=True)]
        known = self._known
        found = list(map(known.get, texts))
        if None not in found:
            return cast("list[int]", found)
        for text in texts:
            if text not in known:
                known[text] = self._number_of(_value(text) if text else None)
        return [known[text] for text in texts]


def _value(text: bytes) -> Any:
    """A value that was left as JSON text.  RefusedError for one that Python does not take."""
    try:
        return JSON.decode(text.decode())
    except RecursionError:
        raise RefusedError("holds values that are nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise RefusedError(f"holds {quoted(text.decode())}: {error}") from None
