"""Fine axes: what the best strategies are moved along, and a space only where it is asked for.

What a framework has of each its preset says (``[supports]`` of ``workloads/jobs/presets``); where it says
nothing, the axis offers what the job has.
"""

from __future__ import annotations

from typing import Final

from simcore.planning.ground import PLACEMENT, Ground, Settings, number
from workloads.models.offload import OF_EXPERTS
from workloads.parallel.check import recomputable
from workloads.parallel.spec import FSDP

#: Numbers of recomputed layers that are tried, uneven splits, what can be left out, and sizes of buckets
#: (-1: by the ranks).
_LAYER_STEPS: Final = 8
_UNEVEN: Final = 6
_ON_OR_OFF: Final = ("true", "false")
_BUCKETS: Final = (-1, 10_000_000, 160_000_000, 640_000_000)


def tensor_overlap(ground: Ground, chosen: Settings) -> list[Settings]:
    """Collectives of tensor parallelism beside its products, or behind them."""
    if number(ground, chosen, "tp") == 1:
        return [{}]
    can = _overlaps(ground, "tp_overlap") or "tp" in ground.allows("overlaps")
    return [{"training.tp_overlap": value} for value in _ON_OR_OFF[not can :]]


def gradient_overlap(ground: Ground, chosen: Settings) -> list[Settings]:
    """Reductions and gathers of data parallelism beside passes, or behind them; FSDP's are always beside."""
    training = ground.base.training
    if chosen.get("training.sharding", training.sharding) in FSDP:
        return [{}]
    has = {key: _overlaps(ground, key) for key in ("overlap_grad_reduce", "overlap_param_gather")}
    ways = (has, dict.fromkeys(has, False)) if any(has.values()) else (has,)
    return [{f"training.{key}": str(on).lower() for key, on in way.items()} for way in ways]


def _overlaps(ground: Ground, key: str) -> bool:
    """Whether the job overlaps so, or the framework by default: jobs completed without a degree do not."""
    return bool(getattr(ground.base.training, key) or ground.preset.values("training").get(key))


def sequence_parallel(ground: Ground, chosen: Settings) -> list[Settings]:
    """Activations between tensor-parallel parts split along the sequence, or whole on each rank."""
    if number(ground, chosen, "tp") == 1:
        return [{}]
    return [{"parallel.sequence_parallel": value} for value in ("true", "false")]


def order(ground: Ground, _: Settings) -> list[Settings]:
    """Orders of the axes over ranks."""
    orders = ground.allows("order") or [ground.base.parallel.order]
    return [{"parallel.order": order} for order in orders]


def placement(ground: Ground, _: Settings) -> list[Settings]:
    """Nodes in the cluster's order; dealt to the leaf switches in turn; ranks dealt to the nodes in turn.

    A placement that somebody said is kept.
    """
    cluster = ground.cluster
    if cluster.placement != "linear" or cluster.num_nodes == 1:
        return [{}]
    per_leaf = cluster.nodes_per_leaf
    offers: list[Settings] = [{}, {PLACEMENT: "round_robin"}]
    if 1 < per_leaf < cluster.num_nodes:
        dealt = sorted(range(cluster.num_nodes), key=lambda node: (node % per_leaf, node))
        offers.append({PLACEMENT: "nodes:" + ",".join(map(str, dealt))})
    return offers


def _recomputed(ground: Ground, chosen: Settings) -> str:
    return chosen.get("training.recompute", ground.base.training.recompute)


def recompute_layers(ground: Ground, chosen: Settings) -> list[Settings]:
    """All layers, or the first few of each (virtual) stage."""
    if _recomputed(ground, chosen) not in ground.allows("recompute_layers"):
        return [{}]
    most = -(-ground.num_layers // _virtual_stages(ground, chosen)) - 1
    numbers = {-(-most * k // _LAYER_STEPS) for k in range(1, _LAYER_STEPS + 1)} - {0}
    return [{"training.recompute_layers": str(number)} for number in (-1, *sorted(numbers))]


def recompute_modules(ground: Ground, chosen: Settings) -> list[Settings]:
    """Core attention, as selective recomputation has it, or any of the modules that the model has."""
    if _recomputed(ground, chosen) != "selective":
        return [{}]
    there = recomputable(ground.model)
    names = [name for name in ground.allows("recompute_modules") if name in there]
    return [{"training.recompute_modules": f"[{name}]"} for name in ("", *names)]


def offload(ground: Ground, chosen: Settings) -> list[Settings]:
    """Nothing, one of the modules that keep something, or all of them in the host's memory until backward."""
    names = [name for name in ground.allows("offload_modules") if ground.model.moe or name not in OF_EXPERTS]
    if not names or _recomputed(ground, chosen) == "full":  # which keeps no more than layers' inputs
        return [{}]
    # What the projection reads core attention has made, and reads again itself.
    sets = [("core_attn", name) if name == "attn_proj" else (name,) for name in names]
    return [{"training.offload": f"[{','.join(one)}]"} for one in ((), *sets, tuple(names))]


def _virtual_stages(ground: Ground, chosen: Settings) -> int:
    return number(ground, chosen, "pp") * number(ground, chosen, "virtual_stages")


def stage_layers(ground: Ground, chosen: Settings) -> list[Settings]:
    """As the job is completed; both ends counted as layers, or one; uneven as the framework allows it."""
    stages, chunks = number(ground, chosen, "pp"), number(ground, chosen, "virtual_stages")
    how, layers = ground.allows("stage_layers"), ground.num_layers
    if stages == 1 or not how or ground.model.decoder_layers:
        return [{}]
    count = stages * chunks
    counted = [
        {"parallel.embedding_as_layer": f"{first}".lower(), "parallel.head_as_layer": f"{last}".lower()}
        for first in (False, True)
        for last in (False, True)
        if (layers + first + last) % count == 0
    ]
    uneven = _moved_by_one(layers, count) if "any" in how else _uneven_ends(layers, stages, chunks)
    return [{}, *counted, *[{"parallel.stage_layers": f"[{','.join(map(str, one))}]"} for one in uneven]]


def _moved_by_one(layers: int, count: int) -> list[list[int]]:
    """As even as can be, and a layer of the last (virtual) stage or the first given to another."""
    each, more = divmod(layers, count)
    found = []
    for first, last in ((0, 0), (0, -1), (-1, 0), (-1, -1), (0, -2), (-1, -2)):
        inner = layers - 2 * each - first - last
        if count > 2 and min(each + first, each + last) > 0:
            per, extra = divmod(inner, count - 2)
            found.append([each + first, *[per + (k < extra) for k in range(count - 2)], each + last])
        elif count == 2 and first == 0 and each + more + last > 0:
            found.append([each - last, each + more + last])
    return found


def _uneven_ends(layers: int, stages: int, chunks: int) -> list[list[int]]:
    """Equal inner stages; the first and the last hold what else there is, in equal chunks.

    Those whose ends are nearest to the others.
    """
    if layers % chunks:
        return []
    per_chunk = layers // chunks  # of all stages together
    found = []
    for first in range(1, 2 * per_chunk // stages + 1):
        for last in range(1, 2 * per_chunk // stages + 1):
            inner, rest = divmod(per_chunk - first - last, stages - 2) if stages > 2 else (0, 0)
            fits = rest == 0 and inner > 0 if stages > 2 else first + last == per_chunk
            if fits and (first, last) != (inner, inner) and not (stages == 2 and first == last):
                near = inner or per_chunk / 2
                found.append((abs(first - near) + abs(last - near), first, last, inner))
    return [
        [first, *[inner] * (stages - 2), last] * chunks for _, first, last, inner in sorted(found)[:_UNEVEN]
    ]


def buckets(ground: Ground, chosen: Settings) -> list[Settings]:
    """Elements of gradients that are reduced together: as Megatron-Core chooses them, fewer and more."""
    sharding = chosen.get("training.sharding", ground.base.training.sharding)
    if "parameters" not in ground.allows("buckets") or sharding in FSDP:
        return [{}]
    return [{"training.bucket_parameters": str(size)} for size in _BUCKETS]
