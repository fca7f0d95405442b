"""Rows of measured peaks as jobs: columns and flags are Megatron-LM's, what cannot be said is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simcore.errors import InputError
from workloads.jobs.launch.peaks import peak_jobs, read_peak_rows

ROW = {
    "test": "gpt/a", "platform": "dev_dgx_a100", "gpu": "A100-SXM-80GB", "world_size": "8.0",
    "reporting_rank": "last (world_size-1)", "max_allocated_bytes": "1000", "quality": "A",
    "model_kind": "gpt", "tp": "2", "pp": "2", "cp": "1", "micro_batch": "4", "global_batch": "32.0",
    "seq": "1024", "layers": "12.0", "hidden": "512", "heads": "8", "kv_heads": "8", "ffn": "2048",
    "vocab": "50257.0", "precision": "bf16", "grads": "fp32", "recompute": "none",
    "distributed_optimizer": "True", "sequence_parallel": "True", "transformer_impl": "transformer_engine",
}  # fmt: skip


def all_described(folder: Path, flags=None, **columns):
    columns = {**ROW, **columns, "other_flags": json.dumps(flags or {})}
    with (folder / "peaks.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerow(columns)
    (row,) = read_peak_rows(str(folder / "peaks.csv"))
    return peak_jobs(row)


def described(folder: Path, flags=None, **columns):
    (only,) = all_described(folder, flags, **columns)
    return only


def test_columns_and_flags_are_the_job_and_the_last_stage_reports(tmp_path):
    found = described(
        tmp_path, {"deterministic_mode": True, "cross_entropy_loss_fusion": True, "swiglu": False}
    )
    job = found.job
    assert (job.parallel.tp, job.parallel.pp, job.parallel.dp, found.stage) == (2, 2, 2, 1)
    assert (job.training.sharding, job.training.grad_dtype, job.model.vocab) == ("zero1", "fp32", 50257)
    assert (job.software.cross_entropy, job.software.deterministic, job.model.gated) == ("jit", True, False)
    # Before Hopper Transformer Engine takes flash-attn; cuBLAS keeps 8 x 4 MiB for each of two threads where
    # bits must be equal, Transformer Engine 4 MiB.
    assert job.software.attention == "flash2"
    assert job.software.workspace_bytes == (2 * 32 + 4) << 20


def test_workspaces_follow_from_the_gpu(tmp_path):
    # Without equal bits cuBLAS keeps 2 x 4 MiB and 8 x 16 KiB a thread, since Hopper 8 x 4 MiB; Transformer
    # Engine since Hopper 32 MiB and a KiB.
    usual, wide = 2 * ((8 << 20) + (128 << 10)), 2 * (32 << 20)
    for gpu, num_bytes in (
        ("A100-SXM-80GB", usual + (4 << 20)), ("H100-SXM-80GB", wide + (32 << 20) + 1024),
        ("B200-SXM-180GB", wide + (32 << 20) + 1024),
    ):  # fmt: skip
        assert described(tmp_path, gpu=gpu).job.software.workspace_bytes == num_bytes
    local = described(tmp_path, transformer_impl="local")
    assert local.job.software.workspace_bytes == usual


def test_an_encoder_decoder_has_two_stacks_and_extra_words(tmp_path):
    found = described(
        tmp_path, {"encoder_num_layers": 6, "decoder_num_layers": 4, "encoder_seq_length": 512,
                   "decoder_seq_length": 128, "vocab_extra_ids": 100},
        model_kind="t5", vocab="", vocab_note="tokenizer BertWordPieceCase", layers="", pp="1", seq="512",
    )  # fmt: skip
    model, training = found.job.model, found.job.training
    assert (model.family, model.layers, model.decoder_layers, model.vocab) == ("t5", 6, 4, 28_996 + 100)
    assert (training.seq, training.decoder_seq) == (512, 128)


def test_a_stage_that_is_named_and_the_allocator(tmp_path):
    found = described(tmp_path, pp_stage="0.0", alloc_conf="expandable_segments:True")
    assert (found.stage, found.job.software.allocator) == (0, "expandable_segments:True")


@pytest.mark.parametrize(
    ("flags", "columns", "reason"),
    [
        ({"hybrid_layer_pattern": "M-X*"}, {"layers": ""}, "no kind of layer"),
        ({"optimizer": "lion"}, {}, "lion"),
        ({"no_such_flag": 3}, {}, "no-such-flag"),
        ({}, {"cpu_offload": "[mlp]"}, "host memory"),
        ({}, {"layers": ""}, "layers"),
        ({}, {"precision": "bf16 + nvfp4"}, "nvfp4"),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_reason(tmp_path, flags, columns, reason):
    with pytest.raises(InputError, match=reason):
        described(tmp_path, flags, **columns)


def test_where_nobody_says_on_how_many_gpus_the_fewest_and_the_most_are_taken(tmp_path):
    # tp 2 x pp 2 on whole nodes: 8; 256 samples in micro batches of 4 are 64 replicas of 4.
    few, many = all_described(tmp_path, world_size="", test_type="release", global_batch="256")
    assert (few.job.parallel.world_size, many.job.parallel.world_size) == (8, 256)
    # Interleaved, a replica has at least as many microbatches as there are stages: 2.
    chunks = {"num_virtual_stages_per_pipeline_rank": 2}
    _, many = all_described(tmp_path, chunks, world_size="", test_type="release", global_batch="256")
    assert many.job.parallel.world_size == 128
    # A test without a recipe ran on a node.
    assert described(tmp_path, world_size="", test_type="regular").job.parallel.world_size == 8


def test_models_with_rms_norm_have_no_dropout(tmp_path):
    assert described(tmp_path, {"normalization": "RMSNorm"}).job.model.dropout == 0
    assert described(tmp_path).job.model.dropout == 0.1
