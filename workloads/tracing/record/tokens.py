"""How many tokens a traced step trains on, as far as its lookups of embeddings show it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

from workloads.tracing.record.assemble import RankTrace
from workloads.tracing.record.recording import IN_SHAPES, NAME, PHASE
from workloads.tracing.record.templates import CutTemplate

_LOOKUPS = ("aten::embedding", "aten::embedding.default")
_ATTENDS = ("attention", "softmax")


def tokens_of_step(trace: RankTrace, dims: Mapping[str, int]) -> int:
    """Tokens over all ranks; 0: not known.  ``trace``: of rank 0; ``dims``: sizes of the axes by name.

    A microbatch's tokens, (sequences, length), are looked up in the table of most rows, last of all in its
    forward pass (evaluations come earlier); ranks along dp and cp have tokens of their own.  A step without
    attention is not of tokens.
    """
    program = trace.program
    names = [str(name) for name in program.column(NAME)]
    if not any(word in name for name in names for word in _ATTENDS):
        return 0
    lookups = {digest: list(_lookups(template)) for digest, template in program.templates.items()}
    largest = max((rows for found in lookups.values() for rows, _ in found), default=0)
    pending: dict[tuple[int, int], int] = {}
    tokens = 0
    for entry in program.skeleton:
        part = (entry.microbatch, entry.chunk)
        for rows, count in lookups[entry.template]:
            if rows == largest:
                pending[part] = count
        if program.templates[entry.template].name == "bwd":
            tokens += pending.pop(part, 0)
    return tokens * dims.get("dp", 1) * dims.get("cp", 1)


def _lookups(template: CutTemplate) -> Iterator[tuple[int, int]]:
    """Rows of the table and tokens of each forward lookup of a batch of sequences."""
    for row in template.rows:
        if row[NAME] in _LOOKUPS and row[PHASE] == "fwd":
            table, tokens = json.loads(str(row[IN_SHAPES]))[:2]
            if len(tokens) > 1:
                yield int(table[0]), math.prod(tokens)
