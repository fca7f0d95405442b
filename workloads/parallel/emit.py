"""Kernels of a piece written into a template of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from simcore.collectives.kinds import SEND_RECV
from simcore.graph import OpHandle, TemplateBuilder
from simcore.graph.ops import shapes_text
from simcore.graph.template_builder import External, Source, WrittenOps, external
from simcore.units import PS_PER_US
from workloads.models.pieces import (
    EP_STREAM,
    HOST_SYNC,
    OFFLOAD,
    OFFLOAD_STREAM,
    RELOAD,
    KernelLaunch,
)
from workloads.models.software import SoftwareSpec

COMPUTE = "compute"

#: Number of a fused launch that no group of messages has: kernels of a CUDA graph.
_GRAPH = 1 << 30


class _Written(NamedTuple):
    """Kernels as they were written, and where that left the writer: positions count from the first op.

    ``last`` is below 0 where none of them is on the compute stream.
    """

    known_by: tuple[object, ...]  # whose identities are its key
    stretch: WrittenOps
    open: tuple[int | External, ...]
    beside: tuple[int | External, ...]
    last: int


def _stand_alone(kernels: Sequence[KernelLaunch]) -> bool:
    """Whether nothing but the writer's open ends decides how ``kernels`` are written."""
    return not any(
        kernel.collective == SEND_RECV.name
        or kernel.name in (OFFLOAD, RELOAD)
        or kernel.leaves
        or kernel.awaits
        for kernel in kernels
    )


class OpWriter:
    """Writes kernels in order; what is left under way is waited for by the next compute kernel.

    ``software`` says what the host does between launches, or that kernels are launched as graphs.
    ``paired``: another microbatch's compute runs beside the experts' exchanges, where they may leave the
    compute stream at all.
    """

    def __init__(
        self, template: TemplateBuilder, software: SoftwareSpec | None = None, *, paired: bool = True
    ) -> None:
        software = software or SoftwareSpec()
        self.template = template
        self._paired = paired
        self._late: list[
            tuple[KernelLaunch, int]
        ] = []  # weight gradients that nobody waits for, and their layers
        self._software = software
        self._host_ps = 0 if software.cuda_graphs is True else round(software.host_us_per_kernel * PS_PER_US)
        self._turn: OpHandle | None = None  # what ran last when the latest copy was written
        self.last: OpHandle | None = None  # latest op on the compute stream
        self._open: list[Source] = []
        self._left: dict[str, Source] = {}  # under way until somebody asks for it by name
        self.beside: list[Source] = []  # an exchange beside another microbatch's compute

    def wait_for(self, *sources: Source) -> None:
        """The next op on the compute stream waits for ``sources``."""
        self._open.extend(sources)

    def taken(self) -> list[Source]:
        """What the next op on the compute stream would wait for, for an op elsewhere to wait for instead."""
        waits, self._open = self._open, []
        return waits

    def kernels(
        self, kernels: Sequence[KernelLaunch], *, phase: str, layer: int = -1,
        after: Mapping[int, Callable[[], None]] | None = None,
    ) -> None:  # fmt: skip
        """Append ``kernels``; those marked as recomputed get the phase "recompute".

        ``after[k]`` is called when kernel ``k`` is written, to append what is launched behind it.
        Equal layers are written once: the next one is a copy with its own number.
        """
        known = self.template.known
        if known is None or after or not isinstance(kernels, tuple):
            self._kernels(kernels, phase, layer, after)
            return
        key = self._state(kernels, phase, layer)
        written = known.get(key)
        if written is not None:
            self._again(written, layer)
            return
        begin, first_edge = len(self.template), len(self.template.edges)
        self._kernels(kernels, phase, layer)
        if _stand_alone(kernels):
            known[key] = _Written(
                (kernels, self._software), self.template.stretch(begin, first_edge),
                self._since(begin, self._open), self._since(begin, self.beside),
                self.last.position - begin if self.last else -1,
            )  # fmt: skip

    def _state(self, kernels: Sequence[KernelLaunch], phase: str, layer: int) -> tuple[object, ...]:
        """What decides how ``kernels`` that stand alone are written."""
        here = len(self.template)
        return (
            id(kernels), id(self._software), phase, layer < 0, self.template.name, self._paired,
            self._since(here, self._open), self._since(here, self.beside),
        )  # fmt: skip

    def _since(self, begin: int, sources: Sequence[Source]) -> tuple[int | External, ...]:
        """Sources, ops of this template counted from position ``begin``."""
        return tuple([one if isinstance(one, External) else one.position - begin for one in sources])

    def _again(self, written: _Written, layer: int) -> None:
        begin, index = len(self.template), self.template.index
        self.template.repeat(written.stretch, layer)

        def sources(since: tuple[int | External, ...]) -> list[Source]:
            return [one if isinstance(one, External) else OpHandle(index, begin + one) for one in since]

        self._open, self.beside = sources(written.open), sources(written.beside)
        if written.last >= 0:
            self.last = OpHandle(index, begin + written.last)

    def _kernels(
        self, kernels: Sequence[KernelLaunch], phase: str, layer: int,
        after: Mapping[int, Callable[[], None]] | None = None,
    ) -> None:  # fmt: skip
        # Where the host waits in between or works for single kernels, they are delayed one by one.
        singly = any(kernel.name == HOST_SYNC or kernel.host_us for kernel in kernels)
        if not singly:
            self._on_host(sum(self._launches(kernel) for kernel in kernels))
        handles: list[OpHandle] = []
        awaited = {source for kernel in kernels for source in kernel.waits_for}
        for position, kernel in enumerate(kernels):
            if kernel.stream == EP_STREAM and not self._paired:
                kernel = replace(kernel, stream=COMPUTE)
            waits: list[Source] = [handles[source] for source in kernel.waits_for]
            waits += [self._left.pop(name) for name in kernel.awaits if name in self._left]
            if kernel.stream == COMPUTE:
                waits += self._open
                self._open = []
            if singly:
                self._on_host(self._launches(kernel), kernel.host_us)
            handle = self._write(kernel, waits, "recompute" if kernel.recomputed else phase, layer)
            handles.append(handle)
            if kernel.name in (HOST_SYNC, OFFLOAD):
                continue
            if kernel.leaves:
                self._left[kernel.leaves] = handle
            elif kernel.stream == COMPUTE:
                self.last = handle
            elif kernel.stream == EP_STREAM:
                self._open.extend(self.beside)
                self.beside = [handle]
            elif position not in awaited:
                self._open.append(handle)
            if after and position in after:
                after[position]()

    def steps(self, kernels: Sequence[KernelLaunch], *, phase: str, layer: int = -1) -> Iterator[None]:
        """Append ``kernels``; stop behind each exchange of experts, which the next kernel waits for.

        Gradients of weights come behind the next exchange: it needs only the gradient of the input.
        """
        handles: dict[int, OpHandle] = {}
        for position, kernel in enumerate(kernels):
            if kernel.weight_gradient:
                self._late.append((kernel, layer))
                continue
            waits: list[Source] = [handles[source] for source in kernel.waits_for if source in handles]
            if kernel.stream == COMPUTE:
                waits += self.taken()
            self._on_host(self._launches(kernel), kernel.host_us)
            handle = self._write(kernel, waits, "recompute" if kernel.recomputed else phase, layer)
            if kernel.name in (HOST_SYNC, OFFLOAD):
                continue
            handles[position] = handle
            if kernel.stream == COMPUTE:
                self.last = handle
                continue
            if kernel.stream == EP_STREAM:
                self.write_late(phase)
            self.wait_for(handle)
            if kernel.stream == EP_STREAM:
                yield

    def write_late(self, phase: str) -> None:
        """Append the gradients of weights that have been put off."""
        waiting, self._open = self._open, []
        for kernel, layer in self._late:
            self._on_host(self._launches(kernel), kernel.host_us)
            self.last = self._write(replace(kernel, stream=COMPUTE), [], phase, layer)
        self._late = []
        self._open = waiting

    def compute(self, kernel: KernelLaunch, *, phase: str, layer: int = -1, stream: str = "",
                waits: Iterable[Source] = ()) -> OpHandle:  # fmt: skip
        """One compute kernel, by default on the compute stream."""
        self._on_host(1)
        stream = stream or kernel.stream
        on_compute = stream == COMPUTE
        handle = self._compute(kernel, [*waits, *(self._open if on_compute else ())], phase, layer, stream)
        if on_compute:
            self._open = []
            self.last = handle
        return handle

    def collective(
        self, what: str, group: str, num_bytes: int, *, stream: str, phase: str, layer: int = -1,
        waits: Iterable[Source] = (), dtype: str = "", module: str = "",
    ) -> OpHandle:  # fmt: skip
        """A collective of ``num_bytes`` on ``stream``; on the compute stream what follows is behind it."""
        on_compute = stream == COMPUTE
        handle = self.template.collective(
            what, group, num_bytes, stream=stream, waits=[*waits, *(self._open if on_compute else ())],
            phase=phase, layer=layer, dtype=dtype, module=module,
        )  # fmt: skip
        if on_compute:
            self._open = []
            self.last = handle
        return handle

    def _on_host(self, count: int, more_us: float = 0.0) -> None:
        """What an eager framework does for ``count`` kernels, in one piece before them."""
        spent_ps = count * self._host_ps + round(more_us * PS_PER_US)
        if spent_ps and self._software.cuda_graphs is not True:
            self.template.host("eager", spent_ps)

    def _write(self, kernel: KernelLaunch, waits: list[Source], phase: str, layer: int) -> OpHandle:
        if kernel.name == HOST_SYNC:
            return self.template.sync(COMPUTE, name=HOST_SYNC, waits=waits)
        if kernel.name in (OFFLOAD, RELOAD):
            return self._copy(kernel, phase, layer)
        if not kernel.collective:
            return self._compute(kernel, waits, phase, layer, kernel.stream)
        columns = {
            "stream": kernel.stream, "waits": waits, "phase": phase, "layer": layer, "dtype": kernel.dtype,
            "module": kernel.module, "in_shapes": _shapes(kernel.in_shapes),
            "out_shapes": _shapes(kernel.out_shapes),
        }  # fmt: skip
        if kernel.collective == SEND_RECV.name:
            columns["batch"] = len(self.template)  # a launch of its own, whoever else writes this template
            self.template.send(kernel.group, kernel.peer_delta, kernel.num_bytes, **columns)  # type: ignore[arg-type]
            return self.template.recv(kernel.group, -kernel.peer_delta, kernel.num_bytes, **columns)  # type: ignore[arg-type]
        columns["reduce_op"] = kernel.reduce_op
        columns["op_class"] = kernel.op_class
        if ":" in kernel.collective:  # an exchange of tokens by kernels of its own
            columns["name"] = kernel.name
        return self.template.collective(kernel.collective, kernel.group, kernel.num_bytes, **columns)  # type: ignore[arg-type]

    def _compute(
        self, kernel: KernelLaunch, waits: Sequence[Source], phase: str, layer: int, stream: str
    ) -> OpHandle:
        if kernel.name.startswith("memcpy_htod"):  # by a copy engine, over PCIe
            return self.template.memcpy(
                kernel.name, kernel.bytes_read, stream=stream, waits=waits, phase=phase, layer=layer,
                module=kernel.module, dtype=kernel.dtype, in_shapes=_shapes(kernel.in_shapes),
            )  # fmt: skip
        return self.template.compute(
            kernel.name, stream=stream, waits=waits, phase=phase, layer=layer, module=kernel.module,
            op_class=kernel.op_class, dtype=kernel.dtype, in_shapes=_shapes(kernel.in_shapes),
            out_shapes=_shapes(kernel.out_shapes), flops=kernel.flops, bytes_read=kernel.bytes_read,
            bytes_written=kernel.bytes_written,
            batch=_GRAPH if self._software.in_graph(kernel.module) else -1,
        )  # fmt: skip

    def _copy(self, kernel: KernelLaunch, phase: str, layer: int) -> OpHandle:
        """What leaves has been computed; what comes back has left, and the piece before begins."""
        leaves = kernel.name == OFFLOAD
        after: list[Source | None] = [self.last] if leaves else [self._turn, external(OFFLOAD_STREAM)]
        handle = self.template.memcpy(
            kernel.name, kernel.bytes_read, stream=kernel.stream, waits=[one for one in after if one],
            phase=phase, layer=layer, module=kernel.module,
        )  # fmt: skip
        self._turn = self.last
        return handle

    def _launches(self, kernel: KernelLaunch) -> int:
        """Launches that an eager framework prepares; collectives are counted with what they follow."""
        free = kernel.collective or kernel.name in (HOST_SYNC, OFFLOAD, RELOAD)
        return 0 if free or self._software.in_graph(kernel.module) else kernel.launches


@lru_cache(maxsize=1 << 12)
def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return shapes_text(shapes) if shapes else ""
