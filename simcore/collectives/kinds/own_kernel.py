"""A program's own kernel that carries a collective out instead of NCCL: SMs, flows, what it reaches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from simcore.errors import InputError
from simcore.records import dataclass

#: (source, destination, bytes per byte of the collective's size).
Flow = tuple[int, int, float]


class OwnKernel:
    """A kernel that has all its flows under way at the same time, chunk by chunk.

    ``sms`` that it holds, 0 where copy engines or NICs do the work.  ``sm_bytes_per_s``: what one SM sends;
    ``nvlink_share``, ``network_share``: what it reaches of the rate of NVLink and of NICs.  ``start_s``: from
    its launch to the first byte, without the hop (None: as NCCL's messages).  ``flagged``: flags that the
    receiver polls travel beside the data, as in NCCL's LL.
    """

    sms: int
    sm_bytes_per_s: float = math.inf
    nvlink_share: float = 1.0
    network_share: float = 1.0
    start_s: float | None = None
    flagged: bool = False

    def flows(self, nodes: Sequence[int]) -> Iterable[Flow]:
        """Who sends how much to whom; member ``i`` is on node ``nodes[i]``; both count in the GPUs' order."""
        raise NotImplementedError

    def busiest(self, nodes: Sequence[int]) -> float:
        """What the member that sends most hands to NVLink or to its NIC, whichever is more, per byte."""
        ways: Counter[tuple[int, bool]] = Counter()
        for src, dst, share in self.flows(nodes):
            ways[src, nodes[src] == nodes[dst]] += share  # type: ignore[assignment]
        return max(ways.values(), default=0.0)

    def sms_bytes_per_s(self, nodes: Sequence[int]) -> float:
        """What its SMs move of the collective's size per second, if links let them."""
        busiest = self.busiest(nodes)
        return self.sms * self.sm_bytes_per_s / busiest if self.sms and busiest else math.inf

    def hbm_bytes(self, nodes: Sequence[int]) -> float:
        """HBM traffic of an average member per byte: what it sends is read, what it gets is written."""
        return 2.0 * math.fsum(share for _, _, share in self.flows(nodes)) / len(nodes)


@dataclass(frozen=True)
class FlowKernel(OwnKernel):
    """A kernel by the function that gives its flows (None: one message, of a pair).

    Errors: InputError for numbers that cannot be.
    """

    sms: int
    function: Callable[[Sequence[int]], Iterable[Flow]] | None = None
    sm_bytes_per_s: float = math.inf
    nvlink_share: float = 1.0
    network_share: float = 1.0
    start_s: float | None = None

    def __post_init__(self) -> None:
        if type(self.sms) is not int or self.sms < 0:
            raise InputError(f"sms is {self.sms!r}, not a count of SMs")
        if self.sms and not self.sm_bytes_per_s < math.inf:
            raise InputError("sm_bytes_per_s: say how many bytes one SM sends per second, such as 16e9")
        _check_number("sm_bytes_per_s", self.sm_bytes_per_s, above=0.0, most=math.inf)
        _check_number("nvlink_share", self.nvlink_share, above=0.0, most=1.0)
        _check_number("network_share", self.network_share, above=0.0, most=1.0)
        if self.start_s is not None:
            _check_number("start_s", self.start_s, above=-math.ulp(0.0), most=1.0)

    def flows(self, nodes: Sequence[int]) -> Iterable[Flow]:
        """What the function gives.  InputError for a flow that leaves the group, or goes nowhere."""
        for one in self.function(nodes) if self.function is not None else [(0, 1, 1.0)]:
            try:
                src, dst, share = one
                fits = 0 <= src < len(nodes) and 0 <= dst < len(nodes) and src != dst and 0 <= share < 1e9
            except (TypeError, ValueError):
                fits = False
            if not fits:
                raise InputError(
                    f"flows: {one!r} is not (source, destination, bytes per byte) among {len(nodes)} members"
                )
            if share:
                yield src, dst, float(share)


def _check_number(name: str, value: object, *, above: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most:
        raise InputError(f"{name} is {value!r}, not a number above {max(0.0, above):g} and up to {most:g}")
