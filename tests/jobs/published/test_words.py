"""Words that tables use for precision, recomputation, sharding, boards and networks."""

from __future__ import annotations

import pytest

from simcore.errors import InputError
from simcore.hardware import load_cluster, load_gpu
from workloads.jobs.published import RunRow, describe, measured_step_s, notes_of, oddity
from workloads.jobs.published.cluster import cluster_of
from workloads.jobs.published.sharding import resharding

_LLAMA = {
    "id": "r1", "family": "new", "model": "Llama-2 7B", "seq": "4096", "gpus": "16", "gpu_type": "H100",
    "tp": "1", "pp": "1", "global_batch": "64", "micro_batch": "2", "precision": "bf16",
    "recompute": "none", "metric": "step_time_s", "value": "5", "quality": "A",
}  # fmt: skip


def _row(**changes: str) -> RunRow:
    return RunRow(2, {**_LLAMA, **changes})


@pytest.mark.parametrize(
    ("column", "text", "field", "value"),
    [
        ("precision", "Float8 (delayed)", "precision", "fp8"),
        ("precision", "bfloat16 mixed", "precision", "bf16"),
        ("precision", "posits", "precision", "bf16"),  # what nobody foresaw: the preset's
        ("recompute", "uniform, 1 layer", "recompute", "full"),
        ("recompute", "activation checkpointing on", "recompute", "full"),
        ("recompute", "core attention", "recompute", "selective"),
        ("recompute", "off", "recompute", "none"),
        ("zero_fsdp", "ZeRO stage 2", "sharding", "zero2"),
        ("zero_fsdp", "DDP", "sharding", "ddp"),
        ("zero_fsdp", "FSDP2 (full shard)", "sharding", "fsdp2"),
        ("zero_fsdp", "dist-optimizer", "sharding", "zero1"),
        ("precision", "16-mixed", "precision", "fp16"),
        ("precision", "float32", "precision", "fp32"),
        ("precision", "FP8-CS", "precision", "fp8"),
        ("recompute", "not used", "recompute", "none"),
        ("recompute", "per-op SAC", "recompute", "ops"),
        ("recompute", "minimal", "recompute", "selective"),
        ("recompute", "norm, act", "recompute_modules", ("layernorm", "moe_act")),
        (
            "recompute",
            "mla_up_proj, mlp, shared_expert",
            "recompute_modules",
            ("mla_up_proj", "mlp", "shared_experts"),
        ),
        ("recompute", "router", "recompute", "none"),
        ("recompute", "custom remat", "recompute", "full"),
        ("recompute", "uniform 4", "recompute_layers", -1),
        ("recompute", "full, every 2nd layer", "recompute_layers", 16),
        ("recompute", "full (1 of 4 layers)", "recompute_layers", 8),
        ("recompute", "block 10", "recompute_layers", 10),
        ("recompute", "25% of layers", "recompute_layers", 8),
        ("recompute", "full, block method, num layers 99", "recompute_layers", 32),  # as many as there are
        ("recompute", "selective layer 2", "recompute_layers", 16),
        ("zero_fsdp", "none", "sharding", "ddp"),
        ("zero_fsdp", "NO_SHARD", "sharding", "ddp"),
        ("zero_fsdp", "optimizer state sharding", "sharding", "zero1"),
        ("zero_fsdp", "ZeRO Stage 3 (DeepSpeed)", "sharding", "zero3"),
        ("zero_fsdp", "HYBRID_SHARD", "sharding", "fsdp1"),
        ("zero_fsdp", "SHARD_GRAD_OP", "reshard_after_forward", False),
        ("zero_fsdp", "dp_shard 8 dp_replicate 2", "sharding", "fsdp2"),
        ("zero_fsdp", "Megatron-FSDP", "sharding", "zero3"),
    ],
)
def test_words_that_tables_may_use(column: str, text: str, field: str, value: object) -> None:
    (case,) = describe(_row(**{column: text})).cases
    assert getattr(case.training, field) == value


@pytest.mark.parametrize(("column", "text", "field", "value"), [
    ("precision", "FP8-CS", "fp8_recipe", "current"), ("precision", "fp8_sc", "fp8_recipe", "blockwise"),
    ("precision", "MXFP8", "fp8_recipe", "mxfp8"), ("precision", "fp8 delayed", "fp8_recipe", "delayed"),
    ("overlap_notes", "DeepEP", "moe_dispatcher", "alltoall"),  # a dense model dispatches nothing
])  # fmt: skip
def test_words_that_choose_kernels(column: str, text: str, field: str, value: str) -> None:
    (case,) = describe(_row(**{"precision": "fp8", column: text})).cases
    assert getattr(case.software, field) == value


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("FSDP 8 + DP", 8), ("FSDP2 4", 4), ("HSDP", 8), ("FSDP2 (HSDP)", 8), ("HSDP 4x4", 4),
        ("HSDP 8x2", 2), ("dp_shard 4 dp_replicate 4", 4), ("FSDP, shard size 2", 2), ("FSDP", 0),
        ("FSDP2 64", 0),
        ("FSDP 5", 0),
    ],
)  # fmt: skip
def test_over_how_many_ranks_parameters_are_sharded(text: str, ranks: int) -> None:
    # 16 ranks; a number that does not divide them says nothing.
    (case,) = describe(_row(zero_fsdp=text)).cases
    assert case.parallel.dp_shard == ranks


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "int4"}, "integers of 4 bits are not modelled"),
        ({"zero_fsdp": "ZeRO-Offload"}, "outside the GPU"),
        ({"model": "Mamba2-8b"}, "Mamba"),
        ({"model": "Zebra-9"}, "hidden is not given"),
        ({"gpu_type": "MI250X"}, "no profile for GPU 'MI250X'; known: .*h100"),
        ({"gpu_type": "MI300A"}, "no profile for GPU 'MI300A'"),
        ({"model": "DeepSeek-V3.2"}, "keys that an indexer chooses"),
        ({"model": "Mistral Large 3"}, "dimensions are not known"),
        ({"model": "FLUX.1-schnell"}, "no language model: diffusion"),
        ({"model": "dlrm_dcnv2"}, "a recommender: a table with throughput_samples_s"),
    ],
)
def test_what_is_not_modelled_is_refused_with_its_reason(changes: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        describe(_row(**changes))


@pytest.mark.parametrize(
    ("changes", "cluster", "die"),
    [
        ({"gpu_type": "NVIDIA H100 80GB HBM3"}, "h100-16", "gh100"),
        ({"gpu_type": "A100-SXM4-40GB"}, "a100-40gb-16", "ga100"),
        ({"gpu_type": "A100-SXM4-40GB", "notes": "4 GPUs per node"}, "hgx4-a100-16", "ga100"),
        ({"gpu_type": "H20"}, "h20-16", "gh100"),
        ({"gpu_type": "AMD Instinct MI300"}, "mi300x-16", "mi300"),
        ({"gpu_type": "MI355_8x"}, "mi355x-16", "mi350"),
        ({"gpu_type": "A10"}, "a10-16", ""),
        ({"gpu_type": "Tesla V100-SXM2-32GB"}, "dgx1v-16", ""),
    ],
)
def test_boards_as_tables_write_them(changes: dict[str, str], cluster: str, die: str) -> None:
    (case,) = describe(_row(**changes)).cases
    assert (case.cluster, case.die) == (cluster, die)


def test_networks_as_tables_write_them() -> None:
    def network(notes: str) -> dict[str, str]:
        return dict(describe(_row(notes=notes)).cases[0].overrides)

    plain = network("")
    assert network("8x400G IB") == plain  # what the profile has
    # H100 nodes have 8 ports: 1,600 Gb/s of a node are 200 of each.
    assert network("1600 Gb/s per node")["cluster.nic_bytes_per_s"] == "200.0Gb/s"
    four = network("4 x 200 Gb/s")
    assert (four["cluster.nics_per_node"], four["cluster.nic_bytes_per_s"]) == ("4", "200Gb/s")


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"zero_fsdp": "FSDP"}, "software: FSDP, nothing said of torch.compile"),
        ({"zero_fsdp": "ZeRO-3"}, "predicted as deepspeed"),
        ({"gpu_type": "V100"}, "predicted as megatron-lm-2021"),
        ({"gpu_type": "V100"}, "its clock under load is taken as rated"),
        ({"moe_experts": "8", "moe_topk": "2", "ffn": "1024"}, "experts, no software named"),
        ({"model": "Zebra", "hidden": "1024", "layers": "4", "ffn": "4096"}, "heads are not given"),
        ({"model": "Zebra", "hidden": "1024", "layers": "4", "ffn": "4096"}, "vocab is not given: 51200"),
        ({"dp": "7"}, "dp 7: 16 is what tp, pp and cp leave"),
        ({"gpu_type": "H100 PCIe"}, "H100-PCIe-80GB: its clock under load is what its power limit leaves it"),
        ({"gpu_type": "GH200"}, "predicted as H200"),
        ({"recompute": "partial"}, "recompute 'partial': as the preset"),
    ],
)
def test_what_was_taken_for_granted_is_said(changes: dict[str, str], note: str) -> None:
    assert any(note in said for said in notes_of(_row(**changes)))


def test_nothing_is_said_of_a_row_that_says_all() -> None:
    assert notes_of(_row(source_repo_or_paper="Megatron-LM README", dp="16")) == []


@pytest.mark.parametrize(
    ("changes", "preset"),
    [
        ({"source_repo_or_paper": "NVIDIA/NeMo 25.02 performance summary"}, "nemo-dgxc"),
        ({"source_repo_or_paper": "NeMo 23.08"}, "nemo-24.07"),
        ({"source_repo_or_paper": "NeMo Megatron 22.11", "gpu_type": "A100"}, "megatron-lm-2022"),
        ({"source_repo_or_paper": "EleutherAI/gpt-neox", "zero_fsdp": "ZeRO-1"}, "megatron-deepspeed"),
        ({"source_repo_or_paper": "a paper, arXiv 2104.12345", "gpu_type": "A100"}, "megatron-lm-2021"),
        ({"source_repo_or_paper": "a paper, arXiv 2210.02414", "gpu_type": "A100"}, "megatron-lm-2022"),
        ({"gpu_type": "A100", "precision": "fp16"}, "megatron-lm-2022"),
        ({"gpu_type": "A100", "precision": "bf16"}, "megatron-lm-2023"),
        ({"zero_fsdp": "FSDP", "overlap_notes": "torch.compile"}, "fms-fsdp"),
        ({"zero_fsdp": "FSDP2", "overlap_notes": "eager"}, "torchtitan-fsdp2-eager"),
        ({"zero_fsdp": "FSDP2", "overlap_notes": "TE + DeepEP"}, "nemo-automodel"),
        ({"zero_fsdp": "FSDP", "tp": "8"}, "torchtitan-fsdp2"),
        (
            {"zero_fsdp": "Megatron-FSDP on", "moe_experts": "8", "moe_topk": "2", "ffn": "1024"},
            "megatron-moe-zoo-fsdp",
        ),
        ({"zero_fsdp": "FSDP FULL_SHARD mp_mode=PURE"}, "mosaic-fsdp"),
        ({"overlap_notes": "JAX, XLA latency hiding", "gpu_type": "A100"}, "pax-xla"),
        ({"moe_experts": "8", "moe_topk": "2", "ffn": "1024", "overlap_notes": "DeepEP"}, "megatron-moe-zoo"),
        ({"source_repo_or_paper": "Hugging Face Trainer"}, "deepspeed"),
    ],
)
def test_software_is_known_by_its_words(changes: dict[str, str], preset: str) -> None:
    assert describe(_row(**changes)).preset == preset


@pytest.mark.parametrize(
    ("metric", "value", "seconds"),
    [
        # 64 samples of 4,096 tokens a step on 16 GPUs
        ("step_time_s", 5, 5.0), ("step_time_ms", 5000, 5.0), ("iteration_time_ms", 5000, 5.0),
        ("s/step", 5, 5.0), ("seconds_per_iteration", 5, 5.0), ("steps_per_s", 0.2, 5.0), ("it/s", 0.2, 5.0),
        ("samples/s", 12.8, 5.0), ("sequences_per_s", 12.8, 5.0), ("samples_per_s_per_gpu", 0.8, 5.0),
        ("tokens/s", 65536, 4.0), ("tokens_per_s_total", 65536, 4.0), ("Tokens/s/GPU", 4096, 4.0),
        ("tokens_per_gpu_per_s", 4096, 4.0), ("TGS", 4096, 4.0),
    ],
)  # fmt: skip
def test_rates_become_seconds(metric: str, value: float, seconds: float) -> None:
    row = _row(metric=metric, value=str(value))
    model = describe(row).cases[0].model
    assert measured_step_s(row, model, load_gpu("h100-sxm")) == pytest.approx(seconds)


def test_shares_of_the_peak_become_seconds() -> None:
    model, gpu = describe(_row()).cases[0].model, load_gpu("h100-sxm")

    def seconds(metric: str, value: str, **more: str) -> float:
        return measured_step_s(_row(metric=metric, value=value, **more), model, gpu)

    rate = seconds("tflops_per_gpu", "400")
    assert seconds("TFLOP/s/GPU", "400") == seconds("model_tflops", "400") == rate
    assert seconds("pflops_total", "6.4") == pytest.approx(rate)  # 16 x 400 TFLOP/s
    share = seconds("mfu_percent", "40")
    assert share == pytest.approx(rate * 400e12 / (0.4 * gpu.peak_flops["bf16"]))
    assert seconds("MFU", "0.4") == seconds("mfu", "40") == pytest.approx(share)
    assert seconds("hfu_percent", "40") == pytest.approx(share)  # nothing is recomputed
    assert seconds("HFU", "0.4", recompute="full") == pytest.approx(share * 4 / 3)
    with pytest.raises(InputError, match="unknown metric 'loss'; known: step_time_s"):
        seconds("loss", "2")


def test_odd_rows_are_known_without_their_family() -> None:
    """Rules look at what a row says, not at the name that somebody gave its group."""
    source = "bigscience-workshop/bigscience BLOOM-176B prequel chronicles"
    assert oddity(_row(family="held out", source_repo_or_paper=source, hidden="14336", heads="112"))
    assert oddity(_row(family="held out", hidden="13824", heads="128"))  # heads of 108
    assert not oddity(_row(family="held out", hidden="4096", heads="32"))


def test_parameters_gathered_in_fp8_were_cast_by_their_owners():
    words = {"precision": "fp8", "zero_fsdp": "FSDP2", "overlap_notes": "torch.compile + float8 all-gather"}
    (case,) = describe(_row(**words)).cases
    assert (case.training.param_gather_dtype, case.software.fp8_weight_cast) == ("fp8", "never")
    (case,) = describe(_row(**{**words, "overlap_notes": "torch.compile"})).cases
    assert (case.training.param_gather_dtype, case.software.fp8_weight_cast) == ("bf16", "every")


@pytest.mark.parametrize(
    ("notes", "schedule", "chunks"),
    [
        ("DualPipe", "dualpipe_v", {2}), ("DualPipeV", "dualpipe_v", {2}), ("ZB-V", "zb_v", {2}),
        ("zero bubble", "zero_bubble", {1}),
        ("GPipe", "gpipe", {1}), ("1F1B", "1f1b", {1}), ("", "1f1b", {1, 2, 4, 8}),
        ("interleaved 1F1B", "1f1b", {1, 2, 4, 8}), ("1F1B overlap of a2a", "1f1b", {1, 2, 4, 8}),
    ],
)  # fmt: skip
def test_schedules_are_known_by_their_words(notes: str, schedule: str, chunks: set[int]) -> None:
    """Chunks that nobody publishes are a band, unless the schedule tells."""
    said = {"pp": "4", "overlap_notes": notes, "quality": "B", "recompute": "none", "vpp": ""}
    cases = describe(_row(zero_fsdp="FSDP2, no reshard after forward", **said)).cases
    assert {case.parallel.schedule for case in cases} == {schedule}
    assert {case.parallel.virtual_stages for case in cases} == chunks
    assert not any(case.training.reshard_after_forward for case in cases)
    # Whether FSDP2 keeps what it gathered where there are pipelines is open, too.
    cases = describe(_row(zero_fsdp="FSDP2", **said)).cases
    assert {case.training.reshard_after_forward for case in cases} == {False, True}
    assert {case.parallel.virtual_stages for case in cases} == {min(chunks), max(chunks)}


def test_experts_of_a_public_model_choose_the_software() -> None:
    assert describe(_row(model="Mixtral 8x7B")).preset == "megatron-core-moe"
    assert describe(_row(model="Mixtral 8x7B", moe_experts="0")).preset == "megatron-core"


@pytest.mark.parametrize(
    ("notes", "style"),
    [("all-gather based CP", "all_gather"), ("CP by ring", "ring"), ("Ulysses", "ulysses"), ("", "ring")],
)
def test_exchanges_of_context_parallelism_are_known_by_their_words(notes: str, style: str) -> None:
    (case,) = describe(_row(cp="2", overlap_notes=notes)).cases
    assert case.parallel.cp_style == style


def test_layers_that_leave_room_for_both_ends_count_them() -> None:
    # 126 layers and two ends on 16 stages of 8 chunks: one layer each.
    row = _row(model="Llama-3.1 405B", gpus="128", tp="8", pp="16", vpp="8", quality="A", global_batch="32")
    (case,) = describe(row).cases
    assert case.parallel.embedding_as_layer and case.parallel.head_as_layer
    assert not describe(_row(pp="4")).cases[0].parallel.embedding_as_layer  # 32 layers divide as they are


@pytest.mark.parametrize(
    ("gpu", "notes", "cluster", "board"),
    [
        ("A100-40GB", "1600 Gb/s RoCE per node", "a100-roce-16", "a100-40gb"),
        ("A100-80GB", "4 x 100 Gb/s EFA", "a100-efa-16", "a100"),
        ("H200", "p5e.48xlarge, EFA", "h100-efa-16", "h200"),
        ("H100", "GCP A3 Mega", "h100-tcpxo-16", "h100"),
        ("H100", "GPUDirect-TCPX", "h100-tcpx-16", "h100"),
        ("H100", "NDR InfiniBand", "h100-16", "h100"),
        ("V100", "EFA", "dgx1v-16", "dgx1v"),
    ],
)
def test_a_named_fabric_chooses_the_cluster_and_keeps_the_board(
    gpu: str, notes: str, cluster: str, board: str
) -> None:
    found, name, overrides = cluster_of(_row(gpu_type=gpu, notes=notes))
    assert (found, name) == (board, cluster)
    # The clocks, memory and rates of the board that the row names.
    assert load_cluster(name, overrides).gpu == load_cluster(board).gpu


@pytest.mark.parametrize(
    ("said", "pipeline", "expected"),
    [
        ("FSDP (ZeRO-1/2 style)", True, (False,)), ("FSDP, no reshard after forward", True, (False,)),
        ("SHARD_GRAD_OP", False, (False,)), ("FULL_SHARD", True, (True,)), ("FSDP (ZeRO-3)", True, (True,)),
        ("FSDP2", True, (False, True)), ("FSDP2", False, (None,)),
    ],
)  # fmt: skip
def test_whether_fsdp_gathers_again_follows_from_words_and_pipeline(
    said: str, pipeline: bool, expected: tuple[bool | None, ...]
) -> None:
    assert resharding(said, pipeline=pipeline) == expected


def test_fsdp_beside_tensor_and_pipeline_parallelism_is_as_llama_3_has_it() -> None:
    """arXiv 2407.21783, section 3.3.2: gathered once a step; keys and values are gathered over cp."""
    words = {"zero_fsdp": "FSDP (ZeRO-1/2 style)", "tp": "8", "pp": "2", "cp": "2", "gpus": "64"}
    band = describe(_row(**words))
    assert band.preset == "llama3-herd"
    assert {c.training.sharding for c in band.cases} == {"fsdp2"}
    assert not any(c.training.reshard_after_forward for c in band.cases)
    assert {c.parallel.cp_style for c in band.cases} == {"all_gather"}


def test_rows_that_name_deepseeks_stack_run_dualpipe() -> None:
    words = {
        "model": "DeepSeek-V3", "source_repo_or_paper": "DeepSeek-V3 technical report (arXiv 2412.19437)",
        "layers": "61", "hidden": "7168", "heads": "128", "kv_heads": "", "ffn": "", "moe_experts": "256",
        "moe_topk": "8", "gpus": "2048", "gpu_type": "H800", "tp": "1", "pp": "16", "ep": "64", "seq": "4096",
        "micro_batch": "1", "global_batch": "15360", "zero_fsdp": "ZeRO-1", "precision": "fp8",
        "recompute": "RMSNorm, MLA up-projections", "overlap_notes": "DualPipe", "vpp": "", "dp": "128",
        "quality": "A",
    }  # fmt: skip
    band = describe(_row(**words))
    (case,) = band.cases
    assert (band.preset, case.parallel.schedule, case.microbatches) == ("deepseek-v3", "dualpipe", 120)
    # 61 layers, embedding, head and the predicted token are 64 on 16 stages.
    assert case.parallel.stage_layers == (3, *[4] * 14, 2)
    assert case.training.recompute_modules == ("layernorm", "mla_up_proj")
    assert case.software.moe_exchange_sms == 20


@pytest.mark.parametrize(
    ("notes", "rank", "targets"),
    [
        ("LoRA r16 on attention projections", 16, "linear_qkv|linear_proj"),
        ("LoRA, rank 8", 8, "linear_qkv"),
        ("PEFT", 32, "linear_qkv"),  # NeMo's default rank, and what its recipes target
    ],
)
def test_adapters_are_as_their_words_say(notes: str, rank: int, targets: str) -> None:
    training = describe(_row(notes=notes)).cases[0].training
    assert (training.trainable, training.lora_rank, training.lora_targets) == ("lora", rank, targets)


def test_attention_in_fp8_is_read_where_the_precision_says_so() -> None:
    said = describe(_row(precision="fp8 (delayed, fp8 attention)")).cases[0].software
    assert (said.fp8_attention, said.fp8_recipe) == (True, "delayed")
    assert not describe(_row(precision="fp8 (delayed)")).cases[0].software.fp8_attention
    for flag, on in (("FP8_DPA=1", True), ("FP8_DPA=0", False)):
        assert describe(_row(precision="fp8", overlap_notes=flag)).cases[0].software.fp8_attention == on


def test_a_split_that_a_table_assumed_is_open() -> None:
    notes = "tp*pp*cp=4 derived from GBS, GA and GPU count; split tp=4 cp=1 assumed"
    band = describe(_row(tp="4", cp="1", sp="no", quality="B", notes=notes))
    assert "split" in band.unpublished
    splits = {(case.parallel.tp, case.parallel.cp) for case in band.cases}
    assert (4, 1) in splits and len(splits) > 1 and all(tp * cp == 4 for tp, cp in splits)
    assert {case.parallel.dp for case in band.cases} == {4}
    known = describe(_row(tp="4", cp="1", sp="no", quality="A", notes=notes))
    assert {(case.parallel.tp, case.parallel.cp) for case in known.cases} == {(4, 1)}


@pytest.mark.parametrize(
    ("notes", "beside_products", "gradients"),
    [("no TP, DP or PP overlap (all off)", False, False), ("no TP overlap", False, True), ("", True, True)],
)  # fmt: skip
def test_what_does_not_overlap_is_read(notes: str, beside_products: bool, gradients: bool) -> None:
    found = describe(_row(tp="8", sp="yes", overlap_notes=notes)).cases[0].training
    assert (found.tp_overlap, found.overlap_grad_reduce) == (beside_products, gradients)
