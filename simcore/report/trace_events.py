"""One rank's timeline rows as trace events (JSON text); how that is quick: :mod:`simcore.report.event_text`.

Note [Thread identifiers]
    Perfetto takes thread 0 of a process, and the thread whose number is the process's, for one and the same
    main thread.  Both would be lanes of their own here: the slices of two streams would mix, and those that
    overlap would be dropped.  A thread's number is therefore larger than its process's, and never 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from simcore.graph.kinds import COMMUNICATION_KINDS, HOST_KINDS, P2P_KINDS
from simcore.report.arrows import Arrows
from simcore.report.event_text import Events, by_value, microseconds, numbered, numbered_rows
from simcore.timeline.reader import RankRows

IntArray = npt.NDArray[np.int64]

#: Threads of rank r count from this times r + 1; see Note [Thread identifiers].
_TIDS_PER_RANK = 100

_TEXTS = ("stream", "name", "kind", "phase", "group", "algorithm", "protocol")
_INTS = ("peer", "channels", "flops", "bytes", "alone_ps")

#: Columns that :func:`rank_events` needs.
COLUMNS = (*_TEXTS, *_INTS, "stage", "microbatch", "layer", "ready_ps", "start_ps", "end_ps")


def rank_events(rows: RankRows, pid: int, arrows: Arrows, *, host: bool = False) -> Iterator[Events]:
    """Events of one rank's rows, with the names of its threads; ends of arrows go to ``arrows``.

    Rows that take no time (event records) are left out, and without ``host`` calls and waits of the host.
    """
    start_ps, end_ps = rows.ints("start_ps"), rows.ints("end_ps")
    wanted = end_ps > start_ps
    if not host:
        wanted &= ~rows.are("kind", HOST_KINDS)
    shown = np.flatnonzero(wanted)
    if len(shown) == 0:
        return
    # Perfetto keeps nanoseconds: cutting both ends to them keeps neighbours from overlapping.
    start, end = start_ps // 1000, end_ps // 1000
    layer, microbatch = rows.ints("layer")[shown], rows.ints("microbatch")[shown]
    lane, lane_names = _lanes(rows, shown, start, end)
    tid = _first_tid(pid) + lane
    heads, head_of = _constant_parts(rows, shown, tid, pid)
    arrows.add(rows, shown[rows.are("kind", P2P_KINDS)[shown]], pid, tid, start, end)
    yield Events.of(event for index, name in enumerate(lane_names) for event in _thread(pid, index, name))
    yield from Events.alike(
        heads,
        head_of,
        by_value(layer, lambda index: f',"layer":{index}' if index >= 0 else ""),
        by_value(microbatch, lambda index: f',"microbatch":{index}' if index >= 0 else ""),
        ',"waited_us":',
        microseconds((start_ps - rows.ints("ready_ps"))[shown] // 1000),
        '},"ts":',
        microseconds(start[shown]),
        ',"dur":',
        microseconds((end - start)[shown]),
        "}",
    )


def origin_event(pid: int) -> str:
    """A mark at time 0 on a rank's first thread: Perfetto counts time from the earliest event."""
    return f'{{"ph":"i","s":"t","pid":{pid},"tid":{_first_tid(pid)},"name":"step begins","ts":0}}'


def _first_tid(pid: int) -> int:
    return _TIDS_PER_RANK * (pid + 1)


def _thread(pid: int, index: int, name: str) -> tuple[str, str]:
    """Name and place of a thread."""
    head = f'{{"ph":"M","pid":{pid},"tid":{_first_tid(pid) + index},"name":'
    return (
        f'{head}"thread_name","args":{{"name":{json.dumps(name)}}}}}',
        f'{head}"thread_sort_index","args":{{"sort_index":{index}}}}}',
    )


def _lanes(rows: RankRows, shown: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, list[str]]:
    """Lane of each row and the lanes' names, in the same order on every rank.

    A stream is a lane, or one for its sends, one for its recvs and one for the rest; more where rows still
    overlap.  Rows of one fused launch (a send and a recv of one NCCL group) run together; a thread nests
    slices and cannot show that.
    """
    labels, label = _labels(rows, shown)
    lane = np.full(len(start), -1, dtype=np.int64)
    lane_names: list[str] = []
    for name in sorted(set(labels), key=lambda name: (name == "host", name != "compute", name)):
        members = shown[np.array([found == name for found in labels])[label]]
        members = members[np.argsort(start[members], kind="stable")]
        first = len(lane_names)
        if (start[members[1:]] >= end[members[:-1]]).all():
            lane[members] = first
            lane_names.append(name)
            continue
        free_at: list[int] = []
        for row, began, ended in zip(
            members.tolist(), start[members].tolist(), end[members].tolist(), strict=True
        ):
            found = next((k for k, time in enumerate(free_at) if time <= began), len(free_at))
            free_at[found : found + 1] = [ended]
            lane[row] = first + found
        lane_names += [name if k == 0 else f"{name} ({k + 1})" for k in range(len(free_at))]
    return lane, lane_names


def _labels(rows: RankRows, shown: IntArray) -> tuple[list[str], IntArray]:
    """Names of lanes and, for each shown row, the index of its name (a name may occur twice)."""
    stream, streams = rows.strings("stream")
    kind, kinds = rows.strings("kind")
    label, first = numbered(stream[shown].astype(np.int64) * len(kinds) + kind[shown])
    roles: dict[str, set[str]] = {}
    found = []
    for name, of_kind in ((streams[stream[row]], kinds[kind[row]]) for row in shown[first].tolist()):
        lane = "host" if of_kind in HOST_KINDS else name
        role = of_kind if of_kind in P2P_KINDS else ""
        roles.setdefault(lane, set()).add(role)
        found.append((lane, role))
    # A stream that only sends is its own lane.
    labels = [f"{lane} {role}" if role and len(roles[lane]) > 1 else lane for lane, role in found]
    return labels, label


def _constant_parts(rows: RankRows, shown: IntArray, tid: IntArray, pid: int) -> tuple[list[str], IntArray]:
    """What comes before the numbers of an event, per distinct row, and the distinct row of each."""
    texts = {column: rows.strings(column) for column in _TEXTS}
    ints = {column: rows.ints(column) for column in _INTS}
    told: list[npt.NDArray[np.integer]] = [tid, *(codes for codes, _ in texts.values()), *ints.values()]
    key, first = numbered_rows([column[shown] for column in told])
    heads = []
    for row in shown[first].tolist():
        text = {column: names[codes[row]] for column, (codes, names) in texts.items()}
        number = {column: int(values[row]) for column, values in ints.items()}
        heads.append(
            f'{{"ph":"X","pid":{pid},"tid":{tid[row]},"name":{json.dumps(_title(text))},'
            f'"cat":{json.dumps(text["phase"])},"args":{_arguments(text, number)}'
        )
    return heads, key


def _title(text: dict[str, str]) -> str:
    """What a slice is called: the op, and ``all_reduce tp`` or ``send pp`` for communication."""
    if text["kind"] not in COMMUNICATION_KINDS:
        return text["name"]
    return f"{text['name'].removeprefix('nccl::')} {text['group']}".rstrip()


def _arguments(text: dict[str, str], number: dict[str, int]) -> str:
    """The constant arguments of an event as a JSON object that is left open."""
    shown: dict[str, object] = {}
    on_gpu = text["kind"] not in HOST_KINDS
    if on_gpu:
        shown["alone_us"] = number["alone_ps"] / 1e6
    shown["phase"] = text["phase"]
    if text["kind"] in COMMUNICATION_KINDS:
        shown["op"] = text["name"]
        shown |= {name: text[name] for name in ("group", "algorithm", "protocol") if text[name]}
        shown["channels"] = number["channels"]
        if number["peer"] >= 0:
            shown["peer"] = number["peer"]
    elif on_gpu:
        shown["flops"] = number["flops"]
    if on_gpu:
        shown["bytes"] = number["bytes"]
    return json.dumps(shown, separators=(",", ":"))[:-1]
