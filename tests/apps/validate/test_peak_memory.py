"""``validate.py --memory``: published memory against the closed form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcore.apps.validate.peak_memory import memory_errors
from simcore.errors import InputError
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


def test_published_memory_is_within_ten_percent(tmp_path: Path) -> None:
    found = memory_errors(table(tmp_path, TORCHTITAN, BLOOM))
    assert {row["id"]: row["measured"] for row in found.rows} == {"cp1": 83.9, "bloom": 49.0}
    assert all(abs(row["error"]) < 0.1 for row in found.rows)
    parts = found.rows[1]["parts_gib"]
    # 72 layers of 12 h^2 parameters and a share of the embedding on 96 GPUs, 2 bytes each.
    numel = 6 * 12 * 14336**2 / 8 + 250880 * 14336 / 8
    assert parts["parameters"] == pytest.approx(2 * numel / 2**30, rel=0.01)


def test_json_has_rows_and_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simcore("validate", "--memory", table(tmp_path, TORCHTITAN), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["families"]["torchtitan"]["n"] == 1
    assert simcore("validate", "--memory", table(tmp_path, TORCHTITAN)) == 0
    assert "torchtitan" in capsys.readouterr().out


def test_rows_that_cannot_be_are_skipped_with_the_reason(tmp_path: Path) -> None:
    found = memory_errors(table(tmp_path, TORCHTITAN, BLOOM.replace(",64,64,57344", ",63,63,57344")))
    assert [row["id"] for row in found.skipped] == ["bloom"]
    with pytest.raises(InputError, match="no row has a value in column mem_gib"):
        memory_errors(table(tmp_path, BLOOM.replace(",49.0,", ",,")))


def test_degrees_that_cannot_be_are_refused_with_their_reason(tmp_path: Path) -> None:
    found = memory_errors(table(tmp_path, TORCHTITAN, BLOOM.replace(",57344,", ",57347,")))
    assert len(found.rows) == 1
    assert "57347" in found.skipped[0]["reason"]
