"""Writing a piece of a model: forward kernels in order, and the backward that follows from them.

Each primitive appends its forward kernels and, as one group, what autograd launches for it; the backward pass
is the groups in reverse order.  Tensors are shapes and dtypes.  A tape belongs to one rank of the
tensor-parallel group and to one microbatch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from workloads.models.pieces import Kernel, Parameter, Piece
from workloads.models.tensors import Tensor, compute


@dataclass(frozen=True)
class Launch:
    """A kernel under way to a list: ``label`` names it for others to wait for."""

    kernel: Kernel
    label: Hashable = None
    waits: tuple[Hashable, ...] = ()


@dataclass
class Group:
    """What autograd launches for one primitive, in order; what follows it waits for ``after``."""

    launches: list[Launch] = field(default_factory=list)
    recompute: list[Launch] = field(default_factory=list)
    after: list[Hashable] = field(default_factory=list)


class Tape:
    """Collects one piece.  ``saved_bytes`` counts what forward keeps for backward."""

    def __init__(self) -> None:
        self.forward: list[Launch] = []
        self.groups: list[Group] = []
        self.first: list[Kernel] = []
        self.parameters: list[Parameter] = []
        self.saved_bytes = 0
        self.peak_bytes = 0
        self._next_label = 0
        self._pending: list[Hashable] = []

    def new_label(self) -> int:
        """A label that nothing else has."""
        self._next_label += 1
        return self._next_label

    def run(
        self,
        name: str,
        ins: Sequence[Tensor],
        outs: Sequence[Tensor],
        *,
        op_class: str = "",
        flops: int = 0,
        module: str = "",
        saved: int = 0,
        waits: tuple[Hashable, ...] = (),
    ) -> None:
        """Launch a forward kernel; ``saved`` bytes of what it touches stay for backward."""
        kernel = compute(name, ins, outs, op_class=op_class, flops=flops, module=module)
        self.launch(Launch(replace(kernel, saved_bytes=saved), None, waits))
        self.saved_bytes += saved
        self.peak_bytes = max(self.peak_bytes, sum(t.num_bytes for t in (*ins, *outs)))

    def launch(self, launch: Launch) -> None:
        """Append to the forward pass; it waits for what the next launch was told to wait for, too."""
        waits = (*launch.waits, *(label for label in self._pending if label != launch.label))
        self._pending.clear()
        self.forward.append(replace(launch, waits=waits))

    def next_waits_for(self, label: Hashable) -> None:
        """The forward launch that comes next waits for ``label``."""
        self._pending.append(label)

    def last_label(self) -> Hashable | None:
        """A label of the latest forward launch; None at the start."""
        if not self.forward:
            return None
        last = self.forward[-1]
        if last.label is None:
            last = self.forward[-1] = replace(last, label=self.new_label())
        return last.label

    def group(self) -> Group:
        """The backward of the primitive that is being written."""
        made = Group()
        self.groups.append(made)
        return made

    def parameter(self, name: str, *shape: int, group: str = "dp", tp_duplicated: bool = False) -> None:
        """Declare a parameter of the piece."""
        self.parameters.append(Parameter(name, shape, group, tp_duplicated))

    def piece(self, name: str, output: Tensor, *, recompute_all: bool, input_bytes: int) -> Piece:
        """The finished piece; ``recompute_all`` runs the whole forward again before its backward."""
        backward = _in_reverse(self.groups, with_recompute=not recompute_all)
        saved = self.saved_bytes
        if recompute_all:
            again = [
                Launch(
                    replace(launch.kernel, recomputed=True, saved_bytes=0),
                    ("again", launch.label) if launch.label is not None else None,
                    tuple(("again", label) for label in launch.waits),
                )
                for launch in self.forward
            ]
            backward = again + backward
            saved = input_bytes
        return Piece(
            name=name,
            forward=resolved(self.forward),
            first_forward=tuple(self.first),
            backward=resolved(backward),
            parameters=tuple(self.parameters),
            saved_bytes=saved,
            peak_bytes=self.peak_bytes + (self.saved_bytes if recompute_all else 0),
            output_bytes=output.num_bytes,
            output_shape=output.shape,
        )


def _in_reverse(groups: Sequence[Group], *, with_recompute: bool) -> list[Launch]:
    """The backward pass; the first launch after a group waits for what the group leaves under way."""
    out: list[Launch] = []
    open_labels: list[Hashable] = []
    for group in reversed(groups):
        launches = [*(group.recompute if with_recompute else ()), *group.launches]
        if launches and open_labels:
            launches[0] = replace(launches[0], waits=(*launches[0].waits, *open_labels))
            open_labels = []
        out += launches
        open_labels += group.after
    return out


def resolved(launches: Sequence[Launch]) -> tuple[Kernel, ...]:
    """Kernels of a list with their waits as positions.  A wait for a label that is not there is dropped."""
    position = {launch.label: k for k, launch in enumerate(launches) if launch.label is not None}
    return tuple(
        replace(
            launch.kernel,
            waits_for=tuple(sorted(position[label] for label in launch.waits if label in position)),
        )
        for launch in launches
    )
