"""One truth for PyTorch, DeepSpeed and Hugging Face: a description generates what tracing the program gives.

For each case of ``traced_cases``: products, attention and collectives come in the same order, each kernel has
another with the same flops and bytes on the same kind of stream, and the same ops wait for collectives.
Where they may differ, and why:

- Of a product's two gradients autograd computes the weight's first, a description the input's.
- FSDP: a trace issues a layer's gather when the host reaches the layer, a description one layer ahead; both
  are on the gathers' own stream, which waits for no compute, so they start alike.
- FSDP2: torch reshards the last layer after its forward and gathers it again at once; a description keeps it
  through the turn, as torchtitan tells torch to.
- FSDP: casts of shards before a gather and after a reduction, and adding up shards, run beside compute and
  move a part of a unit that is one over the number of ranks; a description leaves them out.
- DDP and DeepSpeed copy gradients to and from buckets parameter by parameter, a description bucket by bucket;
  DeepSpeed also copies out what a rank owns, an eighth here.
- ZeRO-3 gathers and reduces as much at once as its buckets hold, a description layer by layer.
- torch.compile fuses residual sums into norms, and leaves the activation of a gate apart from its product
  where another product is issued between them; a description does neither.
- Tensor parallelism: each of torch's column-parallel layers sums its own input's gradient, five in a layer;
  a description adds the gradients of one input up first, as Megatron does and torchtitan's
  PrepareModuleInput: twice in a layer.  The script's head is whole on each rank, a description splits it.
- Hugging Face's Trainer trains in autocast: residual, norms and casts of weights are in fp32, and its DDP
  looks for unused parameters, which keeps buckets in the order of declaration.  So products, attention and
  what is communicated are compared, not what runs between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.models.listing import Line, Listing, in_order, read, unmatched
from tests.models.traced_cases import CASES, FOLDER, MODEL, trace
from workloads.tracing.drive.fork_server import WorkerPool

PASSES = ("fwd", "bwd")
TRAINERS = tuple(name for name in CASES if name.startswith("trainer"))
COMPILED = tuple(name for name in CASES if name.endswith("compile"))
SHARDED = tuple(name for name in CASES if "fsdp" in name or name == "hsdp")
#: Cases compared kernel by kernel.
EXACT = tuple(name for name in CASES if name not in (*TRAINERS, *COMPILED, "tp"))
#: Names, without their overload, of copies to and from buckets, compared by the bytes that all of them move.
BUCKETS = ("mul", "mul_", "div_", "copy_", "cat", "split_with_sizes_copy", "chunk_cat")
#: What torch does to shards, beside compute.
SHARDS = ("copy_", "_foreach_copy_", "all_gather_copy_in", "div_", "_to_copy", "add_")
#: One case of each framework and kind, traced anew by the tests; all others by ``traced_cases``.
ANEW = ("ddp-accumulate", "ddp-lora", "fsdp1", "fsdp2-checkpoint-ops", "fsdp2-compile", "tp", "zero2")
ACTIVATION = 2 * 128 * 256 * 2  # bytes of a microbatch of the small Llama


def compared(case: str) -> tuple[Listing, Listing]:
    """What is kept of the traced step, and what the description generates."""
    return read(FOLDER / f"{case}.csv"), CASES[case].made()


def each_pass(case: str, kind: str) -> list[tuple[list[Line], list[Line]]]:
    """(traced, made) forwards or backwards; there are as many."""
    traced, made = compared(case)
    return list(zip(traced.passes(kind), made.passes(kind), strict=True))


def bare(line: Line) -> str:
    return line.name.partition("::")[2].partition(".")[0]


def calls(lines: Sequence[Line], *kinds: str) -> list[tuple[str, int, int]]:
    return [(x.collective, x.ranks, x.num_bytes) for x in lines if x.collective and x.collective in kinds]


def without(lines: Sequence[Line], *kinds: str) -> list[Line]:
    return [line for line in lines if not line.collective or line.collective not in kinds]


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("tp", "zero3", "trainer-ddp")])
@pytest.mark.parametrize("kind", PASSES)
def test_products_and_reductions_come_in_the_same_order(case: str, kind: str) -> None:
    for traced, made in each_pass(case, kind):
        assert in_order(without(traced, "all_gather")) == in_order(without(made, "all_gather"))


@pytest.mark.parametrize("case", SHARDED)
def test_fsdp_gathers_the_same(case: str) -> None:
    for traced, made in each_pass(case, "fwd"):
        assert calls(traced, "all_gather") == calls(made, "all_gather")
    for traced, made in each_pass(case, "bwd"):
        # Beside a head that is a unit of its own the last layer is a layer as any other.
        keeps = not (case.startswith("fsdp1") or CASES[case].training.get("fsdp_ends_apart"))
        last_layer = calls(traced, "all_gather")[:1] if keeps else []
        assert calls(traced, "all_gather") == last_layer + calls(made, "all_gather")


@pytest.mark.parametrize("case", EXACT)
@pytest.mark.parametrize("kind", PASSES)
def test_kernels_move_the_same_bytes(case: str, kind: str) -> None:
    for traced, made in each_pass(case, kind):
        missing, spare = unmatched(traced, made)
        if case in SHARDED:
            # FSDP2's copies of the last layer, gathered again, are on the compute stream.
            again = Counter({"split_with_sizes_copy": 1} if "fsdp1" not in case and kind == "bwd" else {})
            beside = [line for line in missing if line.stream != "compute"]
            assert {bare(line) for line in beside} <= set(SHARDS)
            assert Counter(bare(line) for line in missing if line.stream == "compute") == again
            assert spare == []
            continue
        assert {bare(line) for line in (*missing, *spare)} <= set(BUCKETS)
        moved = [sum(line.bytes_read + line.bytes_written for line in lines) for lines in (missing, spare)]
        # Per byte of gradients DeepSpeed copies an eighth more on eight ranks: a rank's own part.
        most = 9 / 8 if case.startswith("zero") else 1
        assert moved[1] <= moved[0] <= moved[1] * most


@pytest.mark.parametrize("case", [case for case in EXACT if not case.startswith("zero")])
@pytest.mark.parametrize("kind", PASSES)
def test_the_same_waits_for_collectives(case: str, kind: str) -> None:
    for traced, made in each_pass(case, kind):
        theirs, ours = ([line.waits for line in lines if line.waits] for lines in (traced, made))
        if case in SHARDED and kind == "bwd":
            # FSDP2 waits for the last layer's gather, again, as for any other.  FSDP1's others are waited for
            # along with the gradients of the layer before, which are put together behind them.
            if "fsdp1" in case:
                assert len(theirs) == 1
                del ours[1:]
            else:
                theirs.remove("all_gather")
        assert sorted(theirs) == sorted(ours)


def test_zero3_gathers_and_scatters_as_much() -> None:
    for kind, what in (("fwd", "all_gather"), ("bwd", "reduce_scatter")):
        for traced, made in each_pass("zero3", kind):
            assert in_order(without(traced, what)) == in_order(without(made, what))
            theirs, ours = (sum(size for _, _, size in calls(lines, what)) for lines in (traced, made))
            assert theirs == ours > 0
            assert {line.stream == "compute" for line in (*traced, *made) if line.collective} == {False}


@pytest.mark.parametrize("case", ["zero1", "zero2"])
def test_zero_below_3_shares_parameters_after_the_optimizer(case: str) -> None:
    whole = 2 * (2 * 1024 * 256 + 256 + 3 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256))
    for step in compared(case):
        gathers = [
            calls(lines, "all_gather") for name, lines in step.actions if name in ("finish", "optimizer")
        ]
        assert [call for found in gathers for call in found] == [("all_gather", 8, whole)]


@pytest.mark.parametrize("case", COMPILED)
@pytest.mark.parametrize("kind", PASSES)
def test_compiled_blocks_move_about_as_much(case: str, kind: str) -> None:
    for traced, made in each_pass(case, kind):
        moved = [
            sum(x.bytes_read + x.bytes_written for x in lines if not x.flops and x.stream == "compute")
            for lines in (traced, made)
        ]
        assert 0.85 * moved[1] <= moved[0] <= 1.1 * moved[1]


def test_ddp_of_the_trainer_reduces_as_much() -> None:
    for kind in PASSES:
        for traced, made in each_pass("trainer-ddp", kind):
            assert in_order(without(traced, "all_reduce")) == in_order(without(made, "all_reduce"))
            theirs, ours = (
                sum(size for _, _, size in calls(lines, "all_reduce")) for lines in (traced, made)
            )
            assert theirs == ours


def test_tensor_parallel_layers_are_the_same() -> None:
    ((theirs, ours),) = each_pass("tp", "fwd")
    in_layers = 8 * MODEL.layers  # seven products and attention
    flops = [[line.flops for line in lines if line.flops] for lines in (theirs, ours)]
    assert flops[0][:in_layers] == flops[1][:in_layers]
    activation = ("all_reduce", 4, ACTIVATION)
    assert calls(theirs, "all_reduce") == [activation] * 2 * MODEL.layers
    # The description's embedding is split, too, and its loss shares a few numbers a token.
    assert calls(ours, "all_reduce")[: 2 * MODEL.layers + 1] == [activation] * (2 * MODEL.layers + 1)
    ((theirs, ours),) = each_pass("tp", "bwd")
    flops = [[line.flops for line in lines if line.flops] for lines in (theirs, ours)]
    assert flops[0][2:] == flops[1][2:]
    assert calls(theirs, "all_reduce") == [activation] * 5 * MODEL.layers
    assert calls(ours, "all_reduce") == [activation] * (2 * MODEL.layers + 1)


def test_listings_are_what_tracing_gives(pool: WorkerPool) -> None:
    for name, found in trace(ANEW, pool):
        kept = read(FOLDER / f"{name}.csv")
        if found.versions != kept.versions:
            pytest.skip(f"listings are of {kept.versions}, installed is {found.versions}")
        assert found == kept, f"python -m tests.models.traced_cases {name}"
