"""Writing a piece of a model: forward kernels in order, and the backward that follows from them.

A tape belongs to one rank of the tensor-parallel group and to one microbatch.  It holds *ops*: what a
primitive launches forward, what it keeps, its parameters, and what autograd launches for it; the backward
pass is the ops' launches in reverse order of the ops.

Note [What backward needs]
    A launch of backward, and a tensor kept for it, has a role: "input" (the gradient of the op's input),
    "weight" (of its parameters) or "both".  An op's input needs a gradient when something before it trains;
    what is needed for neither gradient is not launched and not kept.  So frozen layers cost no weight
    gradients, nothing runs behind the first trainable parameter, and a model that is not trained has no
    backward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Literal

from simcore.records import dataclass
from workloads.models.pieces import HOST_SYNC, KernelLaunch, ModelPiece, Origins, Parameter
from workloads.models.tensors import Tensor, compute

Recompute = Literal["none", "selective", "full", "ops"]
Role = Literal["both", "input", "weight"]


@dataclass(frozen=True)
class TapedLaunch:
    """A kernel under way to a list: ``label`` names it for others to wait for.

    Of forward: ``saved_inputs`` and ``saved_outputs`` are bytes of what it reads and writes that backward
    needs for ``role``.  Of backward: the number of the ``op`` whose backward it is or precedes, and the
    position in forward of the launch that it ``repeats``, if any.
    """

    kernel: KernelLaunch
    label: Hashable = None
    waits: tuple[Hashable, ...] = ()
    role: Role = "both"
    saved_inputs: int = 0
    saved_outputs: int = 0
    op: int = -1
    repeats: int = -1


@dataclass
class Op:
    """A primitive on a tape.

    In backward come ``backward``, then ``late``; ``late``, or else what follows, waits for ``after``.

    ``again``: selective recomputation runs its forward again before its backward.  ``reads``: branches of one
    input need its gradient only if something before all of them trains.
    """

    tape: OpTape
    again: bool = False
    forward: list[int] = field(default_factory=list)  # positions on the tape
    backward: list[TapedLaunch] = field(default_factory=list)
    after: list[Hashable] = field(default_factory=list)
    late: list[TapedLaunch] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    reads: int = -1  # position of the op whose input it reads; -1: what the op before hands on
    trains_tied: bool = False  # a weight that belongs to another piece

    def run(
        self,
        name: str,
        ins: Sequence[Tensor],
        outs: Sequence[Tensor],
        *,
        op_class: str = "",
        flops: int = 0,
        module: str = "",
        saved_inputs: int = 0,
        saved_outputs: int = 0,
        saved_for: Role = "both",
    ) -> None:
        """Launch a forward kernel that reads ``ins`` and writes ``outs`` once."""
        kernel = compute(name, ins, outs, op_class=op_class, flops=flops, module=module)
        self.launch(
            TapedLaunch(kernel, role=saved_for, saved_inputs=saved_inputs, saved_outputs=saved_outputs)
        )

    def launch(self, launch: TapedLaunch) -> None:
        """Append to the forward pass."""
        self.forward.append(self.tape.append(launch))

    def back(
        self,
        kernel: KernelLaunch,
        role: Role = "both",
        label: Hashable = None,
        waits: tuple[Hashable, ...] = (),
    ) -> None:
        """Append to what autograd launches for this op."""
        kernel = replace(kernel, weight_gradient=True) if role == "weight" else kernel
        self.backward.append(TapedLaunch(kernel, label, waits, role))

    def accumulate(self, shape: tuple[int, ...], dtype: str, main_grad_dtype: str, module: str) -> None:
        """Add a parameter's gradient to what earlier microbatches left in ``main_grad``."""
        main_grad = Tensor(shape, main_grad_dtype)
        kernel = compute("aten::add_.Tensor", [main_grad, Tensor(shape, dtype)], [main_grad], module=module)
        self.late.append(TapedLaunch(replace(kernel, weight_gradient=True, accumulates=True), role="weight"))

    def behind_weight(self, kernel: KernelLaunch) -> None:
        """Append what a parameter's gradient goes through once it is there."""
        self.late.append(TapedLaunch(replace(kernel, weight_gradient=True), role="weight"))

    def parameter(self, name: str, *shape: int, group: str = "dp", tp_duplicated: bool = False) -> None:
        """Declare a parameter of the op."""
        self.parameters.append(Parameter(name, shape, group, tp_duplicated, trainable=self.tape.trains(name)))

    @property
    def trains(self) -> bool:
        """Whether any of its parameters trains."""
        return self.trains_tied or any(parameter.trainable for parameter in self.parameters)


class OpTape:
    """Collects one piece; ``trains`` tells by its name whether a parameter trains."""

    def __init__(self, trains: Callable[[str], bool] = lambda _: True) -> None:
        self.trains = trains
        self.forward: list[TapedLaunch] = []
        self.ops: list[Op] = []
        self.first: list[KernelLaunch] = []
        self._next_label = 0
        self._pending: list[Hashable] = []

    def op(self, *, again: bool = False) -> Op:
        """The next primitive."""
        return self.add(Op(self, again))

    def add(self, op: Op) -> Op:
        """Put a primitive next that may have launched something already."""
        self.ops.append(op)
        return op

    def new_label(self) -> int:
        """A label that nothing else has."""
        self._next_label += 1
        return self._next_label

    def append(self, launch: TapedLaunch) -> int:
        """Append to the forward pass; it waits for what the next launch was told to wait for, too."""
        waits = (*launch.waits, *(label for label in self._pending if label != launch.label))
        self._pending.clear()
        self.forward.append(replace(launch, waits=waits))
        return len(self.forward) - 1

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

    def needs_grad(self, input_grad: bool) -> list[tuple[bool, bool]]:
        """Of each op: whether the gradients of its input and of its parameters are wanted."""
        found: list[tuple[bool, bool]] = []
        for op in self.ops:
            mine = found[op.reads][0] if op.reads >= 0 else input_grad
            found.append((mine, op.trains))
            input_grad = input_grad or op.trains
        return found

    def piece(
        self, name: str, output: Tensor, *, input_bytes: int, recompute: Recompute = "none",
        held: Mapping[int, int] | None = None, holds_unread: bool = False, early_stop: bool = False,
        input_grad: bool = True,
    ) -> ModelPiece:  # fmt: skip
        """The finished piece.

        ``recompute`` "full" and "ops" run the forward again before its backward, "selective" the ops that are
        marked.  With ``early_stop``, or where outputs are ``held`` (bytes by position: these do not run
        again), only what comes up to the last tensor that backward asks for; what is held behind it is kept
        where nobody looks whether it is read (``holds_unread``: without a compiler).  ``input_grad``:
        something before this piece trains.
        """
        grads = self.needs_grad(input_grad)
        forward = self._with_saved(grads)
        backward = self._backward(grads, selective=recompute == "selective")
        saved = sum(launch.kernel.saved_bytes for launch in forward)
        if recompute == "selective":
            saved -= sum(
                self._brought_back(op, forward, begins=not before.again)
                for before, op in pairwise([Op(self), *(op for op in self.ops if op.forward)])
                if op.again
            )
        if backward and recompute in ("full", "ops"):
            stop = _last_needed(forward) if early_stop or held is not None else len(forward)
            held = {k: size for k, size in (held or {}).items() if k < stop or holds_unread}
            last = len(self.ops)
            again = [_again(launch, k, last) for k, launch in enumerate(forward[:stop]) if k not in held]
            backward = again + backward
            saved = input_bytes + sum(held.values())
        return ModelPiece(
            name=name,
            forward=resolved(forward),
            first_forward=tuple(self.first),
            backward=resolved(backward),
            parameters=tuple(parameter for op in self.ops for parameter in op.parameters),
            saved_bytes=saved,
            output_bytes=output.num_bytes,
            output_shape=output.shape,
            origins=self._origins(
                forward, backward, input_bytes, recompute if backward else "none", held or {}
            ),
        )

    def _origins(
        self, forward: Sequence[TapedLaunch], backward: Sequence[TapedLaunch], input_bytes: int,
        recompute: Recompute, held: Mapping[int, int],
    ) -> Origins:  # fmt: skip
        """What autograd keeps of each launch, and for how long."""
        owner = [0] * len(forward)
        for number, op in enumerate(self.ops):
            for k in op.forward:
                owner[k] = number
        needed = [(0, 0)] * len(forward)
        for k, launch in enumerate(forward):
            if launch.kernel.saved_bytes:
                needed[k] = launch.saved_inputs, launch.saved_outputs
        kept = list(needed)
        if recompute == "selective":
            for before, op in pairwise([Op(self), *(op for op in self.ops if op.forward)]):
                for k in op.forward if op.again else ():
                    begins = k == op.forward[0] and not before.again
                    kept[k] = (needed[k][0] if begins else 0, 0)
        elif recompute in ("full", "ops"):
            kept = [(0, held.get(k, 0)) for k in range(len(forward))]
        return Origins(
            forward=tuple(owner),
            backward=tuple((launch.op, launch.repeats) for launch in backward),
            needed=tuple(needed),
            kept=tuple(kept),
            input_bytes=input_bytes,
            keeps_input=recompute in ("full", "ops"),
        )

    def _with_saved(self, grads: Sequence[tuple[bool, bool]]) -> list[TapedLaunch]:
        """The forward pass with what each launch leaves for the backward that is wanted."""
        out = list(self.forward)
        for op, wanted in zip(self.ops, grads, strict=True):
            for k in op.forward:
                num_bytes = out[k].saved_inputs + out[k].saved_outputs
                if num_bytes and _is_wanted(out[k].role, wanted):
                    out[k] = replace(out[k], kernel=replace(out[k].kernel, saved_bytes=num_bytes))
        return out

    def _brought_back(self, op: Op, forward: Sequence[TapedLaunch], *, begins: bool) -> int:
        """Bytes that an op which runs again need not keep.

        All, but where it ``begins`` a run of such ops the inputs of its first launch.
        """
        kept = sum(forward[k].kernel.saved_bytes for k in op.forward)
        first = forward[op.forward[0]]
        return kept - (first.saved_inputs if begins and first.kernel.saved_bytes else 0)

    def _backward(self, grads: Sequence[tuple[bool, bool]], *, selective: bool) -> list[TapedLaunch]:
        """The backward pass; what comes next waits for what an op leaves under way."""
        out: list[TapedLaunch] = []
        under_way: list[Hashable] = []
        again = self._again_before(grads) if selective else {}
        for number, (op, wanted) in reversed(list(enumerate(zip(self.ops, grads, strict=True)))):
            early = [launch for launch in op.backward if _is_wanted(launch.role, wanted)]
            late = [launch for launch in op.late if _is_wanted(launch.role, wanted)]
            early = [*(_again(self.forward[k], k, number) for k in again.get(number, ())), *early]
            for launches, leaves in ((early, op.after), (late, [])):
                if launches and under_way:
                    launches[0] = replace(launches[0], waits=(*launches[0].waits, *under_way))
                    under_way = []
                out += [replace(launch, op=number) for launch in launches]
                under_way += leaves
        return out

    def _again_before(self, grads: Sequence[tuple[bool, bool]]) -> dict[int, list[int]]:
        """Forward launches that run again before the backward of an op, by its number.

        Ops in a row that run again do so together, in their order, before the backward of the last: each
        reads what the one before it makes.
        """
        found: dict[int, list[int]] = {}
        last = -1  # of the row under way
        for number, (op, wanted) in enumerate(zip(self.ops, grads, strict=True)):
            if op.again and any(_is_wanted(launch.role, wanted) for launch in op.backward):
                found[number] = [*found.pop(last, ()), *op.forward]
                last = number
            elif op.forward:
                last = -1
        return found


def _is_wanted(role: Role, wanted: tuple[bool, bool]) -> bool:
    for_input, for_weight = wanted
    return (for_input and role != "weight") or (for_weight and role != "input")


def _again(launch: TapedLaunch, position: int, op: int) -> TapedLaunch:
    """The forward launch at ``position`` within backward, before that of ``op``."""
    return TapedLaunch(
        replace(launch.kernel, recomputed=True, saved_bytes=0),
        ("again", launch.label) if launch.label is not None else None,
        tuple(("again", label) for label in launch.waits),
        op=op,
        repeats=position,
    )


def _last_needed(forward: Sequence[TapedLaunch]) -> int:
    """How many launches run again until backward has all it asks for; inputs are there before their op."""
    for k in reversed(range(len(forward))):
        if forward[k].kernel.saved_bytes:
            return k + 1 if forward[k].saved_outputs else k
    return 0


def resolved(launches: Sequence[TapedLaunch]) -> tuple[KernelLaunch, ...]:
    """Kernels of a list with their waits as positions.  A wait for a label that is not there is dropped.

    A collective on a stream of its own waits at least for what the compute stream was given before it, as
    PyTorch's process groups do.
    """
    position = {launch.label: k for k, launch in enumerate(launches) if launch.label is not None}
    out, latest = [], -1
    for k, launch in enumerate(launches):
        waits = {position[label] for label in launch.waits if label in position}
        if launch.kernel.stream == "compute":
            latest = k if launch.kernel.name != HOST_SYNC else latest
        elif latest >= 0 and not waits:
            waits.add(latest)
        out.append(replace(launch.kernel, waits_for=tuple(sorted(waits))) if waits else launch.kernel)
    return tuple(out)
