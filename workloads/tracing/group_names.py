"""Short symbols of process groups: the axis they span, equal on every rank."""

from __future__ import annotations

#: Megatron-core's group descriptions (parallel_state.py, 0.16.1) -> symbol.
_SYMBOLS = {
    "default_pg": "world",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "DATA_PARALLEL_GROUP": "dp_without_cp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "MODEL_PARALLEL_GROUP": "mp",
    "EMBEDDING_GROUP": "embd",
    "POSITION_EMBEDDING_GROUP": "pos_embd",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp_partial",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "dist_opt",
}


def group_symbol(description: str) -> str:
    """Symbol of a group; an unknown description gives itself in lower case, without ``_GROUP``."""
    known = _SYMBOLS.get(description)
    return known or description.lower().removesuffix("_group") or "world"
