"""What edits of parallelism know of a traced Megatron GPT program: stages, segments, parameters, groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.graph import Graph, OpKind, Program
from simcore.graph.graph import MemoryProfile
from simcore.graph.groups import ProcessGroup
from simcore.graph.kinds import P2P, is_p2p


@dataclass(frozen=True)
class Sizes:
    """Sizes of a GPT and its parallelism, as the graph's workload describes them."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    seq: int
    vocab: int
    tp: int
    pp: int
    dp: int
    micro_batch: int
    microbatches: int

    def layer_parameters(self) -> int:
        """Parameters of a layer on one tensor-parallel rank."""
        h, tp = self.hidden, self.tp
        attention = 3 * h * (h + 1) // tp + h * h // tp + h
        return attention + self.ffn * (h + 1) // tp + self.ffn * h // tp + h + 4 * h

    def parameters(self, layers: int, *, first: bool, last: bool) -> int:
        """Parameters of a pipeline stage on one rank; the last keeps a copy of the tied embedding."""
        total = layers * self.layer_parameters()
        embedding = self.vocab * self.hidden // self.tp
        total += embedding + self.seq * self.hidden if first else 0
        total += 2 * self.hidden + (0 if first else embedding) if last else 0
        return total


def sizes_of(graph: Graph, what: str) -> Sizes:
    """Sizes of a Megatron GPT program.  InputError for any other: nothing is known of its structure."""
    workload = graph.workload
    model, dims = workload.model, workload.dims
    known = ("layers", "hidden", "ffn_hidden", "heads", "seq", "vocab")
    if workload.framework != "megatron-core" or any(not isinstance(model.get(key), int) for key in known):
        raise InputError(
            f"{what} needs a traced Megatron GPT program; the structure of {workload.name!r}"
            f" ({workload.framework or 'unknown framework'}) is not known"
        )
    if "pp.bwd" in graph.groups:
        raise InputError(f"the program is interleaved already; give {what} before the schedule")
    unknown = set(graph.groups) - {"tp", "dp", "pp", "mp", "embd", "dist_opt"}
    if unknown:
        raise InputError(f"{what}: process groups {', '.join(sorted(unknown))} are not understood")
    layers, hidden, ffn, heads, seq, vocab = (int(model[key]) for key in known)
    return Sizes(
        layers, hidden, ffn, heads, seq, vocab, dims.get("tp", 1), dims.get("pp", 1), dims.get("dp", 1),
        workload.micro_batch_size, workload.num_microbatches,
    )  # fmt: skip


def groups_for(graph: Graph, tp: int, dp: int, pp: int) -> dict[str, ProcessGroup]:
    """Megatron's process groups (order tp, dp, pp) of another layout; those that the graph knows, and dp."""
    world = tp * dp * pp
    dims: dict[str, tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]] = {
        "tp": (((tp, 1),), ((dp * pp, tp),)),
        "dp": (((dp, tp),), ((tp, 1), (pp, tp * dp))),
        "pp": (((pp, tp * dp),), ((tp * dp, 1),)),
        "embd": (((2, (pp - 1) * tp * dp),), ((tp * dp, 1),)) if pp > 1 else (((1, 1),), ((world, 1),)),
        "dist_opt": (((world, 1),), ((1, 1),)),
        "mp": (((tp, 1), (pp, tp * dp)), ((dp, tp),)) if dp > 1 else (((tp * pp, 1),), ((1, 1),)),
    }
    names = (set(graph.groups) | {"dp"}) if dp > 1 else set(graph.groups) - {"dp"}
    return {name: ProcessGroup(name, *dims[name]) for name in sorted(names)}


@dataclass(frozen=True)
class Segments:
    """Op rows of a template by layer: before the first layer's, each layer's (in order of play), after."""

    head: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]


def segments(graph: Graph, template: int) -> Segments:
    """Cut a template at its layers; ops outside layers in the middle belong to the layer before."""
    rows = list(graph.template_rows(template))
    number = [int(graph.ops.layer[row]) for row in rows]
    inside = [at for at, layer in enumerate(number) if layer >= 0]
    if not inside:
        return Segments(tuple(rows), (), ())
    first, last = inside[0], inside[-1]
    found: list[list[int]] = []
    current = -1
    for at in range(first, last + 1):
        if number[at] >= 0 and number[at] != current:
            found.append([])
            current = number[at]
        found[-1].append(rows[at])
    return Segments(tuple(rows[:first]), tuple(map(tuple, found)), tuple(rows[last + 1 :]))


@dataclass(frozen=True)
class StageParts:
    """What a program plays, sorted: before the first forward, forward, backward, the last backward, after."""

    program: Program
    begin: tuple[int, ...]
    forward: int
    backward: int
    last_backward: int
    finish: tuple[tuple[str, tuple[int, ...]], ...]


def stage_parts(graph: Graph, program: Program) -> StageParts:
    """The parts of a 1F1B program.  InputError for model chunks."""
    if int(program.chunk.max(initial=0)) > 0:
        raise InputError("the program is interleaved already; edit one that is not")
    names = graph.template_names
    played = program.template.tolist()
    forward = [t for t in played if names[t] == "fwd"]
    backward = [at for at, t in enumerate(played) if names[t] == "bwd"]
    start = next(at for at, t in enumerate(played) if names[t] == "fwd")
    finish = []
    for at in range(backward[-1] + 1, len(played)):
        rows = tuple(row for row in graph.template_rows(played[at]) if not _exchanges(graph, row))
        if rows:
            finish.append(("grad_sync" if names[played[at]] == "exchange" else names[played[at]], rows))
    begin = tuple(
        row
        for t in played[:start]
        for row in graph.template_rows(t)
        if graph.ops.kind[row] == OpKind.COMPUTE and names[t] == "begin"
    )
    return StageParts(
        program, begin, Counter(forward).most_common(1)[0][0],
        Counter(played[at] for at in backward).most_common(1)[0][0], played[backward[-1]], tuple(finish),
    )  # fmt: skip


def _exchanges(graph: Graph, row: int) -> bool:
    """Whether an op belongs to a pipeline exchange: sends, receives and the host's wait for them."""
    kind = int(graph.ops.kind[row])
    return kind in P2P or (kind == OpKind.SYNC and graph.ops.name[row] == "cudaDeviceSynchronize")


def exchange_rows(graph: Graph) -> dict[Any, int]:
    """One row of each part of an exchange: (kind, phase) of sends and receives, and "sync"."""
    found: dict[Any, int] = {}
    for row in np.flatnonzero(is_p2p(graph.ops.kind)).tolist():
        found.setdefault((OpKind(int(graph.ops.kind[row])), graph.ops.phase[row]), row)
    for row in np.flatnonzero(graph.ops.kind == OpKind.SYNC).tolist():
        if graph.ops.name[row] == "cudaDeviceSynchronize":
            found.setdefault("sync", row)
    return found


def counter_row(graph: Graph) -> int | None:
    """The kernel between forwards that counts tokens, None when there is none."""
    ops = graph.ops
    for template, name in enumerate(graph.template_names):
        if name == "exchange":
            for row in graph.template_rows(template):
                if ops.kind[row] == OpKind.COMPUTE and ops.phase[row] == "fwd":
                    return row
    return None


def like_old(old: int, new: int) -> npt.NDArray[np.int64]:
    """Which of ``old`` places on an axis each of ``new`` is like: the ends are like the ends."""
    source = np.minimum(np.arange(new), min(old - 1, max(1, old - 2)))
    source[-1] = old - 1 if new > 1 else 0
    return source


def scaled_memory(memory: MemoryProfile, ratio: float, activations: float) -> MemoryProfile:
    """What a rank holds with ``ratio`` times the parameters, and ``activations`` bytes beside them."""
    return MemoryProfile(
        parameters=round(memory.parameters * ratio),
        gradients=round(memory.gradients * ratio),
        optimizer_states=round(memory.optimizer_states * ratio),
        activations_peak=round(activations),
    )
