"""Sizes of a recorded model: kernels scaled by what the cost model says of new shapes beside the old."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from simcore.cost import RooflineCost
from simcore.cost.classify import classify
from simcore.cost.framework_op import described_inputs
from simcore.errors import InputError
from simcore.graph import OpKind, Strings
from workloads.edits.job import EditableJob, Edited, count_changed
from workloads.edits.kernels.edits import edited_kernels, lasting
from workloads.edits.kernels.hardware import recorded_gpu
from workloads.edits.recorded.features import RecordedSizes, Scales, find_features
from workloads.edits.recorded.groups import Members, pattern, retimed
from workloads.edits.recorded.ratio import renamed, resized_ratio
from workloads.edits.registry import COUNT, EditCall, edit
from workloads.imports.recorded import ImportedRank, RecordedShapes


def _both(call: EditCall) -> tuple[int, int]:
    old, new = call.value
    if old is None:
        raise InputError(f"say what it was: {call.key}=OLD:{new}")
    return old, new


@edit("hidden", value=COUNT, help="hidden size; heads keep their size, ffn stays", kinds=("recorded",))
def hidden(job: EditableJob, call: EditCall) -> Edited:
    """Another hidden size, with more or fewer heads."""
    old, new = _both(call)
    features = told_features(job, old)
    ratio = new / old
    # Attention's output, and query, key and value together, as tensor parallelism splits them.
    shards = [n for n in (1, 2, 4, 8, 16) if 3 * old // n in features.inner]
    if not shards:
        raise InputError(
            f"no product puts out query, key and value of hidden size {old} (3 x {old} / tp): other attention"
            " than multi-head in one product is not understood"
        )
    attention = (3 * old // shards[-1], old // shards[-1])
    scales = Scales(hidden=ratio, heads=ratio, inner={n: ratio for n in attention if n != old})
    return _resized(job, features, scales, f"{ratio:.3g} times the heads, each of the size it had; ffn stays")


@edit("ffn", value=COUNT, help="width of the feed-forward layers", kinds=("recorded",))
def ffn(job: EditableJob, call: EditCall) -> Edited:
    """Another width of the MLP."""
    old, new = _both(call)
    features = told_features(job, None)
    widths = [n * old // tp for tp in (1, 2, 4, 8, 16) for n in (1, 2) if n * old // tp in features.all_inner]
    if not widths:
        raise InputError(
            f"no product has {old} features, or that over tp; there are {sorted(features.all_inner)}"
        )
    shown = f"feed-forward features are those of {widths[0]} per rank"
    return _resized(job, features, Scales(inner={widths[0]: new / old}), shown)


@edit("batch.micro", value=COUNT, help="sequences per microbatch", kinds=("recorded",))
def micro_batch(job: EditableJob, call: EditCall) -> Edited:
    """Larger or smaller microbatches."""
    old, new = _both(call)
    features = told_features(job, None)
    ratio = new / old
    shown = f"{features.tokens} tokens of a microbatch become {round(features.tokens * ratio)}"
    return _resized(job, features, Scales(tokens=ratio, heads=ratio), shown, parameters=1.0)


@edit(
    "tp",
    value=COUNT,
    help="tensor-parallel ranks; at least 2, and recorded with at least 2",
    kinds=("recorded",),
)
def tensor_parallel(job: EditableJob, call: EditCall) -> Edited:
    """Features inside layers and heads over another number of ranks, collectives among them."""
    old, new = _both(call)
    if 1 in (old, new):
        raise InputError("without tensor parallelism other ops run: tp must be at least 2, before and after")
    features = told_features(job, None)
    ratio = old / new
    scales = Scales(heads=ratio, inner=dict.fromkeys(features.all_inner, ratio))
    wanted = (old, 1)
    known = [rank.recorded.collectives for rank in job.ranks]
    if not any(found is not None and wanted in map(pattern, set(found.members)) for found in known):
        raise InputError(
            f"no group of {old} neighbouring ranks communicates: which is tensor parallel is not known"
        )
    edited = _resized(
        job, features, scales, f"all features inside layers are split over {new} instead of {old}"
    )

    def change(_rank: int, _op: int, num_bytes: int, members: Members) -> tuple[float, Members] | None:
        if pattern(members) != wanted:
            return None
        first = members[0] // old * new
        return num_bytes, tuple(range(first, first + new))

    again, changed = retimed(edited.job, new * (1 + max(rank.number for rank in job.ranks)), change)
    told = (*edited.assumed, "as many recorded ranks stand for the others of their group")
    return Edited(again, told, edited.ops_changed + changed)


def known_calls(job: EditableJob) -> Iterator[tuple[RecordedShapes, int, int, int]]:
    """Shapes, call, rank and op of everything whose framework op is known."""
    for index, rank in enumerate(job.ranks):
        shapes = rank.recorded.shapes
        if shapes is None:
            continue
        for op in np.flatnonzero(shapes.of_op >= 0).tolist():
            yield shapes, int(shapes.of_op[op]), index, op


def told_features(job: EditableJob, hidden: int | None) -> RecordedSizes:
    """Tokens, hidden size and features inside layers, from the shapes of products.  Errors: InputError."""
    products, others = [], []
    for shapes, call, _, _ in known_calls(job):
        inputs = [shape for shape, _ in described_inputs(shapes.in_shapes[call], shapes.in_types[call])]
        if classify(shapes.name[call]) == "gemm":
            pair = [shape for shape in inputs if len(shape) >= 2][-2:]
            if len(pair) == 2 and pair[0][-1] == pair[1][-2]:
                products.append((pair[0], pair[1]))
        else:
            others += inputs
    return find_features(products, others, hidden)


def _resized(
    job: EditableJob, features: RecordedSizes, scales: Scales, told: str, parameters: float | None = None
) -> Edited:
    """Every kernel of known shapes scaled.  ``parameters``: how they grow; None: as the products do."""
    job = edited_kernels(job)
    ops = job.graph.ops
    cost = RooflineCost(recorded_gpu(job).under_load(job.graph.world_size))
    recorded = ops.recorded_ps.astype(np.float64)
    changed = np.zeros(len(ops), dtype=np.bool_)
    known_ps = 0
    work = [0.0, 0.0]
    memo: dict[tuple[str, str, str], tuple[float, float, float] | None] = {}
    flat: list[int] = []
    bytes_ratio: dict[tuple[int, int], float | None] = {}
    for shapes, call, index, op in known_calls(job):
        row = int(job.graph.template_start[index]) + int(job.ranks[index].flat[op])
        key = (shapes.name[call], shapes.in_shapes[call], shapes.in_types[call])
        outs = shapes.out_shapes[call] if shapes.out_shapes is not None else None
        if key not in memo:
            memo[key] = resized_ratio(cost, features, scales, *key, outs)
        found = memo[key]
        if ops.kind[row] == OpKind.COLLECTIVE:
            bytes_ratio[index, op] = None if found is None else found[0]
            continue
        if ops.kind[row] != OpKind.COMPUTE:
            continue
        known_ps += int(ops.recorded_ps[row])
        if found is None:
            flat.append(row)
            continue
        changed[row] = True
        recorded[row] *= found[0]
        work[0] += found[1]
        work[1] += found[2]
    if parameters is None:
        parameters = work[1] / work[0] / scales.tokens if work[0] else 1.0
    for row in flat:
        changed[row] = True
        recorded[row] *= parameters
    compute = ops.kind == OpKind.COMPUTE
    share = known_ps / max(1, int(ops.recorded_ps[compute].sum()))
    edited = lasting(job, changed, recorded)
    edited = replace(edited, ranks=tuple(_reshaped(rank, features, scales) for rank in job.ranks))
    count = count_changed(job.graph, changed)
    assumed = [
        told,
        f"{features.tokens} tokens and hidden size {features.hidden} told from the shapes of products",
        f"{share:.0%} of the kernel time scaled by new over old shapes, the rest as recorded; buffers of"
        f" parameters {parameters:.3g} times as large",
    ]
    if bytes_ratio:

        def change(rank: int, op: int, num_bytes: int, members: Members) -> tuple[float, Members] | None:
            ratio = bytes_ratio.get((rank, op), 1.0)
            return num_bytes * (parameters if ratio is None else ratio), members

        edited, more = retimed(edited, max(max(m, default=0) for m in _all(job)), change)
        count += more
    elif any(rank.recorded.is_comm.any() for rank in job.ranks):
        assumed.append("communication as recorded: shapes of what it carries are not known")
    return Edited(edited, tuple(assumed), count)


def _all(job: EditableJob) -> set[Members]:
    known = [rank.recorded.collectives for rank in job.ranks]
    return {members for found in known if found is not None for members in found.members} | {(0,)}


def _reshaped(rank: ImportedRank, features: RecordedSizes, scales: Scales) -> ImportedRank:
    """A rank whose calls have their new shapes, for the edits that follow."""
    shapes = rank.recorded.shapes
    if shapes is None:
        return rank

    names, known = shapes.name, dict[tuple[int, int], str]()

    def grown(column: Strings) -> Strings:
        known.clear()
        texts = []
        for name, code in zip(names.codes.tolist(), column.codes.tolist(), strict=True):
            if (name, code) not in known:
                text = renamed(names.values[name], column.values[code], features, scales)
                known[name, code] = text or ""
            texts.append(known[name, code])
        return Strings.encode(texts)

    outs = grown(shapes.out_shapes) if shapes.out_shapes is not None else None
    shapes = replace(shapes, in_shapes=grown(shapes.in_shapes), out_shapes=outs)
    return replace(rank, recorded=replace(rank.recorded, shapes=shapes))
