"""Axes of models that are lists of blocks: what each class of layers does on two levels, where tables lie.

See Note [Two levels] of ``workloads/parallel/strategy.py`` and Note [Placements] of ``placement.py`` there.
"""

from __future__ import annotations

from itertools import product
from typing import Final

from simcore.planning.ground import Ground, SearchAxis, Settings
from workloads.models.pieces import LayerClass
from workloads.parallel.strategy import WORDS, levels_of

_SECTION: Final = "parallel.strategy"
#: A strategy left to the job, as a setting.
_OWN: Final = '""'
#: Ways to place tables; the second half needs groups of ranks inside of which rows are split.
_WAYS: Final = ("auto", "table_wise", "column_wise", "row_wise")
_WAYS_OF_GROUPS: Final = ("table_row_wise", "grid_shard")


def strategy_key(layers: str) -> str:
    """The setting that says a class's words."""
    return f"{_SECTION}.{layers}"


def class_words(ground: Ground, layers: LayerClass) -> list[str]:
    """All that a class may do inside groups and between them; what the job does by itself is left to it."""
    if layers not in ground.classes:
        return []
    base = ground.base
    own = getattr(base.parallel.strategy, layers)
    by_itself = "ddp" if not own and layers != "embedding" and base.training.sharding == "ddp" else ""
    local = base.parallel.strategy.local or ground.domain
    levels = 1 if local >= ground.num_gpus or local == 1 else 2
    found = []
    for words in product(WORDS[layers], repeat=levels):
        said = words[0] if len({*words}) == 1 else ".".join(words)
        found.append(_OWN if said == by_itself else said)
    return found


def _words_axis(layers: LayerClass) -> SearchAxis:
    key = strategy_key(layers)

    def offers(ground: Ground, _: Settings) -> list[Settings]:
        return [{key: said} for said in class_words(ground, layers)] or [{}]

    return SearchAxis(layers, (key,), offers, lists=True)


def _placements(ground: Ground, chosen: Settings) -> list[Settings]:
    """Ways to place tables that are dealt out, and the job's own."""
    own = ground.base.parallel.strategy
    said = chosen.get(strategy_key("embedding"), own.embedding) or "mp"
    if "embedding" not in ground.classes or "mp" not in levels_of("embedding", said) or own.plan:
        return [{}]
    groups = 1 < (own.local or ground.domain) < ground.num_gpus
    ways = dict.fromkeys((own.tables, *_WAYS, *(_WAYS_OF_GROUPS if groups else ())))
    return [{strategy_key("tables"): way} for way in ways]


#: Axes of lists of blocks.  What every rank computes comes first: candidates in a row share it.
CLASS_AXES: Final = (
    *(_words_axis(layers) for layers in ("dense", "transformer", "expert", "embedding")),
    SearchAxis("tables", (strategy_key("tables"),), _placements, lists=True),
)
