"""What sequences of tokens a traced step trains on, as far as its lookups of embeddings show it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from simcore.graph.ops import OpKind
from simcore.records import dataclass
from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.recording import (
    COLUMNS,
    DTYPE,
    GROUP,
    IN_SHAPES,
    KIND,
    MODULE,
    NAME,
    OP_CLASS,
    OUT_SHAPES,
    PHASE,
)
from workloads.tracing.record.templates import CutProgram, CutTemplate

_LOOKUPS = ("aten::embedding", "aten::embedding.default")
_ATTENDS = ("attention", "softmax")
_COLLECTIVE = COLUMNS.index("collective")


@dataclass(frozen=True)
class TokensOfStep:
    """``total`` over all ranks (0: not known), in microbatches of ``sequences`` of ``length``: where they
    differ, on a rank or among ranks, or are packed into one, a microbatch counts as one sequence of the most
    tokens that one has.
    """

    total: int = 0
    sequences: int = 1
    length: int = 0


def tokens_of_step(traces: Sequence[tuple[int, RankTrace]], dims: Mapping[str, int]) -> TokensOfStep:
    """``traces``: of the ranks that differ in the stage of rank 0, rank 0's first, each with how many do the
    same; ``dims``: sizes of the axes by name.

    A microbatch's tokens, (sequences, length), are looked up in the table of most rows, last of all in its
    forward pass (evaluations come earlier); ranks along dp have sequences of their own, those along cp parts
    of them, those along tp the same.  Lookups of one dimension, which may be positions, count where there
    are no others (packed sequences).  Attention must be over as many (a picture's label is no token, nor are
    a detector's queries that begin as labels); a step without it is not of tokens.
    """
    each = [microbatches_of(one) for _, one in traces]
    cp, many = dims.get("cp", 1), sum(number for number, _ in traces)
    looked_up = sum(number * sum(map(math.prod, own)) for (number, _), own in zip(traces, each, strict=True))
    total = looked_up * dims.get("dp", 1) * cp // many
    microbatches = [shape for own in each for shape in own]
    if len(set(microbatches)) != 1 or len(microbatches[0]) == 1:
        return TokensOfStep(total, 1, max(map(math.prod, microbatches), default=0) * cp)
    *sequences, length = microbatches[0]
    return TokensOfStep(total, math.prod(sequences), length * cp)


def microbatches_of(trace: RankTrace) -> list[tuple[int, ...]]:
    """Shapes of what each microbatch of a rank looks up: (sequences, length), or (tokens,) of packed ones."""
    program = trace.program
    attended = _attended(program)
    if not attended:
        return []
    share = _sharing(trace)
    lookups = {
        digest: [
            (rows, own) for rows, shape in _lookups(template) for own in own_tokens(shape, attended, share)
        ]
        for digest, template in program.templates.items()
    }
    found = [one for each in lookups.values() for one in each]
    dims_of_tokens = 2 if any(len(shape) > 1 for _, shape in found) else 1
    largest = max((rows for rows, shape in found if len(shape) >= dims_of_tokens), default=0)
    pending: dict[tuple[int, int], tuple[int, ...]] = {}
    microbatches: list[tuple[int, ...]] = []
    for entry in program.skeleton:
        part = (entry.microbatch, entry.chunk)
        for rows, shape in lookups[entry.template]:
            if rows == largest and len(shape) >= dims_of_tokens:
                pending[part] = shape
        if program.templates[entry.template].name == "bwd" and part in pending:
            microbatches.append(pending.pop(part))
    return microbatches


def _attended(program: CutProgram) -> set[tuple[int, ...]]:
    """Shapes of what attention reads first: queries, or scores; without any, of what losses of words read."""
    found: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}
    for template in program.templates.values():
        for row in template.rows:
            if any(word in str(row[column]) for word in _ATTENDS for column in (NAME, OP_CLASS)):
                is_loss = "log_softmax" in str(row[NAME])
                found[is_loss].add(tuple(json.loads(str(row[IN_SHAPES]) or "[[]]")[0]))
    return found[False] or found[True]


def _sharing(trace: RankTrace) -> int:
    """Ranks that exchange parts of sequences for heads, by all-to-alls before and behind attention.

    Those that pass keys on do so less often than they attend.
    """
    forward = [row for one in trace.program.templates.values() for row in one.rows if row[PHASE] == "fwd"]
    groups = [
        str(row[GROUP])
        for row in forward
        if row[_COLLECTIVE] == "all_to_all" and "att" in str(row[MODULE]).lower()
    ]
    attends = sum("attention" in str(row[OP_CLASS]) for row in forward)
    return max((len(trace.groups[one]) for one in groups), default=1) if len(groups) > attends else 1


def own_tokens(
    looked_up: tuple[int, ...], attended: set[tuple[int, ...]], share: int
) -> Iterator[tuple[int, ...]]:
    """What of ``looked_up`` is this rank's alone: nothing where attention is not over as many tokens.

    ``share`` ranks exchange sequences: attention is over those of all, or each has looked up all.  Its shapes
    are (batch, heads, length, width), or length before heads; packed sequences stand first, of scores last
    but one; of others all that is looked up in two dimensions counts.
    """
    count, times = math.prod(looked_up), set[float]()
    for shape in attended:
        if len(shape) == 4:
            times |= {shape[0] * length / count for length in shape[1:3]}
        elif shape and shape[0] % count == 0:
            times.add(min(float(share), shape[0] / count))
        elif len(looked_up) > 1 or not shape or count in shape[-2:-1]:
            times.add(1.0)
    fitting = max((one for one in times if one.is_integer() and 1 <= one <= share), default=0)
    if fitting:
        *before, length = looked_up
        yield (*before, length // share if fitting < share else length)


def copied_from_host(trace: RankTrace) -> dict[tuple[str, int], frozenset[tuple[int, ...]]]:
    """Shapes of what comes from the host in the forward passes of a step, by type and number of dimensions;
    flat floats are shards of offloaded parameters.
    """
    found: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    for template in trace.program.templates.values():
        for row in template.rows:
            if row[KIND] == OpKind.MEMCPY and row[PHASE] == "fwd" and not row[IN_SHAPES]:
                for shape in map(tuple, json.loads(str(row[OUT_SHAPES]) or "[]")):
                    flat = len(shape) < 2 and str(row[DTYPE]).startswith(("float", "bfloat"))
                    if math.prod(shape) > 1 and not flat:
                        found.setdefault((str(row[DTYPE]), len(shape)), set()).add(shape)
    return {kind: frozenset(shapes) for kind, shapes in found.items()}


def _lookups(template: CutTemplate) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Rows of the table and the shape of what is looked up in each forward lookup."""
    for row in template.rows:
        if row[NAME] in _LOOKUPS and row[PHASE] == "fwd":
            table, tokens = json.loads(str(row[IN_SHAPES]))[:2]
            yield int(table[0]), tuple(map(int, tokens))
