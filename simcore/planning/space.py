"""The space of strategies: axes, and the settings that each offers beside what has been chosen before it.

A candidate is a set of settings (``section.key`` -> text) over what is said of a job: exactly what
``run_sim.py --set`` takes.  Degrees of a candidate multiply to the GPUs of the cluster; all else is for
:mod:`simcore.planning.examine` to refuse and count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.errors import InputError, nearest
from simcore.graph.schedules import SCHEDULES
from workloads.jobs import Description
from workloads.jobs.presets import Preset
from workloads.models.spec import ModelSpec
from workloads.parallel.job import FSDP

Settings = Mapping[str, str]
#: Most samples of a microbatch, ranks of context parallelism, chunks of a stage that are tried unasked.
_MOST_SAMPLES: Final = 8
_MOST_CONTEXT: Final = 16
_MOST_CHUNKS: Final = 10
#: A rank of context parallelism keeps at least so many tokens.
_FEWEST_TOKENS: Final = 1024


@dataclass(frozen=True)
class Ground:
    """What all candidates share: the job as said, completed by default, and the GPUs.

    ``domain``: GPUs that NVLink joins.
    """

    base: Description
    preset: Preset
    num_gpus: int
    domain: int

    @property
    def model(self) -> ModelSpec:
        """What is trained."""
        return self.base.model

    def supports(self, key: str) -> list[str]:
        """What the framework has of a kind; what the job itself asks for where the preset does not say."""
        said = self.preset.values("supports").get(key)
        return list(said) if said else [str(getattr(self.base.training, key, ""))]


@dataclass(frozen=True)
class SearchAxis:
    """An axis by the ``name`` that ``--search`` knows.

    ``keys``: settings that it decides; a job that says one of them itself keeps it unless the axis is asked
    for.  ``offers``: settings to choose from, given those chosen on earlier axes.  ``usual``: searched
    unasked.
    """

    name: str
    keys: tuple[str, ...]
    offers: Callable[[Ground, Settings], Sequence[Settings]]
    usual: bool = True


def candidates(ground: Ground, axes: Sequence[tuple[SearchAxis, Sequence[str]]]) -> Iterator[dict[str, str]]:
    """All candidates, in order: ``axes`` with the values asked for of each (none: all that it offers)."""
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


def asked_axes(text: str, said: Collection[str]) -> list[tuple[SearchAxis, Sequence[str]]]:
    """Axes that ``--search`` names ("tp,pp=1:2:4,recompute"), in the order in which they are searched.

    "": those that are usual and that the job, whose own keys are ``said``, leaves open; "all": all of them.
    Errors: InputError for an unknown axis, with the nearest, or one named twice.
    """
    if not text:
        return [(axis, ()) for axis in AXES if axis.usual and not {*axis.keys} & {*said}]
    if text == "all":
        return [(axis, ()) for axis in AXES]
    known = {axis.name: axis for axis in AXES}
    asked: dict[str, Sequence[str]] = {}
    for word in text.split(","):
        name, equals, values = word.strip().partition("=")
        if name not in known:
            raise InputError(f"--search: unknown axis {name!r}{nearest(name, ('all', *known))}")
        if name in asked:
            raise InputError(f"--search: {name} is named twice")
        if equals and not all(values.split(":")):
            raise InputError(f"--search {word!r}: values have colons between, such as {name}=1:2:4")
        asked[name] = values.split(":") if equals else ()
    return [(axis, asked[axis.name]) for axis in AXES if axis.name in asked]


def _number(ground: Ground, chosen: Settings, key: str) -> int:
    """A degree: chosen, else the job's own."""
    return int(chosen.get(f"parallel.{key}", getattr(ground.base.parallel, key)))


def _left(ground: Ground, chosen: Settings, *taken: str) -> int:
    """GPUs for each combination of the degrees ``taken``; 0 where they do not divide."""
    inner = 1
    for key in taken:
        inner *= _number(ground, chosen, key)
    return 0 if ground.num_gpus % inner else ground.num_gpus // inner


def _divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, min(number, most) + 1) if number % n == 0]


def _degrees(key: str, numbers: Sequence[int]) -> list[Settings]:
    return [{f"parallel.{key}": str(number)} for number in numbers]


def _tensor(ground: Ground, _: Settings) -> list[Settings]:
    return _degrees("tp", _divisors(ground.num_gpus, ground.domain))


def _context(ground: Ground, chosen: Settings) -> list[Settings]:
    most = min(_MOST_CONTEXT, max(1, ground.model.sequence(ground.base.training.seq) // _FEWEST_TOKENS))
    return _degrees("cp", _divisors(_left(ground, chosen, "tp"), most))


def _expert(ground: Ground, _: Settings) -> list[Settings]:
    if ground.model.moe is None:
        return [{}]
    return _degrees("ep", _divisors(ground.num_gpus, ground.model.moe.num_experts))


def _expert_tensor(ground: Ground, chosen: Settings) -> list[Settings]:
    if ground.model.moe is None or _number(ground, chosen, "ep") == 1:
        return [{}]
    return _degrees("etp", sorted({1, _number(ground, chosen, "tp")}))


def _micro_batch(ground: Ground, _: Settings) -> list[Settings]:
    batch = ground.base.training.global_batch
    sizes = [1 << k for k in range(_MOST_SAMPLES.bit_length()) if batch % (1 << k) == 0]
    return [{"training.micro_batch": str(size)} for size in sizes]


def _recompute(ground: Ground, _: Settings) -> list[Settings]:
    return [{"training.recompute": how} for how in ground.supports("recompute")]


def _pipeline(ground: Ground, chosen: Settings) -> list[Settings]:
    layers = ground.model.layers + ground.model.decoder_layers
    return _degrees("pp", _divisors(_left(ground, chosen, "tp", "cp"), layers))


def _schedule(ground: Ground, chosen: Settings) -> list[Settings]:
    """Schedules with the chunks that each takes: as many as divide the layers, or their ends counted too."""
    stages = _number(ground, chosen, "pp")
    if stages == 1:
        return [{"parallel.schedule": "1f1b", "parallel.virtual_stages": "1"}]
    found: list[Settings] = []
    layers = ground.model.layers + ground.model.decoder_layers
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
    ranks = _left(ground, chosen, "tp", "cp", "pp")
    if training.engine == "deepspeed" or training.sharding not in FSDP:
        names = ("zero1", "zero2", "zero3") if training.engine == "deepspeed" else ("zero1", "ddp")
        return [{"training.sharding": name} for name in (names if ranks > 1 else (training.sharding,))]
    parts = [n for n in _divisors(ranks, ranks // 2) if n > 1]
    again = ("true", "false") if _number(ground, chosen, "pp") == 1 else ()
    found: list[Settings] = []
    for part in (0, *parts):
        one = {"training.sharding": training.sharding, "parallel.dp_shard": str(part)}
        found += [{**one, "training.reshard_after_forward": each} for each in again] or [one]
    return found


def _tensor_overlap(ground: Ground, chosen: Settings) -> list[Settings]:
    if _number(ground, chosen, "tp") == 1:
        return [{}]
    return [{"training.tp_overlap": value} for value in ("true", "false")]


def _gradient_overlap(_: Ground, __: Settings) -> list[Settings]:
    return [
        {"training.overlap_grad_reduce": value, "training.overlap_param_gather": value}
        for value in ("true", "false")
    ]


def _sequence_parallel(ground: Ground, chosen: Settings) -> list[Settings]:
    if _number(ground, chosen, "tp") == 1:
        return [{}]
    return [{"parallel.sequence_parallel": value} for value in ("true", "false")]


def _order(_: Ground, __: Settings) -> list[Settings]:
    return [{"parallel.order": order} for order in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")]


def _precision(ground: Ground, _: Settings) -> list[Settings]:
    return [{"training.precision": name} for name in dict.fromkeys((ground.base.training.precision, "fp8"))]


#: All axes.  What decides a rank's kernels comes first: candidates in a row share them.
AXES: Final = (
    SearchAxis("precision", ("training.precision",), _precision, usual=False),
    SearchAxis("tp", ("parallel.tp",), _tensor),
    SearchAxis("sequence_parallel", ("parallel.sequence_parallel",), _sequence_parallel, usual=False),
    SearchAxis("cp", ("parallel.cp",), _context),
    SearchAxis("ep", ("parallel.ep",), _expert),
    SearchAxis("etp", ("parallel.etp",), _expert_tensor),
    SearchAxis("micro_batch", ("training.micro_batch",), _micro_batch),
    SearchAxis("recompute", ("training.recompute",), _recompute),
    SearchAxis("tp_overlap", ("training.tp_overlap",), _tensor_overlap, usual=False),
    SearchAxis("pp", ("parallel.pp",), _pipeline),
    SearchAxis("schedule", ("parallel.schedule", "parallel.virtual_stages"), _schedule),
    SearchAxis("sharding", ("training.sharding", "parallel.dp_shard"), _sharding),
    SearchAxis(
        "grad_overlap", ("training.overlap_grad_reduce", "training.overlap_param_gather"), _gradient_overlap,
        usual=False,
    ),
    SearchAxis("order", ("parallel.order",), _order, usual=False),
)  # fmt: skip
