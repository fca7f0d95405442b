"""What tensor, context and expert parallel ranks exchange in a layer, byte by byte."""

from __future__ import annotations

from collections import defaultdict

import pytest

from simcore.graph import OpKind
from tests.parallel.jobs import model, step
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate

SEQ, HIDDEN = 512, 256
#: Activations of the whole sequence between layers, bf16.
WHOLE = SEQ * HIDDEN * 2


def exchanged(
    phase: str, *, layers: int = 1, experts: int = 0, **changes
) -> dict[tuple[str, str], list[int]]:
    """(collective, group) -> sizes of one microbatch's exchanges inside layers; sends count their bytes."""
    parallel = ParallelSpec(**{k: v for k, v in changes.items() if k in ParallelSpec.model_fields})
    training = TrainingSpec(
        seq=SEQ,
        global_batch=parallel.dp,
        **{k: v for k, v in changes.items() if k in TrainingSpec.model_fields},
    )
    graph = generate(model(layers, experts=experts), parallel, training, SoftwareSpec())
    ops = graph.ops
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in graph.flat_ops(graph.programs[0]).row.tolist():
        inside = ".layers." in ops.module[row] and ops.phase[row] == phase
        if inside and ops.kind[row] in (OpKind.COLLECTIVE, OpKind.SEND):
            what = ops.collective[row] if ops.kind[row] == OpKind.COLLECTIVE else "send"
            found[what, ops.group[row]].append(int(ops.num_bytes[row]))
    return dict(found)


@pytest.mark.parametrize("phase", ["fwd", "bwd"])
def test_tensor_parallel_layers_reduce_twice_each_way(phase):
    # arXiv 1909.08053: one all_reduce each in attention and feed-forward block, forward and backward.
    assert exchanged(phase, tp=2) == {("all_reduce", "tp"): [WHOLE] * 2}


def test_sequence_parallelism_splits_the_all_reduces():
    # arXiv 2205.05198: reduce_scatter and all_gather instead; backward gathers both layers' inputs again.
    assert {k: sum(v) for k, v in exchanged("fwd", tp=2, sequence_parallel=True).items()} == {
        ("all_gather", "tp"): 2 * WHOLE,
        ("reduce_scatter", "tp"): 2 * WHOLE,
    }
    assert {k: sum(v) for k, v in exchanged("bwd", tp=2, sequence_parallel=True).items()} == {
        ("all_gather", "tp"): 4 * WHOLE,
        ("reduce_scatter", "tp"): 2 * WHOLE,
    }


def test_overlap_changes_streams_and_not_bytes():
    plain, overlapped = (
        exchanged("fwd", tp=2, sequence_parallel=True, tp_overlap=overlap) for overlap in (False, True)
    )
    # A sum that overlaps goes in parts.
    assert {k: sum(v) for k, v in plain.items()} == {k: sum(v) for k, v in overlapped.items()}


@pytest.mark.parametrize("cp", [2, 4])
def test_ring_attention_passes_keys_and_values_on(cp):
    # cp - 1 times the keys and values of a rank's slice; backward their gradients as well.
    each = 2 * WHOLE // cp
    assert exchanged("fwd", cp=cp) == {("send", "cp"): [each] * (cp - 1)}
    assert sum(exchanged("bwd", cp=cp)["send", "cp"]) >= 2 * each * (cp - 1)


def test_gathered_keys_and_values():
    assert exchanged("fwd", cp=4, cp_style="all_gather") == {("all_gather", "cp"): [WHOLE] * 2}
    assert exchanged("bwd", cp=4, cp_style="all_gather") == {("reduce_scatter", "cp"): [WHOLE] * 2}


def test_torch_gathers_twice_and_passes_gradients_on_in_fp32():
    cp = 4
    assert exchanged("fwd", cp=cp, cp_style="torch") == {("all_gather", "cp"): [2 * WHOLE]}
    # After each of cp pieces the gradients of a slice's keys and values: 4 bytes for 2.
    each = 2 * (2 * WHOLE // cp)
    found = exchanged("bwd", cp=cp, cp_style="torch")
    assert {k: v for k, v in found.items() if k[1] == "cp"} == {
        ("all_gather", "cp"): [2 * WHOLE], ("send", "cp"): [each] * cp,
    }  # fmt: skip


def test_compiled_context_parallelism_waits_where_it_communicates():
    """The same bytes; fewer kernels, and nothing runs beside exchanges."""

    def made(compiled: bool):
        return generate(
            model(1), ParallelSpec(cp=4, cp_style="torch"), TrainingSpec(seq=65536, global_batch=1),
            SoftwareSpec(compiled=compiled),
        )  # fmt: skip

    eager, compiled = made(False), made(True)
    assert len(compiled.ops) < len(eager.ops)

    def beside(graph):
        times = step(graph).times[0]
        flat = graph.flat_ops(graph.programs[0]).row
        overlap = 0
        streams = [graph.ops.stream[int(row)] for row in flat]
        work = [k for k, s in enumerate(streams) if s == "compute"]
        for k in (k for k, s in enumerate(streams) if s == "cp"):
            overlap += sum(
                max(0, min(times.end_ps[k], times.end_ps[w]) - max(times.start_ps[k], times.start_ps[w]))
                for w in work
            )  # fmt: skip
        return overlap

    assert beside(compiled) == 0 < beside(eager)


def test_ulysses_trades_tokens_for_heads():
    # Queries, keys and values before, the output after: four times a rank's slice.
    assert sum(exchanged("fwd", cp=4, cp_style="ulysses")["all_to_all", "cp"]) == 4 * WHOLE // 4


def test_context_parallel_work_is_even():
    """Attention flops of all ranks together: cp times a rank's are a causal half and the diagonal."""
    for style in ("ring", "all_gather", "torch"):
        flops = {}
        for cp in (1, 4):
            graph = generate(
                model(1), ParallelSpec(cp=cp, cp_style=style), TrainingSpec(seq=SEQ, global_batch=1),
                SoftwareSpec(),
            )  # fmt: skip
            ops = graph.ops
            rows = [r for r in range(len(ops)) if ops.op_class[r] == "attention_fwd"]
            # Of a causal kernel half of the flops are masked; "full" ones have none.
            flops[cp] = cp * sum(int(ops.flops[r]) // (1 if "_full" in ops.name[r] else 2) for r in rows)
        assert flops[4] == pytest.approx(flops[1], rel=0.15), style


@pytest.mark.parametrize(("tp", "etp", "ep"), [(1, 1, 2), (2, 1, 4), (2, 2, 2)])
def test_experts_see_every_token_top_k_times(tp, etp, ep):
    found = exchanged("fwd", tp=tp, etp=etp, ep=ep, dp=2, experts=4, sequence_parallel=True)
    # Two of four experts for every token that a rank holds; there and back.
    assert found["all_to_all", "ep"] == [2 * WHOLE // tp] * 2
    if etp > 1:
        assert sum(found["all_gather", "etp"]) == sum(found["reduce_scatter", "etp"])


def test_overlapped_exchanges_are_not_slower():
    def seconds(**training) -> int:
        made = generate(
            model(4), ParallelSpec(tp=4, sequence_parallel=True),
            TrainingSpec(seq=4096, global_batch=1, **training), SoftwareSpec(),
        )  # fmt: skip
        return step(made).step_ps

    assert seconds(tp_overlap=True) <= seconds()


@pytest.mark.parametrize("samples", [1, 2])
def test_slices_of_several_sequences_are_copied_into_order(samples):
    """Batch first: behind each gather, ahead of each scatter of more than one sequence."""
    training = TrainingSpec(seq=128, micro_batch=samples, global_batch=samples)
    made = generate(
        model(1), ParallelSpec(tp=2, sequence_parallel=True), training,
        SoftwareSpec(batch_first=True, gather_inputs_again=False),
    )  # fmt: skip
    ops, whole = made.ops, samples * 128 * 256 * 2  # bytes of the microbatch, bf16
    inside = [row for row in range(len(ops)) if ".layers." in ops.module[row]]
    exchanges = [row for row in inside if ops.group[row] == "tp" and ops.num_bytes[row] == whole]
    copies = [row for row in inside if ops.name[row] == "aten::cat" and ops.bytes_read[row] == whole]
    # Two gathers and two scatters in a layer's forward, as many in its backward.
    assert len(exchanges) == 8
    assert len(copies) == (8 if samples > 1 else 0)
