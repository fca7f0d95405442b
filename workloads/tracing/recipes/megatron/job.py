"""A GPT training job for Megatron-core: sizes, parallelism and options, checked before torch is imported."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import asdict
from pathlib import Path

from simcore.errors import InputError, nearest
from simcore.graph import Workload
from simcore.graph.header import MAX_RANKS
from simcore.records import dataclass
from workloads.tracing.drive.framework_imports import Preparation
from workloads.tracing.drive.rank_classes import DistinctRanks, StartRounds, TraceReport
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.fake.expert_load import parse_load
from workloads.tracing.recipes.megatron import ranks
from workloads.tracing.record.world_axes import WorldAxis, nested_axes

#: Readies a process for Megatron-core.
_RECIPE = "workloads.tracing.recipes.megatron.stubs"

PRECISIONS = ("fp32", "bf16")
RECOMPUTE = ("none", "selective", "full")

#: Microbatches traced beyond the warm-up, and whole rounds of an interleaved pipeline: the steady state then
#: repeats often enough to be seen.
_STEADY_MICROBATCHES = 5
_STEADY_PERIODS = 5


@dataclass(frozen=True)
class MegatronGptJob:
    """GPT as Megatron-core trains it.  The world is ``tp * cp * dp * pp`` ranks, tp fastest, pp slowest.

    ``num_experts`` of every layer's MLP (0: dense), of which a token visits ``moe_top_k``; ``ep`` ranks of
    ``cp * dp`` share them; ``expert_load`` says how unevenly tokens choose (Note [Load models] of
    ``expert_load.py``).
    ``virtual_pipeline``: model chunks per stage (1: plain 1F1B, more: interleaved).  ``first_stage_layers``
    and ``last_stage_layers``: layers of these stages when the others share the rest (0: all are alike).
    Errors: InputError for a size, count or combination that Megatron cannot run.
    """

    layers: int
    hidden: int
    heads: int
    seq: int
    vocab: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    microbatches: int = 1
    micro_batch_size: int = 1
    precision: str = "fp32"
    sequence_parallel: bool = False
    recompute: str = "full"
    distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    virtual_pipeline: int = 1
    gpus_per_node: int = 8
    first_stage_layers: int = 0
    last_stage_layers: int = 0
    cp: int = 1
    num_experts: int = 0
    moe_top_k: int = 2
    ep: int = 1
    expert_load: str = "uniform"

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            lowest = 0 if name in ("first_stage_layers", "last_stage_layers", "num_experts") else 1
            if isinstance(value, int) and not isinstance(value, bool) and not lowest <= value <= MAX_RANKS:
                bound = f"least {lowest}" if value < lowest else f"most {MAX_RANKS}"
                raise InputError(f"{name}: {value} must be at {bound}")
        if self.world_size > MAX_RANKS:
            raise InputError(f"tp, pp, cp and dp make {self.world_size} ranks; at most {MAX_RANKS}")
        if self.precision == "fp8":
            raise InputError(
                "precision: fp8 runs in Transformer Engine, whose kernels need a GPU; bf16 can be traced, "
                "and a described model (docs/models.md) has fp8"
            )
        _known("precision", self.precision, PRECISIONS)
        _known("recompute", self.recompute, RECOMPUTE)
        self._check_layers()
        _divides("hidden", self.hidden, "heads", self.heads)
        _divides("heads", self.heads, "tp", self.tp)
        _divides("vocab", self.vocab, "tp", self.tp)
        if self.sequence_parallel:
            _divides("seq", self.seq, "tp", self.tp)
            if self.tp == 1:
                raise InputError("sequence_parallel needs tp > 1")
        self._check_sequence_and_experts()
        if self.overlap_param_gather and not (self.distributed_optimizer and self.overlap_grad_reduce):
            raise InputError("overlap_param_gather needs distributed_optimizer and overlap_grad_reduce")
        if self.virtual_pipeline > 1:
            if self.pp == 1:
                raise InputError("virtual_pipeline needs pp > 1")
            if self.microbatches < self.pp:
                raise InputError(
                    f"interleaved pipeline: microbatches {self.microbatches} must be at least pp {self.pp}"
                )
            _divides("microbatches", self.microbatches, "pp", self.pp)

    def _check_sequence_and_experts(self) -> None:
        if self.cp > 1:
            _divides("seq", self.seq, "2 * cp * tp", 2 * self.cp * self.tp)
            if self.precision != "bf16":
                raise InputError(f"cp {self.cp} runs flash attention, which is for bf16: pass precision bf16")
        if self.num_experts:
            _divides("num_experts", self.num_experts, "ep", self.ep)
            _divides("cp * dp", self.cp * self.dp, "ep", self.ep)
            if self.moe_top_k > self.num_experts:
                raise InputError(f"moe_top_k {self.moe_top_k} is more than num_experts {self.num_experts}")
            if self.tp > 1 and not self.sequence_parallel:
                raise InputError("experts and tp > 1 need sequence_parallel")
        elif self.ep > 1:
            raise InputError(f"ep {self.ep} needs num_experts")
        elif self.expert_load != "uniform":
            raise InputError(f"expert_load {self.expert_load} needs num_experts")
        parse_load(self.expert_load)

    def _check_layers(self) -> None:
        """Layers must fall evenly on the model chunks, but for what the first and last stage are given."""
        given = [count for count in (self.first_stage_layers, self.last_stage_layers) if count]
        if not given:
            chunks = self.pp * self.virtual_pipeline
            if self.layers % chunks:
                raise InputError(
                    f"layers {self.layers} is not divisible by pp * virtual_pipeline {chunks}; "
                    f"first_stage_layers and last_stage_layers can take the remainder"
                )
            return
        if self.virtual_pipeline > 1:
            raise InputError("first_stage_layers and last_stage_layers need virtual_pipeline 1")
        rest, stages = self.layers - sum(given), self.pp - len(given)
        if stages < 1 or rest < stages or rest % stages:
            raise InputError(
                f"layers {self.layers} less {sum(given)} on the first and last stage do not fall evenly "
                f"on the other {stages} stage(s)"
            )

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def period(self) -> int:
        """Microbatches after which the pipeline's steady state repeats."""
        return self.pp if self.virtual_pipeline > 1 else 1

    @property
    def fingerprint_microbatches(self) -> int:
        """The fewest microbatches with which the schedule runs at all."""
        return self.period

    def traced_microbatches(self, stage: int) -> int:
        """How many microbatches to trace before the skeleton is extended; all of them when they are few.

        A stage of 1F1B runs ``pp - stage - 1`` forwards before its steady state begins.
        """
        if self.period == 1:
            return min(self.microbatches, self.pp - stage - 1 + _STEADY_MICROBATCHES)
        # The first half of an interleaved pipeline is more than a round ahead when its steady state begins.
        ahead = 2 * (self.pp - stage - 1) >= self.pp
        return min(self.microbatches, (_STEADY_PERIODS + ahead) * self.pp)

    @property
    def dims(self) -> dict[str, int]:
        """Axis sizes."""
        context = {"cp": self.cp} if self.cp > 1 else {}
        return {"tp": self.tp, **context, "pp": self.pp, "dp": self.dp}

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of a rank (Megatron's default order: tp, cp, dp, pp)."""
        return rank // (self.tp * self.cp * self.dp)

    @property
    def by_recipe(self) -> bool:
        """Megatron is traced by a recipe."""
        return True

    def preparation(self) -> Preparation:
        """The recipe's module.  InputError when Megatron-core is not installed."""
        for module, package in (("megatron", "megatron-core"), ("einops", "einops")):
            if importlib.util.find_spec(module) is None:
                raise InputError(
                    f"tracing needs {package}, which is not installed: pip install --no-deps {package}"
                )
        return Preparation(recipe=_RECIPE)

    @property
    def axes(self) -> tuple[WorldAxis, ...]:
        """Axes along which ranks may differ (Megatron's default order: tp, cp, dp, pp; experts are shared
        among neighbours of cp * dp).
        """
        stage = self.world_size // self.pp
        strides = (self.tp, self.tp * self.cp, self.tp * self.ep, stage)
        return nested_axes(strides, self.world_size, lambda axis: axis.stride >= stage)

    def script(self, microbatches: int, *, hollow: bool = False) -> ScriptJob:
        """The script that runs a step of ``microbatches`` behind a warm-up, in which a job makes optimizer
        states, and with overlapped reductions learns which gradients to wait for (0: of one pass of each
        chunk outside of the schedule); ``hollow``: of layers that are a norm alone (Note [Short and long
        runs]).
        """
        learns = self.overlap_grad_reduce or self.num_experts
        return ScriptJob(
            Path(__file__).with_name("gpt.py"),
            (
                json.dumps(asdict(self)),
                str(microbatches),
                *(["learning"] if learns else []),
                *(["hollow"] if hollow else []),
            ),
            self.world_size,
            self.gpus_per_node,
            step=1,
            hang_s=math.inf,  # large worlds make groups for minutes
            load=self.expert_load,
            recipe=_RECIPE,
        )

    def distinct_ranks(self, start: StartRounds, report: TraceReport) -> DistinctRanks:
        """Runs few ranks with few microbatches; see :mod:`workloads.tracing.recipes.megatron.ranks`."""
        return ranks.distinct_ranks(self, start, report)

    def workload(self, name: str, found: DistinctRanks) -> Workload:
        """What the graph is a graph of."""
        options = asdict(self)
        model = {key: options.pop(key) for key in ("layers", "hidden", "heads", "seq", "vocab")}
        model |= {
            "family": "gpt",
            "ffn_hidden": 4 * self.hidden,
            "tied_embeddings": True,
            "position_embedding": "learned_absolute",
        }
        for key in ("tp", "pp", "dp", "cp", "microbatches", "micro_batch_size", "precision"):
            options.pop(key)
        experts = {key: options.pop(key) for key in ("num_experts", "moe_top_k", "ep")}
        if self.num_experts:
            model |= experts
        return Workload(
            name=name or "megatron-gpt",
            world_size=self.world_size,
            dims=self.dims,
            num_microbatches=self.microbatches,
            micro_batch_size=self.micro_batch_size,
            seq_len=self.seq,
            tokens_per_step=self.seq * self.micro_batch_size * self.microbatches * self.dp,
            precision=self.precision,
            framework="megatron-core",
            versions=dict(found.traces[0].versions),
            command=self.command(),
            model=model,
            options=options,
        )

    def command(self) -> str:
        """The command line that traces this job."""
        parts = ["python scripts/trace_workload.py megatron-gpt"]
        defaults = MegatronGptJob.__dataclass_fields__
        for name, value in asdict(self).items():
            option = "--" + name.replace("_", "-")
            required = name in ("layers", "hidden", "heads", "seq", "vocab", "tp", "pp", "dp", "microbatches")
            if not required and value == defaults[name].default:
                continue
            parts.append(option if value is True else f"{option} {value}")
        return " ".join(parts)


def _known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name}: unknown value {value!r}{nearest(value, known)}")


def _divides(name: str, value: int, by: str, divisor: int) -> None:
    if value % divisor:
        raise InputError(f"{name} {value} is not divisible by {by} {divisor}")
