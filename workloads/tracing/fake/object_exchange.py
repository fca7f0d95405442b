"""Python objects that ranks send each other, while each rank runs alone.

Note [Mail between runs]
    What a rank sends is put in a folder.  A rank that needs what is not there says so in the same folder and
    waits, while others are run.  Mail is addressed by family of process groups, places in the group and
    count: a rank whose own peers are not run is answered with what ranks at their places sent.  What every
    rank gives (``all_gather_object``) is worked out from some (:mod:`workloads.tracing.fake.peers`).  What an
    exchange costs on the device is issued as torch issues it: sizes, then pickled bytes.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import empty
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

from workloads.tracing.fake import peers, process_groups, saved_files, streams
from workloads.tracing.fake.mail import BARRIER, EVERYBODY, EVERYBODY_VALUES, Address, Waiting, deliver
from workloads.tracing.sites import call_site

_LOOK_S = 0.02
#: What all members of a group give, one call after the other, wherever each of them calls.
_OBJECTS = "objects"

#: The mailbox of the rank being run; None: there is no mail, broadcasts leave objects as they are.
mailbox: Mailbox | None = None


class ObjectExchangeError(RuntimeError):
    """An object that cannot be exchanged between runs; names who asked."""


class Mailbox:
    """What one rank sends and receives through ``folder``; ``still_waiting`` is called again and again while
    it waits.
    """

    def __init__(self, folder: Path, still_waiting: Callable[[], None]) -> None:
        self._folder = folder
        self._still_waiting = still_waiting
        self._counts: Counter[tuple[str, int, int]] = Counter()
        #: Topics of which others have told nothing.
        self._silent: set[str] = set()

    def send(self, objects: Sequence[Any], group: Any, target: int) -> list[int]:
        """Put ``objects`` in; returns the pickled bytes of each."""
        pickled = [_pickled(one) for one in objects]
        deliver(self._next(group, dist.get_rank(group), target).path(self._folder), pickled)
        return [len(one) for one in pickled]

    def receive(self, group: Any, place: int, target: int) -> tuple[list[Any], list[int]]:
        """Objects from ``place`` in ``group`` and their pickled bytes, once they are there."""
        path = self._wait_for(self._next(group, place, target))
        pickled: list[bytes] = pickle.loads(path.read_bytes())
        with _disable_current_modes():
            return [pickle.loads(one) for one in pickled], [len(one) for one in pickled]

    def send_values(self, values: Sequence[Any] | None, group: Any, target: int = EVERYBODY_VALUES) -> None:
        """Give others of ``group`` the arrays of a call; None: they are not known."""
        own = dist.get_rank(group)
        deliver(self._next(group, own, target).path(self._folder), values)

    def receive_values(
        self, group: Any, place: int, target: int = EVERYBODY_VALUES
    ) -> Callable[[], Sequence[Any] | None]:
        """Gives what the rank at ``place`` in ``group`` sends by this call, once it is there."""
        address = self._next(group, place, target)
        return lambda: pickle.loads(self._wait_for(address).read_bytes())

    def share(self, topic: str, group: Any, value: Any, wanted: Iterable[int]) -> dict[int, Any]:
        """Tell ``group`` this rank's ``value`` at ``topic``; returns those of the places ``wanted`` that tell
        theirs, with ``value`` for its own.
        """
        mine, size = dist.get_rank(group), dist.get_world_size(group)
        topic = f"{process_groups.symbol_of(group)} {topic}"
        number = self._counts[topic, mine, EVERYBODY]
        self._counts[topic, mine, EVERYBODY] += 1
        found = {mine: value}

        def address(place: int) -> Address:
            source = dist.get_global_rank(group, place)
            return Address(topic, source, place, EVERYBODY, number, True, place == size - 1)

        deliver(address(mine).path(self._folder), _pickled(value))
        for place in wanted:
            where = address(place)
            if place == mine or (topic in self._silent and where.found(self._folder) is None):
                continue
            told = pickle.loads(self._wait_for(where).read_bytes())
            if told is None:
                self._silent.add(topic)
            else:
                with _disable_current_modes():
                    found[place] = pickle.loads(told)
        return found

    def meet(self, group: Any) -> None:
        """A barrier of ``group``: rank 0, if it is a member, has come as far.  What it prepares for others
        (data, files) is there then; others are not waited for, since most of them are not run.
        """
        place = dist.get_group_rank(group, 0) if 0 in process_groups.group_members(group) else -1
        if place < 0 or dist.get_world_size(group) == 1:
            return
        symbol, mine = process_groups.symbol_of(group), dist.get_rank(group)
        number = self._counts[symbol, place, BARRIER]
        self._counts[symbol, place, BARRIER] += 1
        address = Address(f"barrier of {symbol}", 0, place, BARRIER, number, shared=True)
        if mine == place:
            deliver(address.path(self._folder), saved_files.versions())
        else:
            versions: dict[str, int] | None = pickle.loads(self._wait_for(address).read_bytes())
            if versions is not None:
                saved_files.see(versions)

    def put_saved(self, path: str, version: int, content: bytes) -> None:
        """Rank 0 has saved ``content`` as the file ``path``, the ``version``-th that it saves."""
        if _own_rank() == 0:
            deliver(_saved(path, version).path(self._folder), content)
            deliver(_saved(path).path(self._folder), content)

    def saved(self, path: str, version: int = 0) -> bytes | None:
        """What rank 0 has saved, or will have saved last (``version`` 0); None: it saves no such file."""
        if _own_rank() == 0:
            return None
        content: bytes | None = pickle.loads(self._wait_for(_saved(path, version)).read_bytes())
        return content

    def post(self, key: str, value: bytes) -> None:
        """Put ``value`` at ``key`` of the store that all ranks share."""
        deliver(_posted(key, _own_rank()).path(self._folder), value)

    def posted(self, key: str) -> bytes:
        """What a rank put at ``key``, once it is there; rank 0 is asked for it."""
        value: bytes = pickle.loads(self._wait_for(_posted(key, 0)).read_bytes())
        return value

    def _wait_for(self, address: Address) -> Path:
        path = address.found(self._folder)
        if path is not None:
            return path
        notice = Waiting(_own_rank(), address, call_site())
        deliver(notice.path(self._folder), notice)
        while path is None:
            time.sleep(_LOOK_S)
            self._still_waiting()
            path = address.found(self._folder)
        notice.path(self._folder).unlink()
        return path

    def _next(self, group: Any, place: int, target: int) -> Address:
        symbol = process_groups.symbol_of(group)
        number = self._counts[symbol, place, target]
        self._counts[symbol, place, target] += 1
        return Address(symbol, dist.get_global_rank(group, place), place, target, number)


def _own_rank() -> int:
    """Also before there are process groups."""
    return process_groups.place_in_world[0]


def _posted(key: str, source: int) -> Address:
    return Address(f"store, key {key}", source, 0, EVERYBODY, 0)


def _saved(path: str, version: int = 0) -> Address:
    return Address(f"file {path}", 0, 0, EVERYBODY, version, shared=True)


def install() -> None:
    """Patch ``torch.distributed``'s object functions, once per process."""
    for function in (
        send_object_list,
        recv_object_list,
        broadcast_object_list,
        scatter_object_list,
        all_gather_object,
        gather_object,
    ):
        for module in (dist, c10d):
            setattr(module, function.__name__, function)


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Any = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """``torch.distributed.send_object_list``."""
    group, place = _peer(group, dst, group_dst)
    sizes = _box().send(object_list, group, place)
    _issue(group, device, sizes, dist.isend, place, use_batch)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """``torch.distributed.recv_object_list``."""
    group, place = _peer(group, src, group_src)
    object_list[:], sizes = _box().receive(group, place, dist.get_rank(group))
    _issue(group, device, sizes, dist.irecv, place, use_batch)
    return dist.get_global_rank(group, place)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """``torch.distributed.broadcast_object_list``."""
    if mailbox is None or group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    group, place = _peer(group, src, group_src)
    sends = place == dist.get_rank(group)
    if sends:
        sizes = mailbox.send(object_list, group, EVERYBODY)
    else:
        object_list[:], sizes = mailbox.receive(group, place, EVERYBODY)
    where = _device(group, device)
    if where.type == "cuda":
        for count, dtype in ((len(sizes), torch.long), (sum(sizes), torch.uint8)):
            dist.broadcast(_host(count, dtype, where), group=group, group_src=place)
            if not sends:
                streams.current_stream().synchronize()


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    """``torch.distributed.scatter_object_list``; what it costs on the device is left out."""
    group, place = _peer(group, src, group_src)
    mine = dist.get_rank(group)
    if mine == place:
        given = scatter_object_input_list or []
        for target, one in enumerate(given):
            if target != mine and mailbox is not None:
                mailbox.send([one], group, target)
        scatter_object_output_list[0] = given[mine] if given else None
    elif mailbox is not None:
        scatter_object_output_list[0] = mailbox.receive(group, place, mine)[0][0]


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """``torch.distributed.all_gather_object``."""
    object_list[:] = peers.objects_of_all(obj, group or c10d._get_default_group(), _OBJECTS)
    _issue_gather((object_list[0], object_list[-1]), group)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    """``torch.distributed.gather_object``."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    group, place = _peer(group, dst, group_dst)
    given = peers.objects_of_all(obj, group, _OBJECTS)
    _issue_gather((given[0], given[-1]), group, place)
    if object_gather_list is not None:
        object_gather_list[:] = given


def _issue(group: Any, device: Any, sizes: list[int], operation: Any, place: int, batch: bool) -> None:
    where = _device(group, device)
    if where.type != "cuda":
        return
    for count, dtype in ((len(sizes), torch.long), (sum(sizes), torch.uint8)):
        tensor = _host(count, dtype, where)
        if batch:
            calls = [dist.P2POp(operation, tensor, group=group, group_peer=place)]
            dist.batch_isend_irecv(calls).pop().wait()
        elif operation is dist.isend:
            dist.send(tensor, group=group, group_dst=place)
        else:
            dist.recv(tensor, group=group, group_src=place)
        if operation is dist.irecv:  # the host reads what came
            streams.current_stream().synchronize()


def _issue_gather(ends: tuple[Any, Any], group: Any, root: int | None = None) -> None:
    """Every rank sends as many bytes as the longest has, of which all ranks know what the ``ends`` give: to
    the place ``root`` alone, or to all.
    """
    group = group or c10d._get_default_group()
    where = _device(group, None)
    if where.type != "cuda" or mailbox is None:
        return
    longest = max(len(_pickled(one)) for one in ends)
    for count, dtype in ((1, torch.long), (longest, torch.uint8)):
        gathered = empty(count * dist.get_world_size(group), dtype=dtype, device=where)
        parts, own = list(torch.split(gathered, count)), _host(count, dtype, where)
        if root is None or dtype is torch.long:  # sizes, to all
            dist.all_gather(parts, own, group=group)
        else:
            mine = dist.get_rank(group)
            dist.gather(own, parts if mine == root else None, group=group, group_dst=root)
            if mine != root:
                return
        streams.current_stream().synchronize()


def _peer(group: Any, rank: int | None, place: int | None) -> tuple[Any, int]:
    """The group, and a rank's place in it."""
    group = group or c10d._get_default_group()
    found = dist.get_group_rank(group, rank or 0) if place is None else place
    if not 0 <= found < group.size():
        raise ValueError(f"objects to or from rank {found} of a group of {group.size()}")
    return group, found


def _device(group: Any, device: Any) -> torch.device:
    if device is not None:
        return torch.device(device)
    if process_groups.on_host(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _host(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor that the host filled, on the device."""
    return empty(count, dtype=dtype).to(device)


def _pickled(one: Any) -> bytes:
    try:
        with _disable_current_modes():
            return pickle.dumps(one)
    except Exception as error:
        raise ObjectExchangeError(
            f"{call_site()} sends an object that cannot be pickled while tracing: {error}"
        ) from None


def _box() -> Mailbox:
    if mailbox is None:
        raise ObjectExchangeError(f"{call_site()} exchanges Python objects with a rank that does not run")
    return mailbox
