"""The space of strategies: axes, and the settings that each offers beside what has been chosen before it.

A candidate is a set of settings (``section.key`` -> text) over what is said of a job: exactly what
``run_sim.py --set`` takes.  Degrees of a candidate multiply to the GPUs of the cluster; all else is for
:mod:`simcore.planning.question` to refuse and count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from pydantic import BaseModel

from simcore.errors import InputError, nearest
from simcore.graph.schedules import SCHEDULES
from simcore.hardware import placed_on
from simcore.planning import fine
from simcore.planning.classes import CLASS_AXES
from simcore.planning.ground import PLACEMENT, Ground, SearchAxis, Settings, left, number
from workloads.models.checked import checked, value_of
from workloads.parallel.check import check_order
from workloads.parallel.spec import FSDP, ParallelSpec, TrainingSpec
from workloads.parallel.strategy import StrategySpec

_SPECS: Final[dict[str, type[BaseModel]]] = {
    "parallel": ParallelSpec, "training": TrainingSpec, "parallel.strategy": StrategySpec,
}  # fmt: skip
#: Keys whose values are lists.
_LISTS: Final = ("parallel.stage_layers", "training.recompute_modules", "training.offload")
#: Most samples of a microbatch, ranks of context parallelism, chunks of a stage that are tried unasked.
_MOST_SAMPLES: Final = 8
_MOST_CONTEXT: Final = 16
_MOST_CHUNKS: Final = 10
#: A rank of context parallelism keeps at least so many tokens.
_FEWEST_TOKENS: Final = 1024


def candidates(ground: Ground, axes: Sequence[tuple[SearchAxis, Sequence[str]]]) -> Iterator[dict[str, str]]:
    """All candidates, in order: ``axes`` with the values asked for of each (none: all that it offers).

    InputError for a placement that the cluster has not.
    """
    for axis, values in axes:
        for value in values if PLACEMENT in axis.keys else ():
            placed_on(ground.cluster, value)
    return _from({}, ground, axes)


def _from(
    chosen: dict[str, str], ground: Ground, axes: Sequence[tuple[SearchAxis, Sequence[str]]]
) -> Iterator[dict[str, str]]:
    if not axes:
        yield chosen
        return
    (axis, values), rest = axes[0], axes[1:]
    offers = [{axis.keys[0]: value} for value in values] or axis.offers(ground, chosen)
    for offer in offers:
        yield from _from({**chosen, **offer}, ground, rest)


def asked_axes(
    text: str, said: Collection[str], *, lists: bool = False
) -> list[tuple[SearchAxis, Sequence[str]]]:
    """Axes that ``--search`` names ("tp,pp=1:2:4,recompute"), in the order in which they are searched.

    "": those that are usual and that the job, whose own keys are ``said``, leaves open, which "usual" among
    names stands for, too; "all": all of them.  ``lists``: of a list of blocks, not of a transformer.
    Errors: InputError for an unknown axis, with the nearest, one named twice, or a value of no job.
    """
    axes = axes_of(lists=lists)
    usual: dict[str, Sequence[str]] = {
        axis.name: () for axis in axes if axis.usual and not {*axis.keys} & {*said}
    }
    if text == "all":
        return [(axis, ()) for axis in axes]
    known = {axis.name: axis for axis in axes}
    words = [word.strip() for word in (text or "usual").split(",")]
    asked: dict[str, Sequence[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if word == "usual":
            continue
        if name not in known:
            near = nearest(name, ("all", "usual", *known))
            kind = " of lists of blocks" if lists else ""
            raise InputError(f"--search: unknown axis {name!r}{kind}{near} (all: {', '.join(known)})")
        if name in asked:
            raise InputError(f"--search: {name} is named twice")
        if equals and not all(values.split(":")):
            raise InputError(f"--search {word!r}: values have colons between, such as {name}=1:2:4")
        key = known[name].keys[0]
        asked[name] = [_listed(key, value) for value in values.split(":")] if equals else ()
        for value in asked[name]:
            _check_value(key, value)
    if "usual" in words:
        asked = {**usual, **asked}
    return [(axis, asked[axis.name]) for axis in axes if axis.name in asked]


def _listed(key: str, text: str) -> str:
    """A list's text: commas are between axes, so that its words have "+" between, "layernorm+moe_act"."""
    return f"[{text.replace('+', ',')}]" if key in _LISTS and not text.startswith("[") else text


def _check_value(key: str, text: str) -> None:
    """InputError for a value that is none in any job, whatever else it has."""
    section, _, name = key.rpartition(".")
    if section in _SPECS:
        found = checked(_SPECS[section], {name: value_of(text, key)}, f"--search: {section}")
        if key == "parallel.order" and isinstance(found, ParallelSpec):
            check_order(found)


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]


def _degrees(ground: Ground, key: str, numbers: Sequence[int]) -> list[Settings]:
    return [{f"parallel.{key}": str(number)} for number in (numbers if ground.deals_out(key) else (1,))]


def _tensor(ground: Ground, _: Settings) -> list[Settings]:
    return _degrees(ground, "tp", _divisors(ground.num_gpus, ground.domain))


def _context(ground: Ground, chosen: Settings) -> list[Settings]:
    most = min(_MOST_CONTEXT, max(1, ground.model.sequence(ground.base.training.seq) // _FEWEST_TOKENS))
    return _degrees(ground, "cp", _divisors(left(ground, chosen, "tp"), most))


def _expert(ground: Ground, _: Settings) -> list[Settings]:
    if ground.model.moe is None:
        return [{}]
    return _degrees(ground, "ep", _divisors(ground.num_gpus, ground.model.moe.num_experts))


def _expert_tensor(ground: Ground, chosen: Settings) -> list[Settings]:
    if ground.model.moe is None or number(ground, chosen, "ep") == 1:
        return [{}]
    return _degrees(ground, "etp", sorted({1, number(ground, chosen, "tp")}))


def _micro_batch(ground: Ground, _: Settings) -> list[Settings]:
    batch = ground.base.training.global_batch
    sizes = [1 << k for k in range(_MOST_SAMPLES.bit_length()) if batch % (1 << k) == 0]
    return [{"training.micro_batch": str(size)} for size in sizes]


def _recompute(ground: Ground, _: Settings) -> list[Settings]:
    """What runs again; of full recomputation with each set of outputs that the framework can keep."""
    keeps = ground.allows("recompute_keeps")
    found: list[Settings] = []
    for how in ground.supports("recompute"):
        if how == "full" and keeps:
            found += [
                {"training.recompute": how, "training.recompute_keeps": f"[{names}]"} for names in keeps
            ]
        else:
            found.append({"training.recompute": how})
    return found


def _pipeline(ground: Ground, chosen: Settings) -> list[Settings]:
    return _degrees(ground, "pp", _divisors(left(ground, chosen, "tp", "cp"), ground.num_layers))


def _schedule(ground: Ground, chosen: Settings) -> list[Settings]:
    """Schedules with the chunks that each takes: as many as divide the layers, or their ends counted too."""
    stages = number(ground, chosen, "pp")
    if stages == 1:
        return [{"parallel.schedule": "1f1b", "parallel.virtual_stages": "1"}]
    found: list[Settings] = []
    layers = ground.num_layers
    for name in ground.supports("schedule"):
        if name == "none":
            continue
        if name == "interleaved":
            most = min(_MOST_CHUNKS, layers // stages)
            even = [
                n for n in range(2, most + 1) if 0 in (layers % (stages * n), (layers + 2) % (stages * n))
            ]
            uneven = [n for n in (2, 4, 8) if n <= most]
            found += [
                {"parallel.schedule": "1f1b", "parallel.virtual_stages": str(n)}
                for n in sorted({*even, *(uneven if layers % stages or not even else ())})
            ]
        else:
            chunks = SCHEDULES[name].num_chunks or 1
            if stages * chunks > layers:
                continue
            found.append({"parallel.schedule": name, "parallel.virtual_stages": str(chunks)})
    return found or [{}]


def _sharding(ground: Ground, chosen: Settings) -> list[Settings]:
    """What the framework's data-parallel ranks split: FSDP over all or part of them, else the optimizer."""
    training = ground.base.training
    ranks = left(ground, chosen, "tp", "cp", "pp")
    if training.engine == "deepspeed" or training.sharding not in FSDP:
        names = ("zero1", "zero2", "zero3") if training.engine == "deepspeed" else ("zero1", "ddp")
        return [{"training.sharding": name} for name in (names if ranks > 1 else (training.sharding,))]
    parts = [n for n in _divisors(ranks, ranks // 2) if n > 1]
    again = ("true", "false") if number(ground, chosen, "pp") == 1 else ()
    found: list[Settings] = []
    for part in (0, *parts):
        one = {"training.sharding": training.sharding, "parallel.dp_shard": str(part)}
        found += [{**one, "training.reshard_after_forward": each} for each in again] or [one]
    return found


def _precision(ground: Ground, _: Settings) -> list[Settings]:
    return [{"training.precision": name} for name in dict.fromkeys((ground.base.training.precision, "fp8"))]


def _chunks(ground: Ground, chosen: Settings) -> list[Settings]:
    """Chunks of a stage that the schedule axis leaves out, as they do not divide the layers."""
    stages, now = number(ground, chosen, "pp"), number(ground, chosen, "virtual_stages")
    schedule = chosen.get("parallel.schedule", ground.base.parallel.schedule)
    if stages == 1 or schedule != "1f1b" or "interleaved" not in ground.supports("schedule"):
        return [{}]
    tried = {offer.get("parallel.virtual_stages") for offer in _schedule(ground, chosen)}
    near = [n for n in (now - 1, now + 1) if 1 < n <= ground.num_layers // stages and str(n) not in tried]
    return [{}, *[{"parallel.virtual_stages": str(n)} for n in near]]


#: All axes.  What decides a rank's kernels comes first: candidates in a row share them.
AXES: Final = (
    SearchAxis("precision", ("training.precision",), _precision, usual=False),
    SearchAxis("tp", ("parallel.tp",), _tensor),
    SearchAxis(
        "sequence_parallel", ("parallel.sequence_parallel",), fine.sequence_parallel, usual=False, fine=True
    ),
    SearchAxis("cp", ("parallel.cp",), _context),
    SearchAxis("ep", ("parallel.ep",), _expert),
    SearchAxis("etp", ("parallel.etp",), _expert_tensor),
    SearchAxis("micro_batch", ("training.micro_batch",), _micro_batch),
    SearchAxis("recompute", ("training.recompute", "training.recompute_keeps"), _recompute),
    SearchAxis(
        "recompute_modules", ("training.recompute_modules",), fine.recompute_modules, usual=False, fine=True
    ),
    SearchAxis("offload", ("training.offload",), fine.offload, usual=False, fine=True),
    SearchAxis("tp_overlap", ("training.tp_overlap",), fine.tensor_overlap, usual=False, fine=True),
    SearchAxis("pp", ("parallel.pp",), _pipeline),
    SearchAxis("schedule", ("parallel.schedule", "parallel.virtual_stages"), _schedule),
    SearchAxis("chunks", ("parallel.virtual_stages",), _chunks, usual=False, fine=True),
    SearchAxis(
        "stage_layers",
        ("parallel.stage_layers", "parallel.embedding_as_layer", "parallel.head_as_layer"),
        fine.stage_layers, usual=False, fine=True,
    ),
    SearchAxis(
        "recompute_layers", ("training.recompute_layers",), fine.recompute_layers, usual=False, fine=True
    ),
    SearchAxis("sharding", ("training.sharding", "parallel.dp_shard"), _sharding),
    SearchAxis(
        "grad_overlap", ("training.overlap_grad_reduce", "training.overlap_param_gather"),
        fine.gradient_overlap, usual=False, fine=True,
    ),
    SearchAxis("buckets", ("training.bucket_parameters",), fine.buckets, usual=False, fine=True),
    SearchAxis("order", ("parallel.order",), fine.order, usual=False, fine=True),
    SearchAxis("placement", (PLACEMENT,), fine.placement, usual=False, fine=True),
    *CLASS_AXES,
)  # fmt: skip
#: Settings that fine axes alone decide.
FINE_KEYS: Final = frozenset(key for axis in AXES if axis.fine for key in axis.keys) - frozenset(
    key for axis in AXES if not axis.fine for key in axis.keys
)
_OF_KEY: Final = {key: axis for axis in reversed(AXES) for key in axis.keys}


def axes_of(*, lists: bool) -> list[SearchAxis]:
    """Axes of lists of blocks, or of transformers."""
    return [axis for axis in AXES if axis.lists == lists]


def axis_of(key: str) -> SearchAxis | None:
    """The axis that decides a setting; the first of several."""
    return _OF_KEY.get(key)


def step_between(one: Settings, other: Settings) -> SearchAxis | None:
    """The axis along which alone two strategies differ; None where they are equal or differ along several."""
    differing = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    axes = {axis.name: axis for key in differing if (axis := _OF_KEY.get(key)) is not None}
    return next(iter(axes.values())) if len(axes) == 1 else None
