"""Calls to ``c10d`` as the dispatcher sees them: which collective, on what, how many bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from simcore.collectives.kinds.all_to_all import uneven
from simcore.records import dataclass
from workloads.tracing.fake.aten_ops import is_on_device, num_bytes, tensors_in
from workloads.tracing.fake.parallel_patches import of_device


class UnknownCallError(RuntimeError):
    """The program communicates in a way that cannot be written down; names the operator."""


class RefusedCallError(RuntimeError):
    """The program communicates what its group would refuse."""


@dataclass(frozen=True)
class _Form:
    """Where a dispatcher operator keeps things.  ``pg``: argument index of the group; ``split``: separate
    output (argument 0) and input (argument 1); ``size``: whose bytes nccl-tests counts; ``bare``: returns
    only a Work.  ``root``: argument index of the one place that gets ("to") or gives ("from") everything.
    """

    collective: str
    pg: int = 2
    split: bool = True
    size: str = "output"
    bare: bool = False
    coalesced: bool = False
    root: int = -1


FORMS = {
    "allreduce_": _Form("all_reduce", pg=1, split=False),
    "allreduce_coalesced_": _Form("all_reduce", pg=1, split=False, bare=True, coalesced=True),
    "broadcast_": _Form("broadcast", pg=1, split=False),
    "reduce_": _Form("reduce", pg=1, split=False, bare=True),
    "barrier": _Form("barrier", pg=1, split=False, bare=True),
    "allgather_": _Form("all_gather"),
    "_allgather_base_": _Form("all_gather"),
    "allgather_coalesced_": _Form("all_gather", bare=True, coalesced=True),
    "allgather_into_tensor_coalesced_": _Form("all_gather", bare=True, coalesced=True),
    "reduce_scatter_": _Form("reduce_scatter", size="input"),
    "_reduce_scatter_base_": _Form("reduce_scatter", size="input"),
    "reduce_scatter_tensor_coalesced_": _Form("reduce_scatter", size="input", bare=True, coalesced=True),
    "alltoall_": _Form("all_to_all", size="input"),
    "alltoall_base_": _Form("all_to_all", size="input", bare=True),
    "gather_": _Form("gather", size="input", bare=True, root=3),
    "scatter_": _Form("scatter", root=3),
}

#: NCCL groups sends and receives for them: exchanges in which all pieces go to, or come from, one place.
_ROOTED = {"gather": "to", "scatter": "from"}

#: Of which NCCL wants both sides of one type.
_BASES = ("_allgather_base_", "_reduce_scatter_base_")

#: What a group holds a multiple of, on one side: elements, or tensors of a list.
_FITS = {
    **dict.fromkeys(_BASES, torch.Tensor.numel),
    **dict.fromkeys(("allgather_", "reduce_scatter_"), lambda _: 1),
}

#: Whose tensors NCCL wants contiguous (``check_gpu_single_tensor`` of ProcessGroupNCCL.cpp).
_CONTIGUOUS = (*_BASES, "allreduce_", "broadcast_", "reduce_", "alltoall_base_")

P2P = {"send": "send", "recv_": "recv"}

#: Which argument is the place of one other rank in the group.
_PLACE = {"broadcast_": 2, "reduce_": 3, "gather_": 3, "scatter_": 3, "send": 2, "recv_": 2}


@dataclass(frozen=True)
class CollectiveCall:
    """One call.  ``parts`` holds (inputs, outputs) of each collective: several when coalesced.

    ``is_async``: runs on the communicator's stream.  ``bare``: the operator returns a Work alone, else
    (argument 0, Work).  ``uneven``: an exchange in parts of several sizes.  ``root``: the place of a gather
    or scatter that has everything.
    """

    collective: str
    group: Any
    parts: list[tuple[list[torch.Tensor], list[torch.Tensor]]]
    sizes: list[int]
    is_async: bool
    bare: bool
    uneven: bool = False
    root: int = -1

    def in_place_on_outputs(self) -> CollectiveCall:
        """The same collective on its outputs alone."""
        return replace(self, parts=[(outputs, outputs) for _, outputs in self.parts])

    def kind(self, num_ranks: int) -> str:
        """What graphs call it among ``num_ranks``."""
        side = _ROOTED.get(self.collective)
        if side is None:
            return self.collective
        return uneven(side, [int(place == self.root) for place in range(num_ranks)])

    @property
    def in_place(self) -> bool:
        """Input and output are the same tensors."""
        return all(inputs is outputs for inputs, outputs in self.parts)


#: DTensor's functional operators -> (collective, whose bytes nccl-tests counts, position of the reduce
#: operation or -1).
FUNCTIONAL = {
    "all_reduce": ("all_reduce", "output", 1),
    "all_reduce_": ("all_reduce", "output", 1),
    "all_reduce_coalesced": ("all_reduce", "output", 1),
    "all_reduce_coalesced_": ("all_reduce", "output", 1),
    "all_gather_into_tensor": ("all_gather", "output", -1),
    "all_gather_into_tensor_out": ("all_gather", "output", -1),
    "all_gather_into_tensor_coalesced": ("all_gather", "output", -1),
    "reduce_scatter_tensor": ("reduce_scatter", "input", 1),
    "reduce_scatter_tensor_out": ("reduce_scatter", "input", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", "input", 1),
    "all_to_all_single": ("all_to_all", "input", -1),
    "broadcast": ("broadcast", "output", -1),
    "broadcast_": ("broadcast", "output", -1),
}


def is_out_of_place_copy(name: str) -> bool:
    """Whether ``_c10d_functional::<name>`` is a clone and the in-place collective (Functional.cpp)."""
    return name in ("all_reduce", "all_reduce_coalesced", "broadcast")


def parse_functional(name: str, args: Sequence[Any], result: Any) -> tuple[CollectiveCall, str]:
    """The call behind ``_c10d_functional::<name>`` and its reduce operation ("" for none).

    UnknownCallError for an operator that is not here.
    """
    if name not in FUNCTIONAL:
        raise UnknownCallError(f"_c10d_functional::{name} is no collective that can be traced")
    collective, size, reduce_at = FUNCTIONAL[name]
    sources = args[0] if isinstance(args[0], list | tuple) else [args[0]]
    results = result if isinstance(result, list | tuple) else [result]
    parts = [([source], [output]) for source, output in zip(sources, results, strict=True)]
    sizes = [num_bytes((inputs if size == "input" else outputs)[0]) for inputs, outputs in parts]
    if collective == "all_to_all":
        sizes = [_fullest(sizes[0], sources[0], args[1], args[2])]
    differ = collective == "all_to_all" and _are_uneven(args[1], args[2])
    call = CollectiveCall(collective, args[-1], parts, sizes, is_async=True, bare=True, uneven=differ)
    return call, str(args[reduce_at]).lower() if reduce_at >= 0 else ""


def parse_collective(name: str, args: Sequence[Any]) -> CollectiveCall:
    """The call behind dispatcher operator ``c10d::<name>``.  UnknownCallError for one that is not here."""
    if name not in FORMS:
        raise UnknownCallError(f"c10d::{name} is no collective that can be traced")
    form = FORMS[name]
    first: Any = args[0] if isinstance(args[0], list | tuple) else [args[0]]
    second: Any = []
    if form.split:
        second = args[1] if isinstance(args[1], list | tuple) else [args[1]]
    if form.coalesced:
        pairs = list(zip(first, second, strict=True)) if form.split else [(item, None) for item in first]
    else:
        pairs = [(first, second if form.split else None)]
    parts, sizes = [], []
    for output, source in pairs:
        outputs = tensors_in(output, [])
        inputs = outputs if source is None else tensors_in(source, [])
        parts.append(([], []) if form.collective == "barrier" else (inputs, outputs))
        sizes.append(sum(map(num_bytes, inputs if form.size == "input" else outputs)))
    differ = False
    if name == "alltoall_base_":
        sizes, differ = [_fullest(sizes[0], args[1], args[3], args[4])], _are_uneven(args[3], args[4])
    elif name == "alltoall_":
        sizes = [len(first) * max(num_bytes(tensor) for tensor in (*first, *second))]
        differ = _are_uneven([one.numel() for one in (*first, *second)])
    # The flag has the default True, which the dispatcher leaves out.
    is_async = next((flag for flag in reversed(args) if isinstance(flag, bool)), True)
    root = int(args[form.root]) if form.root >= 0 else -1
    return CollectiveCall(form.collective, args[form.pg], parts, sizes, is_async, form.bare, differ, root)


def check_place(name: str, args: Sequence[Any], num_ranks: int) -> None:
    """RefusedCallError where ``c10d::<name>`` names a rank that a group of ``num_ranks`` does not have."""
    place = int(args[_PLACE[name]]) if name in _PLACE else 0
    if not 0 <= place < num_ranks:
        raise RefusedCallError(f"{name.strip('_')} to or from rank {place} of a group of {num_ranks}")


def check_call(name: str, args: Sequence[Any], call: CollectiveCall, num_ranks: int, backend: str) -> None:
    """RefusedCallError where a group of ``num_ranks`` would refuse ``c10d::<name>`` (or a functional
    operator) for the number of its parts, or NCCL for where tensors lie or their types.  How long parts are
    may follow from assumed values: that is left alone.
    """
    lists = {"gather_": args[0], "scatter_": args[1], "alltoall_": [args[0], args[1]]}.get(name, ())
    given = {"alltoall_base_": args[3:5], "all_to_all_single": args[1:3]}.get(name, lists)
    for parts in given:
        if parts and len(parts) != num_ranks:
            raise RefusedCallError(f"{call.collective} with {len(parts)} parts among {num_ranks} ranks")
    if backend == "nccl":
        _check_for_nccl(name, call)
    if name not in _FITS:
        return
    for inputs, outputs in call.parts:
        sizes = [sum(map(_FITS[name], tensors)) for tensors in (inputs, outputs)]
        small, large = sizes if call.collective == "all_gather" else reversed(sizes)
        if large != num_ranks * small:
            raise RefusedCallError(
                f"{call.collective} of {sizes[0]} parts (elements, or tensors of a list) into {sizes[1]} "
                f"among {num_ranks} ranks"
            )


def _check_for_nccl(name: str, call: CollectiveCall) -> None:
    tensors = [one for inputs, outputs in call.parts for one in (*inputs, *outputs)]
    if any(not (is_on_device(one) or of_device(one)) for one in tensors):
        raise RefusedCallError(f"{call.collective} of a tensor of the host in a group of nccl alone")
    types = {one.dtype: None for one in tensors}
    if name in _BASES and len(types) > 1:
        raise RefusedCallError(f"{call.collective} from and to tensors of {', '.join(map(str, types))}")


def is_scattered(name: str, call: CollectiveCall) -> bool:
    """Whether NCCL refuses ``c10d::<name>`` for tensors that are not contiguous.  Strides on shapes need not
    be those of a GPU: a doubt, and no error.
    """
    tensors = [one for inputs, outputs in call.parts for one in (*inputs, *outputs)]
    return name in _CONTIGUOUS and not all(map(_is_contiguous, tensors))


def _is_contiguous(tensor: torch.Tensor) -> bool:
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return tensor.is_contiguous() or (form is not None and tensor.is_contiguous(memory_format=form))


def _are_uneven(*splits: Sequence[int]) -> bool:
    return len({row for rows in splits for row in rows}) > 1


def _fullest(num: int, source: torch.Tensor, *splits: Sequence[int]) -> int:
    """Bytes of an even all_to_all that lasts as long as one with these ``splits`` of rows, ``num`` without.

    The port of the rank that sends or receives most decides.  Where all ranks split alike, it moves the
    largest part once for every rank; a rank sees that part in what it sends or in what it gets back.  A
    permutation sends one part to one other rank: what a port carries of an even one, all but its own part.
    """
    uneven = [list(rows) for rows in splits if rows]
    if not uneven:
        return num
    row = source.element_size() * math.prod(source.shape[1:])
    if all(len(rows) - rows.count(0) == 1 for rows in uneven):
        return max(len(rows) * max(rows) // (len(rows) - 1) for rows in uneven) * row
    return max(len(rows) * max(rows) for rows in uneven) * row
