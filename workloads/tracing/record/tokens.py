"""How many tokens a traced step trains on, as far as its lookups of embeddings show it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.recording import IN_SHAPES, NAME, OP_CLASS, PHASE
from workloads.tracing.record.templates import CutTemplate

_LOOKUPS = ("aten::embedding", "aten::embedding.default")
_ATTENDS = ("attention", "softmax")


def tokens_of_step(trace: RankTrace, dims: Mapping[str, int]) -> int:
    """Tokens over all ranks; 0: not known.  ``trace``: of rank 0; ``dims``: sizes of the axes by name.

    A microbatch's tokens, (sequences, length), are looked up in the table of most rows, last of all in its
    forward pass (evaluations come earlier); ranks along dp and cp have tokens of their own.  Lookups of one
    dimension, which may be positions, count where there are no others (packed sequences).  A step without
    attention is not of tokens.
    """
    program = trace.program
    said = {str(one) for column in (NAME, OP_CLASS) for one in program.column(column)}
    if not any(word in one for one in said for word in _ATTENDS):
        return 0
    lookups = {digest: list(_lookups(template)) for digest, template in program.templates.items()}
    found = [one for each in lookups.values() for one in each]
    dims_of_tokens = 2 if any(len(shape) > 1 for _, shape in found) else 1
    largest = max((rows for rows, shape in found if len(shape) >= dims_of_tokens), default=0)
    pending: dict[tuple[int, int], int] = {}
    tokens = 0
    for entry in program.skeleton:
        part = (entry.microbatch, entry.chunk)
        for rows, shape in lookups[entry.template]:
            if rows == largest and len(shape) >= dims_of_tokens:
                pending[part] = math.prod(shape)
        if program.templates[entry.template].name == "bwd":
            tokens += pending.pop(part, 0)
    return tokens * dims.get("dp", 1) * dims.get("cp", 1)


def _lookups(template: CutTemplate) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Rows of the table and the shape of what is looked up in each forward lookup."""
    for row in template.rows:
        if row[NAME] in _LOOKUPS and row[PHASE] == "fwd":
            table, tokens = json.loads(str(row[IN_SHAPES]))[:2]
            yield int(table[0]), tuple(map(int, tokens))
