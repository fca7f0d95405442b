"""``validate.py --memory``: measured memory against what storages hold."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simcore.apps.validate.memory import memory_errors
from simcore.errors import InputError
from simcore.units import GIB
from tests.commands import simcore

HEADER = (
    "id,source_repo_or_paper,source_location,model,params_b,layers,hidden,heads,kv_heads,ffn,moe_experts,"
    "moe_topk,seq,vocab,gpus,gpu_type,tp,pp,vpp,dp,cp,ep,sp,zero_fsdp,micro_batch,global_batch,precision,"
    "recompute,overlap_notes,metric,value,notes,step_time_s_derived,mem_gib,quality,family"
)
#: pytorch/torchtitan@b5bcd76c66 benchmarks/llama3_h100_202412_torchtitan.md, table 2.
TORCHTITAN = (
    "cp1,pytorch/torchtitan,benchmarks/llama3_h100_202412_torchtitan.md table 2,llama3-8b,8.03,32,4096,32,8,"
    "14336,,,32768,128256,8,H100-96GB HBM2e 2.4TB/s 500W (Grand Teton),1,1,,8,1,1,no,FSDP2,1,8,"
    "fp8 tensorwise,full,torch.compile,tokens_per_s_per_gpu,3890,,8.4237,83.9,A,torchtitan"
)
#: bigscience-workshop/bigscience@9e64edec2a train/tr11-176B-ml/chronicles-prequel.md, line 609.
BLOOM = (
    "bloom,bigscience-workshop/bigscience BLOOM-176B prequel chronicles,chronicles-prequel.md:609,"
    "GPT 181B (BLOOM search),181,72,14336,64,64,57344,,,2048,250880,384,A100-80GB,8,12,1,4,1,1,no,ZeRO-1,4,"
    "2048,fp16,full (--checkpoint-activations),Megatron-DeepSpeed 1F1B,step_time_s,123.69,,123,49.0,B,bloom"
)


def table(tmp_path: Path, *rows: str) -> str:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return str(path)


def test_published_memory_is_near(tmp_path: Path) -> None:
    found = memory_errors(table(tmp_path, TORCHTITAN, BLOOM))
    assert [(row.id, row.what) for row in found.rows] == [("cp1", "reserved"), ("bloom", "whole GPU")]
    assert [row.measured_bytes for row in found.rows] == [int(83.9 * GIB), 49 * GIB]
    # What BLOOM's GPU had in use is 1 GiB more than the allocator, the context, kernels and NCCL take.
    assert [round(row.error, 2) for row in found.rows] == [0.04, -0.02]
    # 72 layers of 12 h^2 parameters and a share of the embedding on 96 GPUs, 2 bytes each.
    numel = 6 * 12 * 14336**2 / 8 + 250880 * 14336 / 8
    assert found.rows[1].parts_bytes["parameters"] == pytest.approx(2 * numel, rel=0.01)


def test_notes_say_whose_peak_it_is(tmp_path: Path) -> None:
    first = BLOOM.replace(",123.69,,123,", ",123.69,peak allocated of rank 0,123,")
    said, whole = memory_errors(table(tmp_path, first, BLOOM)).rows
    assert said.what == "allocated"
    # Neither what the allocator keeps besides, nor context and communicators.
    assert said.predicted_bytes < whole.predicted_bytes - GIB


def test_what_ran_is_said_to_fit_and_rows_without_memory_are_asked_too(tmp_path: Path) -> None:
    found = memory_errors(table(tmp_path, TORCHTITAN, BLOOM.replace(",49.0,", ",,")))
    assert [row.fits for row in found.rows] == [True, True]
    assert [row.measured_bytes for row in found.rows] == [int(83.9 * GIB), None]
    # 181 billion parameters on 8 GPUs: 22.6 billion each, 18 bytes a parameter.
    alarm = BLOOM.replace(",384,A100-80GB,8,12,1,4,", ",8,A100-80GB,8,1,1,1,").replace(",49.0,", ",,")
    table_of = memory_errors(table(tmp_path, alarm))
    (row,) = table_of.rows
    assert row.fits is False
    assert row.verdict.need.needs_bytes > 181e9 / 8 * 18
    assert table_of.record()["fits"]["false_alarms"] == ["bloom"]


@pytest.mark.parametrize(
    ("tp", "pp", "dp", "micro", "batch", "fp32_sums"),
    [(8, 1, 48, 1, 2016, False), (2, 6, 32, 1, 384, False), (4, 6, 16, 1, 192, True)],
)
def test_what_blooms_tables_call_out_of_memory_is_not_said_to_fit(
    tmp_path: Path, tp: int, pp: int, dp: int, micro: int, batch: int, fp32_sums: bool
) -> None:
    # Its tables "GBS Variations" (181B) and "Rebalancing layers" (184B, 100 layers of 12,288 in bf16), which
    # have rows of larger micro batches, too.  Pipelines had batches of 2,048; 12 microbatches fill 6 stages.
    row = BLOOM.replace(",8,12,1,4,1,1,", f",{tp},{pp},1,{dp},1,1,").replace(",49.0,", ",,")
    row = row.replace(",ZeRO-1,4,2048,", f",ZeRO-1,{micro},{batch},")
    if fp32_sums:
        row = row.replace(",181,72,14336,64,64,57344,", ",184,100,12288,64,64,49152,")
        row = row.replace(",fp16,", ",bf16 (fp32 grad accumulation),")
    (found,) = memory_errors(table(tmp_path, row)).rows
    assert found.verdict is not None
    assert found.verdict.word != "fits"


def test_json_has_rows_and_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = BLOOM.replace(",57344,", ",57347,")
    assert simcore("validate", "--memory", table(tmp_path, TORCHTITAN, wrong), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["families"]["torchtitan A"]["n"] == 1
    first, second = found["rows"]
    assert first["predicted_bytes"] / first["measured_bytes"] - 1 == pytest.approx(first["error"])
    assert (first["quality"], first["skipped_reason"]) == ("A", "")
    assert "57347" in second["skipped_reason"]
    assert second["predicted_bytes"] is None
    assert simcore("validate", "--memory", table(tmp_path, TORCHTITAN)) == 0
    told = capsys.readouterr().out
    assert "torchtitan A" in told
    assert max(map(len, told.splitlines())) <= 80


PEAK = {
    "test": "gpt/a", "platform": "dev_dgx_h100", "gpu": "H100-SXM-80GB", "world_size": "1",
    "reporting_rank": "last (world_size-1)", "max_allocated_bytes": "1000000000", "quality": "A",
    "max_reserved_bytes": "1200000000", "model_kind": "gpt", "micro_batch": "1", "global_batch": "1",
    "seq": "1024", "layers": "2", "hidden": "512", "heads": "8", "kv_heads": "8", "ffn": "2048",
    "vocab": "51200", "precision": "bf16", "grads": "fp32",
}  # fmt: skip


def test_peaks_of_ranks_are_compared_in_bytes_allocated_and_reserved_apart(tmp_path: Path) -> None:
    path = tmp_path / "peaks.csv"
    rows = [{**PEAK, "other_flags": "{}"}, {**PEAK, "other_flags": json.dumps({"optimizer": "lion"})}]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    found, skipped = memory_errors(str(path)).rows
    # Each of 51,200 x 512 + 1,024 x 512 + 2 x (12 x 512^2 + 13 x 512) + 1,024 parameters takes 18 bytes;
    # cuBLAS keeps 2 x 32 MiB, Transformer Engine 32 MiB.
    numel = 51200 * 512 + 1024 * 512 + 2 * (12 * 512**2 + 13 * 512) + 1024
    least = 18 * numel + (96 << 20)
    # Beside them logits in 16 and 32 bits, and what two layers keep.
    assert least + 1024 * 51200 * 6 < found.predicted_bytes < 1.1 * (least + 1024 * 51200 * 6)
    assert found.predicted_reserved_bytes >= found.predicted_bytes
    assert found.reserved_error == found.predicted_reserved_bytes / 1_200_000_000 - 1
    assert found.fits is True
    assert "lion" in skipped.skipped_reason


def test_rows_that_cannot_be_are_skipped_with_the_reason(tmp_path: Path) -> None:
    found = memory_errors(table(tmp_path, TORCHTITAN, BLOOM.replace(",64,64,57344", ",63,63,57344")))
    assert [row.id for row in found.skipped] == ["bloom"]
    with pytest.raises(InputError, match="no row says on which GPU"):
        memory_errors(table(tmp_path, BLOOM.replace(",A100-80GB,", ",Cray-1,").replace(",49.0,", ",,")))
