"""One rank's PyTorch profiler trace (Kineto JSON) as columns: GPU activities, host calls, waits, steps.

What is read and what is not: kernels, copies and memsets; calls of the CUDA/HIP runtime and driver;
synchronisation records; ``ProfilerStep`` annotations; CPU ops with recorded shapes.  Other CPU ops and Python
frames only count.  Categories are compared in lower case and by their old names too ("Kernel", "Runtime").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import numpy as np

from simcore.errors import InputError
from simcore.units import PS_PER_US
from workloads.imports.fields import (
    ABSENT,
    RefusedError,
    WrongFieldError,
    entries,
    numbers_of,
    product,
    table,
    text,
    text_of,
    texts,
    whole,
    whole_of,
    wholes,
)
from workloads.imports.files import TraceFile
from workloads.imports.json_events import read_batches
from workloads.imports.kineto.events import Args, Decoded, TraceEvent, args_of, decode, event_of
from workloads.imports.kineto.host import HostColumns, NoteCalls, ThreadNumbers
from workloads.imports.kineto.times import EventClock
from workloads.imports.op_columns import Columns, Names
from workloads.imports.recorded import MAX_RANKS
from workloads.imports.recording.columns import (
    UNKNOWN,
    Activities,
    ApiCalls,
    CollectiveMeta,
    GpuRecording,
    SyncRecord,
)
from workloads.imports.recording.occupancy import blocks_per_sm
from workloads.imports.recording.steps import longest_steps, steps_by_evidence

#: What events of a category are: activities of a GPU by their kind, or what the host says.
_KERNEL, _MEMCPY, _MEMSET, _CALL, _SYNC, _OP, _ANNOTATION, _FRAME, _OTHER = range(9)
_ROLES: Final = {
    "kernel": _KERNEL, "gpu_kernel": _KERNEL, "concurrent_kernel": _KERNEL, "mtia_ccp_events": _KERNEL,
    "gpu_memcpy": _MEMCPY, "memcpy": _MEMCPY, "gpu_memset": _MEMSET, "memset": _MEMSET, "cuda_sync": _SYNC,
    "cpu_op": _OP, "operator": _OP, "user_annotation": _ANNOTATION, "python_function": _FRAME,
}  # fmt: skip
#: Calls of a device's API: "runtime", "cuda_runtime", "hip_driver", "xpu_runtime", "privateuse1_driver".
_CALLS: Final = ("runtime", "driver")
#: What makes the metadata of a communication kernel.
_META: Final = attrgetter(
    "collective", "group", "group_ranks", "dtype", "in_elements", "out_elements", "group_size", "call_number",
    "sender", "receiver",
)  # fmt: skip
_PLAIN: Final = frozenset((str, int, type(None), type(ABSENT)))
_BATCH: Final = 4096  # events that were read one by one and become columns at once
_MAX_BYTES: Final = 1 << 50
_MAX_OF_BLOCK: Final = 1 << 31  # threads, registers and bytes of shared memory: no GPU has more
#: What the header says of a GPU, in numbers.
_SIZES: Final = (
    "numSms", "maxThreadsPerMultiprocessor", "regsPerMultiprocessor", "sharedMemPerMultiprocessor",
    "computeMajor",
)  # fmt: skip


def read_kineto(source: TraceFile, note_calls: NoteCalls | None = None) -> GpuRecording:
    """Read one trace; ``note_calls`` gets the framework's calls, for a trace to be joined with.

    Errors: InputError with file, event number and reason: no JSON, truncated, negative or absurd times and
    sizes, no GPU events.
    """
    header: dict[str, Any] = {}
    reader = KinetoReader(source.label, note_calls)
    try:
        for number, events in read_batches(source, header, decode, reader.event):
            reader.take(number, events)
    except InputError:
        reader.flush()  # an error of an event before comes first
        raise
    return reader.finish(header)


class KinetoReader:
    """A rank's columns under construction, some thousand events at a time.

    A batch of which any event must not pass is sorted again one by one, to tell which is the first.
    """

    def __init__(self, label: str, note_calls: NoteCalls | None = None) -> None:
        self.label = label
        self.num_events = 0  # that were taken
        self._numbers: list[int] = []  # of events that wait to become columns
        self._events: list[TraceEvent] = []
        self._roles: dict[str | None, int] = {None: _OTHER}  # by category
        self._clock = EventClock()
        self._names = Names()
        self._threads = ThreadNumbers()
        self._host = HostColumns(self._clock, self._names, self._threads, note_calls)
        self._gpu = Columns(10)  # in the order of Activities
        self._grids = Columns(5)  # of each activity, as blocks_per_sm wants them
        self._calls = Columns(5)  # in the order of ApiCalls
        self._syncs: dict[int, SyncRecord] = {}
        self._meta: dict[CollectiveMeta, int] = {}
        self._known_meta: dict[object, int] = {}  # the same, by what stands in the file
        self._of_grid = Decoded(partial(product, key="grid"))
        self._of_block = Decoded(partial(product, key="block"))

    def event(self, number: int, value: Any) -> TraceEvent:
        """Event ``number``, which was decoded by itself.  InputError where it is none."""
        if type(value) is not dict:
            raise self._bad(number, "is no object")
        return event_of(value)

    def take(self, number: int, events: Sequence[TraceEvent]) -> None:
        """Take the events from ``number`` on; several are a batch, one waits for others."""
        alone = len(events) == 1
        if not alone:
            self.flush()
        self.num_events += len(events)
        self._numbers.extend(range(number, number + len(events)))
        self._events.extend(events)
        if not alone or len(self._events) >= _BATCH:
            self.flush()

    @property
    def has_begun(self) -> bool:
        """Whether an event had a time, after which all others are counted."""
        return self._clock.origin_us is not None

    def successor(self) -> KinetoReader:
        """A reader of events behind these, by the same clock."""
        other = KinetoReader(self.label)
        other._clock.go_on(self._clock)
        return other

    def append(self, other: KinetoReader, first: int) -> None:
        """Append the columns of a successor, whose first event has the number ``first``.

        What is numbered in order of appearance becomes what it were if all events had been taken here.
        """
        self.flush()
        names = self._names.joined(other._names)
        threads = self._threads.joined(other._threads)
        told = np.array([*(self._number_of_told(one) for one in other._meta), -1])
        events = np.arange(first, first + other.num_events)
        self._gpu.append(other._gpu, {6: names, 8: told, 9: events})
        self._calls.append(other._calls, {2: threads, 3: names})
        self._grids.append(other._grids, {})
        self._syncs.update(other._syncs)
        self._roles.update(other._roles)
        self._clock.whole &= other._clock.whole
        self._host.append(other._host, names, threads)
        self.num_events += other.num_events

    def flush(self) -> None:
        """Sort what was taken into columns.  InputError for an event that must not pass."""
        numbers, events = self._numbers, self._events
        self._numbers, self._events = [], []
        try:
            self._sort(numbers, events)
        except RefusedError:
            for number, event in zip(numbers, events, strict=True):
                try:
                    self._sort([number], [event])
                except RefusedError as error:
                    raise self._bad(number, str(error)) from None
            raise

    def _sort(self, numbers: Sequence[int], events: Sequence[TraceEvent]) -> None:
        categories = [event.cat if event.ph == "X" else None for event in events]
        self._learn(categories)
        role = np.array(list(map(self._roles.__getitem__, categories)), dtype=np.int64)
        found = [np.flatnonzero(role == number).tolist() for number in range(_OTHER)]
        if self._clock.origin_us is None:
            self._begin(numbers, events, found)
        activities = sorted([*found[_KERNEL], *found[_MEMCPY], *found[_MEMSET]])
        if activities:
            self._take_activities([numbers[at] for at in activities], [events[at] for at in activities])
        if found[_CALL]:
            self._take_calls([events[at] for at in found[_CALL]])
        for at in found[_SYNC]:
            self._take_sync(events[at])
        host = sorted([*found[_OP], *found[_ANNOTATION]])
        if host:
            is_op = [role[at] == _OP for at in host]
            self._host.take([events[at] for at in host], np.array(is_op, dtype=np.bool_))
        if found[_FRAME]:
            self._host.take_frames([events[at] for at in found[_FRAME]])

    def _learn(self, categories: list[Any]) -> None:
        """Note what events of each category are.  WrongFieldError for one that is no text."""
        try:
            new = set(categories).difference(self._roles)
        except TypeError:  # a list or an object
            wrong = next(category for category in categories if isinstance(category, list | dict))
            raise WrongFieldError("cat", wrong, "no text") from None
        for category in new:
            lower = text_of(category, "cat").lower()
            self._roles[category] = _CALL if lower.endswith(_CALLS) else _ROLES.get(lower, _OTHER)

    def _begin(self, numbers: Sequence[int], events: Sequence[TraceEvent], found: list[list[int]]) -> None:
        """Let the clock begin with the first event whose time counts."""
        frames = [at for at in found[_FRAME] if self._host.module_frames([events[at]])]
        timed = (*found[:_SYNC], *found[_OP:_FRAME], frames)
        for at in sorted(at for role in timed for at in role):
            if self._clock.begin(numbers[at], events[at]):
                return

    def _take_calls(self, events: Sequence[TraceEvent]) -> None:
        start, end = self._clock.intervals(events)
        names = self._names.codes(texts([event.name for event in events], "name"))
        correlation = wholes([given.correlation for given in args_of(events)], "correlation", 0)
        self._calls.add((start, end, self._threads.of(events), names, correlation))

    def _take_activities(self, numbers: Sequence[int], events: Sequence[TraceEvent]) -> None:
        start, end = self._clock.intervals(events)
        args = args_of(events)
        # Without arguments, Kineto's own lanes tell: a process for each GPU, a thread for each stream.
        device = numbers_of(
            [given.device for given in args], "device", [event.pid for event in events], "pid"
        )
        stream = numbers_of(
            [given.stream for given in args], "stream", [event.tid for event in events], "tid"
        )
        num_bytes = wholes([given.bytes for given in args], "bytes", 0)
        absurd = (num_bytes < 0) | (num_bytes > _MAX_BYTES)
        if absurd.any():
            raise RefusedError(f"moves {num_bytes[absurd][0]} bytes")
        meta = [-1 if given.collective is ABSENT else self._number_of_meta(given) for given in args]
        correlation = wholes([given.correlation for given in args], "correlation", 0)
        names = self._names.codes(texts([event.name for event in events], "name"))
        kind = [self._roles[event.cat] for event in events]
        self._gpu.add((start, end, kind, device, stream, correlation, names, num_bytes, meta, numbers))
        self._grids.add(
            (
                self._of_grid.numbers(args, "grid"),
                self._of_block.numbers(args, "block"),
                wholes([given.registers for given in args], "registers per thread", 0),
                wholes([given.shared_memory for given in args], "shared memory", 0),
                wholes([given.occupancy for given in args], "est. achieved occupancy %", 0),
            ),
        )

    def _number_of_meta(self, args: Args) -> int:
        """The number of what a communication kernel says about itself."""
        told = _META(args)
        if not _PLAIN.issuperset(map(type, told)):
            return self._meta_of(args)
        number = self._known_meta.get(told, -1)
        if number < 0:
            number = self._known_meta[told] = self._meta_of(args)
        return number

    def _meta_of(self, args: Args) -> int:
        """The number of what a communication kernel says, checked."""
        peer = ("Src Rank", args.sender) if args.receiver is ABSENT else ("Dst Rank", args.receiver)
        told = CollectiveMeta(
            text_of(args.collective, "Collective name"), text_of(args.group, "Process Group Name", ""),
            text_of(args.group_ranks, "Process Group Ranks", ""), text_of(args.dtype, "dtype", ""),
            whole_of(args.in_elements, "In msg nelems", -1),
            whole_of(args.out_elements, "Out msg nelems", -1),
            whole_of(args.group_size, "Group size", -1), whole_of(args.call_number, "Seq", -1),
            whole_of(None if peer[1] is ABSENT else peer[1], peer[0], -1),
        )  # fmt: skip
        if max(told.in_elements, told.out_elements) > _MAX_BYTES:
            raise RefusedError(f"moves {max(told.in_elements, told.out_elements)} elements")
        return self._number_of_told(told)

    def _number_of_told(self, told: CollectiveMeta) -> int:
        return self._meta.setdefault(told, len(self._meta))

    def _take_sync(self, event: TraceEvent) -> None:
        (args,) = args_of([event])
        correlation = whole_of(args.correlation, "correlation", 0)
        self._syncs[correlation] = SyncRecord(
            text_of(event.name, "name", "")
            if args.sync_kind is ABSENT
            else text_of(args.sync_kind, "cuda_sync_kind"),
            correlation,
            whole_of(None if args.stream is ABSENT else args.stream, "stream", UNKNOWN),
            whole_of(args.wait_on_stream, "wait_on_stream", UNKNOWN),
            whole_of(args.wait_on_record, "wait_on_cuda_event_record_corr_id", UNKNOWN),
        )

    def _bad(self, number: int, reason: str) -> InputError:
        return InputError(f"{self.label}: event {number} {reason}")

    def finish(self, header: dict[str, Any]) -> GpuRecording:
        """The trace, once all events are taken."""
        self.flush()
        gpu = self._gpu.joined()
        if not gpu.shape[1]:
            what = ", ".join(sorted({category.lower() for category in self._roles if category})) or "nothing"
            raise InputError(
                f"{self.label}: no GPU events (kernels, copies) among {what}: nothing to replay;"
                " record on a GPU with ProfilerActivity.CUDA"
            )
        calls = self._calls.joined()
        calls = calls[:, np.argsort(calls[0], kind="stable")]
        try:
            rank, world_size, base_ns, device = _told(header)
        except WrongFieldError as error:
            raise InputError(f"{self.label}: the header {error}") from None
        if 0 < world_size <= rank:
            raise InputError(f"{self.label}: is of rank {rank}, but the world has {world_size} ranks")
        self._check_groups(rank)
        host = self._host
        steps, told_by = longest_steps(host.steps), ""
        if not steps:
            launched = calls[0][np.isin(calls[4], gpu[5])]
            steps, told_by = steps_by_evidence(
                host.ranges, np.array(host.optimizers, dtype=np.int64).reshape(-1, 2),
                host.notes.phases.backwards(),
                launched if len(launched) else gpu[0],
            )  # fmt: skip
        grids = self._grids.joined()
        absurd = ((grids[1:] < 0) | (grids[1:] > _MAX_OF_BLOCK)).any(axis=0)
        if absurd.any():
            raise self._bad(
                int(gpu[9][np.argmax(absurd)]), "has a block of more threads or memory than any GPU"
            )
        return GpuRecording(
            label=self.label, names=self._names.values(),
            gpu=Activities(*(*gpu, grids[0], blocks_per_sm(grids, device), *grids[1:4])),
            calls=ApiCalls(*calls), origin_us=self._clock.origin_us or 0, base_ns=base_ns,
            resolution_ps=PS_PER_US if self._clock.whole else 1000, rank=rank, world_size=world_size,
            gpu_name=device["name"], num_sms=device["numSms"], syncs=self._syncs, meta=tuple(self._meta),
            framework=host.framework(), notes=host.notes,
            steps=tuple(steps), steps_told_by=told_by,
        )  # fmt: skip

    def _check_groups(self, rank: int) -> None:
        """InputError for a collective of a process group that the rank is not in."""
        for meta in self._meta:
            if rank >= 0 and meta.members and rank not in meta.members:
                raise InputError(
                    f"{self.label}: rank {rank} issues {meta.collective!r} in process group {meta.group!r},"
                    f" whose ranks are {meta.group_ranks}"
                )


def _told(header: dict[str, Any]) -> tuple[int, int, int, dict[str, Any]]:
    """Rank, world size, the begin of the clock in ns and the first GPU, as far as the file's header tells.

    Errors: WrongFieldError.
    """
    world = table(header, "distributedInfo")
    rank, world_size = whole(world, "rank", UNKNOWN), whole(world, "world_size", UNKNOWN)
    for key, value in (("rank", rank), ("world_size", world_size)):
        if not UNKNOWN <= value <= MAX_RANKS:
            raise WrongFieldError(key, value, f"no number up to {MAX_RANKS:,}")
    devices = entries(header, "deviceProperties", "GPUs", lambda device: type(device) is dict)
    device = devices[0] if devices else {}
    sizes = {key: whole(device, key, 0) for key in _SIZES}
    for key, value in sizes.items():
        if not 0 <= value < 1 << 40:
            raise WrongFieldError(key, value, "no size of a GPU")
    return (
        rank,
        world_size,
        whole(header, "baseTimeNanoseconds", 0),
        {**sizes, "name": text(device, "name", "")},
    )
