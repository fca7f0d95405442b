"""``torch.distributed`` as one rank of a world that is not there.

Process groups use torch's own "fake" backend; the recorder sees every collective at the dispatcher
and never calls it.  Here stands what would read values or talk to a peer outside the dispatcher.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed import _functional_collectives, distributed_c10d
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers the backend)

from workloads.tracing.fake.group_names import described_family

#: (symbol, ranks) of every group that was asked for, in order, own rank a member or not.
requested_groups: list[tuple[str, tuple[int, ...]]] = []

#: Gives a group that is asked for its symbol, from its description and members.
name_family: Callable[[str, tuple[int, ...]], str] = described_family

#: Symbol of each group that was made, by torch's name of it.
_symbols: dict[str, str] = {}

#: Backend that was asked for, by torch's name of the group.
_backends: dict[str, str] = {}

#: Groups, by torch's name, that make their communicator at once and have no other.
_eager: set[str] = set()

#: Reduce operation of the collective being issued: the dispatcher only sees an opaque object.
current_reduce_op: str = ""

#: Number of the batch of point-to-point calls being issued, -1 outside one.
current_batch: int = -1

#: (rank, ranks) of the world that this process was told of, and of its node.
place_in_world = (0, 1)
place_on_node = (0, 1)

#: The store of the world: torch keeps its C++ half alone.
_default_store: Any = None

#: What torch calls the default of gloo for tensors of the host and NCCL for those of the GPU.
_BOTH = "undefined"

_num_batches = 0
_real_new_group = distributed_c10d.new_group
_real_init = distributed_c10d.init_process_group
_REDUCING = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
)


def install() -> None:
    """Patch ``torch.distributed``, once per process and before the framework is imported."""
    replacements = {
        "new_group": _new_group,
        "init_process_group": _init_process_group,
        "get_backend": get_backend,
        "is_nccl_available": lambda: True,
        "batch_isend_irecv": _numbered_batches(distributed_c10d.batch_isend_irecv),
    }
    for name, function in replacements.items():
        setattr(dist, name, function)
        setattr(distributed_c10d, name, function)
    for module in (dist, distributed_c10d, torch._C._distributed_c10d):
        if not hasattr(module, "ProcessGroupNCCL"):
            vars(module)["ProcessGroupNCCL"] = _ProcessGroupNCCL
    # Results of functional collectives are waited for where they are used.  torch waits at once under a fake
    # mode, which it takes for a compiler's.
    _functional_collectives._are_we_tracing = lambda: get_proxy_mode() is not None
    group_class: Any = ProcessGroup
    group_class.name = get_backend
    for name in _REDUCING:
        if hasattr(ProcessGroup, name):
            setattr(ProcessGroup, name, _noting_reduce_op(getattr(ProcessGroup, name)))


class OtherWorldError(RuntimeError):
    """The program makes another world than the one that is traced."""


class _ProcessGroupNCCL:
    """What builds without NCCL lack: the class of a backend, of which nothing is here, and its options."""

    class Options:
        """Whatever a program sets; what it asks for without having set it is an empty one, too."""

        def __init__(self, *_args: object, **kwargs: object) -> None:
            vars(self).update(kwargs)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            vars(self)[name] = made = type(self)()
            return made


def enter_world(rank: int, world_size: int, gpus_per_node: int, local_rank: int = 0) -> None:
    """Be ``rank`` of ``world_size`` in this process, from its start on, as torchrun tells a program."""
    global place_in_world, place_on_node
    place_in_world, place_on_node = (rank, world_size), (rank % gpus_per_node, gpus_per_node)
    node, nodes = rank // gpus_per_node, -(-world_size // gpus_per_node)
    os.environ.update(
        GROUP_RANK=str(node),
        GROUP_WORLD_SIZE=str(nodes),
        ROLE_NAME="default",
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(world_size),
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_RUN_ID="none",
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(gpus_per_node),
        MASTER_ADDR="localhost",
        MASTER_PORT="1",
    )
    if shutil.which("nvidia-smi") is None:  # nothing to hide: programs count what this lists
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)


def on_host(group: Any) -> bool:
    """Whether objects and barriers of ``group`` stay off the device: gloo, or torch's default of both."""
    backend = get_backend(group)
    return "gloo" in backend or backend == _BOTH


def is_eager(group: Any) -> bool:
    """Whether ``group`` made its communicator at once, for a device that the program named."""
    return group.group_name in _eager


def get_backend(group: Any = None) -> str:
    """``torch.distributed.get_backend``: what the program asked for."""
    made = group or distributed_c10d._get_default_group()
    return _backends.get(made.group_name, "nccl")


def _init_process_group(
    backend: str | None = None,
    init_method: str | None = None,  # noqa: ARG001
    timeout: object = None,  # noqa: ARG001
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    *_args: object,
    device_id: torch.device | int | None = None,
    **_kwargs: object,
) -> None:
    place = tuple(
        given if given >= 0 else int(os.environ.get(name, known))
        for given, name, known in zip((rank, world_size), ("RANK", "WORLD_SIZE"), place_in_world, strict=True)
    )
    if place != place_in_world:
        raise OtherWorldError(
            f"the script makes itself rank {place[0]} of {place[1]}, and is traced as rank "
            f"{place_in_world[0]} of {place_in_world[1]}"
        )
    global _default_store
    distributed: Any = dist
    _default_store = store or distributed.HashStore()
    _real_init("fake", rank=place[0], world_size=place[1], store=_default_store)
    default = _BOTH if device_id is None else "nccl"
    made = distributed_c10d._get_default_group()
    _backends[made.group_name] = str(backend or default).lower()
    if device_id is not None:
        _eager.add(made.group_name)


def _new_group(
    ranks: Sequence[int] | None = None,
    timeout: object = None,  # noqa: ARG001
    backend: str | None = None,
    *_args: object,
    group_desc: str | None = None,
    device_id: torch.device | int | None = None,
    **_kwargs: object,
) -> Any:
    """Any requested backend (nccl, gloo, ...) becomes the fake one: gloo would connect to its peers."""
    # torch sorts the ranks, and numbers the members in that order
    members = tuple(sorted(map(int, ranks if ranks is not None else range(dist.get_world_size()))))
    symbol = name_family(group_desc or "", members)
    requested_groups.append((symbol, members))
    if dist.get_rank() not in members:
        return dist.GroupMember.NON_GROUP_MEMBER
    made = _real_new_group(list(members), None, "fake", None, group_desc=group_desc)
    _symbols[made.group_name] = symbol
    world = distributed_c10d._get_default_group().group_name
    _backends[made.group_name] = str(backend or _backends[world])
    if device_id is not None or world in _eager:
        _eager.add(made.group_name)
    return made


def _numbered_batches(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A batch is one launch (an NCCL group)."""

    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        global current_batch, _num_batches
        outer, current_batch = current_batch, _num_batches
        _num_batches += 1
        try:
            return original(p2p_op_list)
        finally:
            current_batch = outer

    return batch_isend_irecv


def _noting_reduce_op(original: Callable[..., Any]) -> Callable[..., Any]:
    def collective(self: Any, *args: Any, **kwargs: Any) -> Any:
        global current_reduce_op
        outer, current_reduce_op = current_reduce_op, _reduce_op_name((*args, *kwargs.values()))
        try:
            return original(self, *args, **kwargs)
        finally:
            current_reduce_op = outer

    return collective


def _reduce_op_name(arguments: tuple[Any, ...]) -> str:
    for argument in reversed(arguments):
        operation = getattr(argument, "reduceOp", argument)
        if isinstance(operation, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return str(getattr(operation, "op", operation)).rpartition(".")[2].lower()
    return "sum"


def symbol_of(group: Any) -> str:
    """Symbol of a process group, equal on every rank."""
    return _symbols.get(group.group_name, "world")


def group_members(group: Any) -> tuple[int, ...]:
    """Global ranks of a process group, in group order."""
    return tuple(dist.get_process_group_ranks(group))


def unbox(script_object: Any) -> Any:
    """The process group behind the dispatcher's script object, or behind a name."""
    if isinstance(script_object, ProcessGroup):
        return script_object
    if isinstance(script_object, str):
        return torch._C._distributed_c10d._resolve_process_group(script_object)  # type: ignore[arg-type]
    return torch._C._distributed_c10d.ProcessGroup.unbox(script_object)
