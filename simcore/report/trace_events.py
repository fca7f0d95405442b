"""One rank's timeline rows as trace events (JSON text).

Note [Speed of the export]
    A rank has some ten thousand rows but only a thousand that differ in more than times and microbatch:
    what is constant about a row is formatted once per distinct row, and each event is one string template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from simcore.analysis.breakdown import COMMUNICATION_KINDS
from simcore.timeline.reader import RankRows

IntArray = npt.NDArray[np.int64]

_TEXTS = ("stream", "name", "kind", "phase", "group", "algorithm", "protocol")
_INTS = ("layer", "peer", "channels", "flops", "bytes", "alone_ps")

#: Columns that :func:`rank_events` needs.
COLUMNS = (*_TEXTS, *_INTS, "stage", "microbatch", "ready_ps", "start_ps", "end_ps")


@dataclass
class Flows:
    """Ends of arrows: in a group, the n-th send from a to b meets the n-th recv of b from a."""

    _ends: dict[tuple[str, int, int, str, int], str] = field(default_factory=dict)
    _seen: dict[tuple[str, int, int, str], int] = field(default_factory=dict)

    def add(self, kind: str, rank: int, peer: int, group: str, place: str) -> None:
        """Note one end, in issue order; ``place`` is process, thread and time as JSON members."""
        key = (kind, rank, peer, group) if kind == "send" else (kind, peer, rank, group)
        count = self._seen[key] = self._seen.get(key, -1) + 1
        self._ends[*key, count] = place

    def events(self) -> Iterator[str]:
        """Start and finish of every arrow that has both."""
        number = 0
        for (kind, src, dst, group, count), place in self._ends.items():
            finish = self._ends.get(("recv", src, dst, group, count)) if kind == "send" else None
            if finish is not None:
                common = f'"id":{number},"name":"send_recv","cat":"send_recv"'
                yield f'{{"ph":"s",{common},{place}}}'
                yield f'{{"ph":"f","bp":"e",{common},{finish}}}'
                number += 1


def rank_events(rows: RankRows, pid: int, flows: Flows) -> list[str]:
    """Events of one rank's rows, with the names of its threads; ends of arrows go to ``flows``.

    Rows that take no time (host calls, event records) are left out.
    """
    start_ps, end_ps = rows.ints("start_ps"), rows.ints("end_ps")
    shown = np.flatnonzero(end_ps > start_ps)
    if len(shown) == 0:
        return []
    # Perfetto keeps nanoseconds: cutting both ends to them keeps neighbours from overlapping.
    start, end = start_ps // 1000, end_ps // 1000
    lane, lane_names = _lanes(rows, shown, start, end)
    heads, tails, distinct = _constant_parts(rows, shown, lane, pid)
    waited = (start_ps - rows.ints("ready_ps"))[shown] // 1000
    fields = zip(
        [heads[part] for part in distinct],
        *_us(start[shown]),
        *_us((end - start)[shown]),
        rows.ints("microbatch")[shown].tolist(),
        waited.tolist(),
        [tails[part] for part in distinct],
        strict=True,
    )
    template = '%s%d.%03d,"dur":%d.%03d,"args":{"microbatch":%d,"waited_ns":%d%s'
    events = [
        f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_name","args":{{"name":{json.dumps(name)}}}}}'
        for tid, name in enumerate(lane_names)
    ]
    events += [template % values for values in fields]
    _note_flows(rows, shown, lane, start, end, pid, flows)
    return events


def _us(nanoseconds: IntArray) -> tuple[list[int], list[int]]:
    """Whole us and the remaining ns."""
    whole, rest = np.divmod(nanoseconds, 1000)
    return whole.tolist(), rest.tolist()


def _lanes(rows: RankRows, shown: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, list[str]]:
    """Thread of each row and the threads' names: one per stream, more where rows of a stream overlap.

    Rows of one fused launch (a send and a recv of one NCCL group) run together; a thread nests slices and
    cannot show that.
    """
    codes, names = rows.strings("stream")
    kind, kind_names = rows.strings("kind")
    on_host = np.isin(kind, [code for code, name in enumerate(kind_names) if name in ("host", "sync")])
    codes, names = np.where(on_host, len(names), codes), [*names, "host"]
    lane = np.full(len(codes), -1, dtype=np.int64)
    lane_names: list[str] = []
    for code in dict.fromkeys(codes[shown].tolist()):
        of_stream = shown[codes[shown] == code]
        of_stream = of_stream[np.argsort(start[of_stream], kind="stable")]
        first = len(lane_names)
        if (start[of_stream[1:]] >= end[of_stream[:-1]]).all():
            lane[of_stream] = first
            lane_names.append(names[code])
            continue
        free_at: list[int] = []
        for row, began, ended in zip(
            of_stream.tolist(), start[of_stream].tolist(), end[of_stream].tolist(), strict=True
        ):
            found = next((k for k, time in enumerate(free_at) if time <= began), len(free_at))
            free_at[found : found + 1] = [ended]
            lane[row] = first + found
        lane_names += [names[code] if k == 0 else f"{names[code]} ({k + 1})" for k in range(len(free_at))]
    return lane, lane_names


def _constant_parts(
    rows: RankRows, shown: IntArray, lane: IntArray, pid: int
) -> tuple[list[str], list[str], list[int]]:
    """What comes before and after the times of an event, per distinct row, and the distinct row of each."""
    texts = {column: rows.strings(column) for column in _TEXTS}
    ints = {column: rows.ints(column) for column in _INTS}
    key = lane[shown]
    for column in [codes for codes, _ in texts.values()] + list(ints.values()):
        codes = pd.factorize(column[shown])[0]
        key = pd.factorize(key * (int(codes.max()) + 1) + codes)[0]
    _, first = np.unique(key, return_index=True)
    heads, tails = [], []
    for row in shown[first].tolist():
        text = {column: names[codes[row]] for column, (codes, names) in texts.items()}
        number = {column: int(values[row]) for column, values in ints.items()}
        heads.append(
            f'{{"ph":"X","pid":{pid},"tid":{lane[row]},"name":{json.dumps(text["name"])},'
            f'"cat":{json.dumps(text["phase"])},"ts":'
        )
        tails.append(_arguments(text, number))
    return heads, tails, key.tolist()


def _arguments(text: dict[str, str], number: dict[str, int]) -> str:
    """The constant arguments of an event, and its end."""
    shown: dict[str, object] = {"alone_us": number["alone_ps"] / 1e6, "phase": text["phase"]}
    if number["layer"] >= 0:
        shown["layer"] = number["layer"]
    if text["kind"] in COMMUNICATION_KINDS:
        shown |= {name: text[name] for name in ("group", "algorithm", "protocol") if text[name]}
        shown["channels"] = number["channels"]
        if number["peer"] >= 0:
            shown["peer"] = number["peer"]
    else:
        shown["flops"] = number["flops"]
    shown["bytes"] = number["bytes"]
    return "," + json.dumps(shown, separators=(",", ":"))[1:] + "}"


def _note_flows(
    rows: RankRows, shown: IntArray, lane: IntArray, start: IntArray, end: IntArray, pid: int, flows: Flows
) -> None:
    """Arrows leave at the start of a send and arrive just before the end of its recv."""
    codes, names = rows.strings("kind")
    groups, group_names = rows.strings("group")
    peers = rows.ints("peer")
    ends = [code for code, name in enumerate(names) if name in ("send", "recv")]
    for row in shown[np.isin(codes[shown], ends)].tolist():
        kind = names[codes[row]]
        time = int(start[row]) if kind == "send" else max(int(end[row]) - 1, int(start[row]))
        place = f'"pid":{pid},"tid":{lane[row]},"ts":{time // 1000}.{time % 1000:03d}'
        flows.add(kind, pid, int(peers[row]), group_names[groups[row]], place)
