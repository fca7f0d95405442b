"""A traced Megatron-Core GPT as a description, from which the generator makes its graph again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from simcore.errors import InputError
from simcore.graph import Graph, OpKind, Program, Workload, apply_kernels
from simcore.graph.kinds import is_communication
from simcore.memory import peak_memory
from simcore.records import dataclass
from workloads.models import ModelSpec, MoeSpec
from workloads.models.checked import checked as checked_spec
from workloads.models.software import AttentionKernels, SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate, schedule_of
from workloads.parallel.job import Job
from workloads.parallel.memory import estimate_memory

#: What a traced and a generated stage may differ by: shards of a distributed optimizer cut through
#: parameters; in small models dimensions of one size make the mapping of traced ops count tensors once; and
#: what is communicated is padded for shards (tests/models/test_one_truth.py).
_SAME = {"flops": 0.0, "kernels": 4e-3, "bytes": 1e-2}
_SAME_BYTES = 2e-3
#: Options of a trace that does not name them.
_UNSAID = {
    "virtual_pipeline": 1, "sequence_parallel": False, "recompute": "none", "distributed_optimizer": False,
    "overlap_grad_reduce": False, "overlap_param_gather": False,
}  # fmt: skip
#: The kernel whose masks and residuals a mapped trace does not always write and read, as the real one does.
_MASKED = "bias_dropout_add_fwd"


@dataclass(frozen=True)
class TracedGpt:
    """The job that a traced program was: ``workload`` as traced, the rest as the generator is asked for it.

    ``held``: of the first stage, those between and the last, what forwards left at the peak over what the
    closed form says, and what one pass needs besides over what the largest piece saves for its backward.
    """

    workload: Workload
    model: ModelSpec
    parallel: ParallelSpec
    training: TrainingSpec
    software: SoftwareSpec
    kernels: str
    held: tuple[tuple[float, float], ...] = ()

    @property
    def num_microbatches(self) -> int:
        """Microbatches of each replica."""
        return self.training.num_microbatches(self.parallel)

    @property
    def schedule(self) -> str:
        """The schedule as ``--edit schedule=`` says it."""
        chunks = self.parallel.virtual_stages
        return f"interleaved:{chunks}" if chunks > 1 else self.parallel.schedule

    def changed(
        self, *, num_microbatches: int = 0, micro_batch: int = 0,
        model: dict[str, int] | None = None, parallel: dict[str, object] | None = None,
    ) -> TracedGpt:  # fmt: skip
        """The job with other values; 0: as many microbatches per replica, of as many sequences, as before.

        InputError for an uneven split that would have to be made anew.
        """
        spread = checked_spec(ParallelSpec, {**dict(self.parallel), **(parallel or {})}, "parallel")
        split = (self.model.layers, self.parallel.pp, self.parallel.virtual_stages)
        grown = checked_spec(ModelSpec, {**dict(self.model), **(model or {})}, "model")
        if spread.stage_layers and (grown.layers, spread.pp, spread.virtual_stages) != split:
            raise InputError("stages with unequal numbers of layers cannot be regrouped")
        size = micro_batch or self.training.micro_batch
        batch = (num_microbatches or self.num_microbatches) * size * spread.dp
        changes = {
            "micro_batch": size,
            "global_batch": batch,
            "overlap_p2p": spread.virtual_stages > 1,
        }
        training = checked_spec(TrainingSpec, {**dict(self.training), **changes}, "training")
        return replace(self, model=grown, parallel=spread, training=training)

    def graph(self) -> Graph:
        """The program, launches and all, under the traced one's name.  InputError as the generator says."""
        made = generate(self.model, self.parallel, self.training, self.software, as_launched=True)
        model, parallel, traced = self.model, self.parallel, self.workload
        degrees = {axis: getattr(parallel, axis) for axis in ("tp", "dp", "pp")}
        workload = replace(
            traced, world_size=parallel.world_size, dims={**traced.dims, **degrees},
            num_microbatches=self.num_microbatches, micro_batch_size=self.training.micro_batch,
            tokens_per_step=made.workload.tokens_per_step,
            model={
                **traced.model, "layers": model.layers, "hidden": model.hidden, "ffn_hidden": model.ffn,
                "heads": model.heads,
            },
            options={
                **traced.options, "kernels": self.kernels, "schedule": self.schedule,
                "virtual_pipeline": parallel.virtual_stages,
            },
        )  # fmt: skip
        return replace(made, workload=workload, programs=tuple(map(self._holding, made.programs)))

    def _holding(self, program: Program) -> Program:
        """The program with its activations as the traced program held them."""
        if not self.held:
            return program
        place = 0 if program.stage == 0 else 2 if program.stage == self.parallel.pp - 1 else 1
        saved, besides = (
            ratio * size
            for ratio, size in zip(self.held[place], self.saved_bytes(program.stage), strict=True)
        )
        activations = round(saved + besides)
        memory = replace(
            program.memory, activations_peak=activations, peak=program.memory.static + activations
        )
        return replace(program, memory=memory)

    def saved_bytes(self, stage: int) -> tuple[int, int]:
        """In closed form, what a stage holds of forwards at its peak, and what its largest piece saves."""
        job = Job(self.model, self.parallel, self.training, self.software)
        actions = schedule_of(self.parallel, self.num_microbatches)[0][stage]
        pieces = [piece for chunk in job.chunks[stage] for piece in chunk.pieces]
        largest = max(sum(kernel.saved_bytes for kernel in piece.forward) for piece in pieces)
        return estimate_memory(job, stage, actions).in_flight, largest


def described(workload: Workload, kernels: str) -> TracedGpt:
    """What a Megatron-Core GPT was traced as, launched with the ``kernels`` of a build.

    InputError for any other program: nothing is known of its structure.
    """
    model, options = workload.model, {**_UNSAID, **workload.options}
    known = ("layers", "hidden", "ffn_hidden", "heads", "seq", "vocab")
    if workload.framework.startswith("generated"):
        raise InputError(
            "changes a traced program; a described job is asked again: --set parallel.tp=..., in Python"
            " job.changed(parallel=...)"
        )
    if workload.framework != "megatron-core" or any(not isinstance(model.get(key), int) for key in known):
        raise InputError(
            f"needs a traced Megatron GPT program; the structure of {workload.name!r}"
            f" ({workload.framework or 'unknown framework'}) is not known"
        )
    try:
        return _described(workload, kernels, options)
    except (InputError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{workload.name!r} is no Megatron GPT program as it says: {reason}") from None


def _described(workload: Workload, kernels: str, options: dict[str, Any]) -> TracedGpt:
    dims, model = workload.dims, workload.model
    pp, chunks = dims.get("pp", 1), options["virtual_pipeline"]
    parallel = ParallelSpec(
        tp=dims.get("tp", 1), pp=pp, dp=dims.get("dp", 1), cp=dims.get("cp", 1), ep=model.get("ep", 1),
        stage_layers=_uneven(workload), sequence_parallel=options["sequence_parallel"],
        virtual_stages=chunks, schedule="interleaved" if chunks > 1 else "1f1b",
    )  # fmt: skip
    training = TrainingSpec(
        micro_batch=workload.micro_batch_size, seq=workload.seq_len,
        precision=workload.precision,
        global_batch=workload.num_microbatches * workload.micro_batch_size * parallel.dp,
        recompute=options["recompute"],
        param_gather_dtype=workload.precision,
        optimizer_bytes_per_parameter=8 if workload.precision == "fp32" else 12,
        sharding="zero1" if options["distributed_optimizer"] else "ddp",
        overlap_grad_reduce=options["overlap_grad_reduce"],
        overlap_param_gather=options["overlap_param_gather"], overlap_p2p=chunks > 1,
    )  # fmt: skip
    # The tracing recipe does not pad the vocabulary; Megatron's default dropout is 0.1.  Its experts are
    # products one by one with a GELU that is not fused, its router works step by step.
    software = SoftwareSpec(
        attention=_attention(workload, kernels, parallel.cp), vocab_multiple=1,
        bias_activation_fusion="num_experts" not in model, moe_grouped_gemm=False, moe_permute_fusion=False,
        moe_router_fp32=False, moe_weighted_early=True,
    )  # fmt: skip
    experts = None
    if "num_experts" in model:
        experts = MoeSpec(
            num_experts=model["num_experts"], top_k=model["moe_top_k"], ffn=model["ffn_hidden"], bias=True
        )
    spec = ModelSpec(
        name=workload.name, layers=model["layers"], hidden=model["hidden"], heads=model["heads"],
        ffn=model["ffn_hidden"], vocab=model["vocab"], dropout=0.1, moe=experts,
    )  # fmt: skip
    return TracedGpt(workload, spec, parallel, training, software, kernels)


def _uneven(workload: Workload) -> tuple[int, ...]:
    """Layers of each stage where the first or the last has a number of its own; empty where all are alike."""
    pp, layers = workload.dims.get("pp", 1), workload.model["layers"]
    first, last = (workload.options.get(f"{end}_stage_layers", 0) for end in ("first", "last"))
    if not first and not last:
        return ()
    each = (layers - first - last) // (pp - (first > 0) - (last > 0))
    between = [each] * (pp - 2)
    return (first or each, *between, last or each)


def _attention(workload: Workload, kernels: str, cp: int) -> AttentionKernels:
    """Attention of a build; the "megatron" one runs it step by step, but under context parallelism."""
    if kernels == "megatron" and cp == 1:
        return "unfused"
    if workload.precision == "fp32":
        return "efficient"
    return "cudnn" if kernels == "cudnn" else "flash"


def checked(traced: Graph, job: TracedGpt) -> TracedGpt:
    """``job`` with what the traced graph holds.

    InputError where ``job`` does not give the traced graph again: a stage and what differs there.
    """
    if job.kernels == "unfused":
        raise InputError(
            "a program is generated with the kernels of a build, not unfused: set workload.kernels to"
            " megatron, flash or cudnn"
        )
    graphs = apply_kernels(traced, job.kernels), job.graph()
    was, made = map(_facts, graphs)
    for stage, facts in was.items():
        for what in sorted(set(facts) | set(made[stage]), reverse=True):
            if abs(made[stage][what] - facts[what]) > _SAME.get(what, _SAME_BYTES) * facts[what]:
                raise InputError(
                    "the description of the traced program does not give it again: on a rank of stage"
                    f" {stage} {facts[what]} {what}, generated {made[stage][what]}"
                )
    held = []
    last = job.parallel.pp - 1
    for stage in (0, min(1, max(0, last - 1)), last):
        memory = next(one for one in peak_memory(graphs[0]) if one.stage == stage)
        # Where only the peak is known, all of it is taken for saved.
        in_flight = memory.in_flight if memory.peak_instance >= 0 else memory.activations
        saved, largest = job.saved_bytes(stage)
        held.append((in_flight / saved, (memory.activations - in_flight) / largest))
    return replace(job, held=tuple(held))


def _facts(graph: Graph) -> dict[int, Counter[str]]:
    """Of a rank of each stage: flops, kernels and their bytes, and bytes of each kind of communication."""
    ops, found = graph.ops, {}
    moved = ops.bytes_read + ops.bytes_written
    for program in graph.programs:
        if program.stage in found:
            continue
        rows = graph.flat_ops(program).row
        kernels = rows[ops.kind[rows] == OpKind.COMPUTE]
        counted = kernels[~ops.name.equals(_MASKED)[kernels]]
        facts = Counter(
            flops=int(ops.flops[rows].sum()), kernels=len(kernels), bytes=int(moved[counted].sum())
        )
        for row in rows[is_communication(ops.kind[rows])].tolist():
            among = f" among {graph.groups[ops.group[row]].size}" if ops.collective[row] else ""
            facts[f"bytes of {ops.name[row]}{among}"] += int(ops.num_bytes[row])
        found[program.stage] = facts
    return found
