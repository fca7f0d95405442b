"""Rows of published runs: what they mean, what a step took, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.apps.measured.runs.predict import predict_case, simulated_s
from simcore.apps.measured.runs.score import (
    DescribedRow,
    RowScore,
    Scored,
    describe_rows,
    goals,
    score_rows,
    table_of,
)
from simcore.apps.validate.runs.page import report
from simcore.apps.validate.runs.page.curves import CURVES, curve_lines, plot
from simcore.errors import InputError
from simcore.hardware import load_gpu
from workloads.jobs.published import Band, RunRow, describe, measured_step_s, notes_of, oddity, read_run_rows
from workloads.models.spec import ModelSpec
from workloads.parallel.steady import shorter_counts

_GPT = {
    "id": "r1", "family": "new", "model": "GPT-3 tiny", "layers": "4.0", "hidden": "1024", "heads": "16",
    "kv_heads": "16", "ffn": "4096", "vocab": "51200", "seq": "1024.0", "gpus": "16.0", "gpu_type": "H100",
    "tp": "2.0", "pp": "2.0", "vpp": "1", "global_batch": "64.0", "micro_batch": "2.0", "precision": "bf16",
    "recompute": "none", "metric": "step_time_s", "value": "0.5", "quality": "A", "sp": "yes",
}  # fmt: skip


def _row(**changes: str) -> RunRow:
    return RunRow(2, {**_GPT, **changes})


def test_a_row_becomes_its_degrees_and_batch() -> None:
    (case,) = describe(_row()).cases
    # 16 GPUs / (2 x 2) = 4 replicas; 64 samples / 4 / 2 = 8 microbatches.
    assert (case.parallel.dp, case.microbatches) == (4, 8.0)
    assert case.parallel.sequence_parallel
    assert case.cluster == "h100-16"


def test_unpublished_inputs_become_a_band() -> None:
    band = describe(_row(quality="B", micro_batch="", recompute="not stated"))
    assert set(band.unpublished) == {"micro_batch", "recompute"}
    assert len(band.cases) > 1
    assert describe(_row(micro_batch="", recompute="")).unpublished == ()  # quality A: the preset decides


def test_uneven_layers_leave_the_ends_lighter() -> None:
    (case,) = describe(_row(layers="7", pp="4")).cases
    assert case.parallel.stage_layers == (2, 2, 2, 1)


def test_experts_as_tables_write_them() -> None:
    (case,) = describe(
        _row(model="Qwen2-57B", moe_experts="64+shared 20480 (8x2560)", moe_topk="8", ffn="2560", gpus="64",
             ep="4", overlap_notes="expert-TP (ETP)=1; capacity factor 1.5")
    ).cases  # fmt: skip
    moe = case.model.moe
    assert moe is not None
    assert (moe.num_experts, moe.top_k, moe.ffn, moe.shared_ffn) == (64, 8, 2560, 20480)
    assert (moe.capacity_factor, case.parallel.etp) == (1.5, 1)


def test_widths_by_name_and_dense_layers_of_a_cut_model() -> None:
    (case,) = describe(
        _row(model="deepseek-v3 (cut to 4 layers, 1 dense)", ffn="18432 dense / 2048 expert + 1024 shared",
             moe_experts="256", moe_topk="8", hidden="7168", heads="128", kv_heads="128", tp="1", pp="1",
             ep="8", overlap_notes="cross-entropy fusion on; alltoall dispatcher")
    ).cases  # fmt: skip
    moe = case.model.moe
    assert moe is not None
    assert (case.model.ffn, moe.ffn, moe.shared_ffn, moe.first_layer) == (18432, 2048, 1024, 1)
    assert case.software.cross_entropy == "fused"


def test_models_that_are_cut_by_their_name() -> None:
    empty = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    cut = _row(**empty, model="DeepSeek-V3 (proxy, 3 layers)", pp="1", tp="1", ep="8")
    model = describe(cut).cases[0].model
    # The whole model begins with three layers without experts: a cut of three would have none.
    assert (model.layers, model.moe is not None and model.moe.first_layer) == (3, 0)
    assert any("cut to 3 layers: all with experts" in note for note in notes_of(cut))
    four = describe(_row(**empty, model="Mixtral 8x22B 4-layer proxy", pp="1", tp="1", ep="8")).cases[0].model
    assert four.layers == 4
    whole = _row(**empty, model="DeepSeek-V3 proxy", pp="1", tp="1", ep="8")
    assert describe(whole).cases[0].model.layers == 61
    assert any("a proxy of unknown depth" in note for note in notes_of(whole))


def test_public_models_fill_empty_columns() -> None:
    empty = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    (case,) = describe(_row(**empty, model="Qwen3 MoE 30B", pp="1", tp="1", ep="8")).cases
    assert (case.model.layers, case.model.hidden, case.model.size_per_head) == (48, 2048, 128)


def test_what_is_said_of_experts_and_adapters() -> None:
    empty = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    names = ("Mixtral 8x7B", "GLM-4.5 Air", "Moonlight 16B", "DeepSeek V3 671B", "Qwen2-57B-A14B")
    for name in names:
        moe = describe(_row(**empty, model=name, pp="1", tp="1", ep="8")).cases[0].model.moe
        assert moe is not None and moe.top_k in (2, 6, 8)
    (case,) = describe(_row(**empty, model="GPT-OSS 120B", pp="1", overlap_notes="TE + DeepEP")).cases
    # DeepEP dispatches between ranks: 16 GPUs / tp 2 = 8 of them hold experts.
    assert (case.parallel.ep, case.software.moe_dispatcher, case.model.sliding_window) == (8, "flex", 128)
    (dropped,) = describe(_row(**empty, model="Qwen3 30B (tokendrop)", pp="1", ep="8")).cases
    assert dropped.model.moe is not None and dropped.model.moe.capacity_factor == 1.0
    (dense,) = describe(_row(moe_experts="0")).cases
    assert dense.model.moe is None
    (adapted,) = describe(_row(id="ft_llama3-8b_LoRA_bf16_8")).cases
    assert (adapted.training.trainable, adapted.training.lora_rank) == ("lora", 32)
    assert adapted.training.lora_targets == "linear_qkv"


def test_open_inputs_that_are_many_leave_their_corners() -> None:
    row = _row(quality="B", micro_batch="", vpp="", recompute="", family="moe folding", layers="16",
               gpus="32", global_batch="256")  # fmt: skip
    cases = describe(row).cases
    corners = {(c.training.micro_batch, c.parallel.virtual_stages, c.training.recompute) for c in cases}
    assert corners == {
        (1, 1, "none"), (1, 4, "none"), (4, 1, "none"), (1, 1, "full"), (4, 4, "full")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": "17"}, "do not divide"),
        ({"layers": "x"}, "no number"),
        ({"layers": "-4"}, "not 0 or a number >= 1e-09"),
        ({"layers": "1e300"}, "not 0 or a number >= 1e-09 and <= 1e.16"),
        ({"layers": "5e-324"}, "column 'layers' is '5e-324', not 0 or a number >= 1e-09"),
        ({"ffn": "0.5"}, "column 'ffn' is 0.5, not a whole number"),
        ({"seq": "1.5"}, "whole number"),
        ({"layers": "", "model": "mystery"}, "layers is not given"),
        ({"moe_experts": "4", "moe_topk": "0"}, "moe_topk.* not a whole number >= 1"),
        ({"gpu_type": "TPU v5"}, "no profile"),
        ({"model": "Jamba 52B"}, "Mamba"),
        ({"layers": "1"}, "pipeline stages"),
        ({"global_batch": "2"}, "samples on"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_reason(changes: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        describe(_row(**changes))


def test_metrics_become_seconds_by_their_own_convention() -> None:
    gpu = load_gpu("h100-sxm")
    model = ModelSpec(layers=2, hidden=128, heads=2, ffn=512, vocab=1000)
    row = {"gpus": "4", "global_batch": "8", "seq": "100"}

    def seconds(metric: str, value: str, **more: str) -> float:
        return measured_step_s(_row(metric=metric, value=value, **row, **more), model, gpu)

    assert seconds("samples_per_s", "16") == 0.5  # 8 / 16
    assert seconds("tokens_per_s_total", "1600") == 0.5  # 8 x 100 / 1600
    assert seconds("tokens_per_s_per_gpu", "400") == 0.5  # 8 x 100 / (400 x 4)
    # Forward of a layer, multiply-adds a token: weights 4 h^2 + 8 h^2, scores 2 s h in full; head h V.
    forward = 2 * 100 * (2 * (12 * 128**2 + 2 * 100 * 128) + 128 * 1000)
    flops = 3 * forward * 8
    assert seconds("tflops_per_gpu", "1e-6") == pytest.approx(flops / 4e6)
    recomputed = seconds("tflops_per_gpu", "1e-6", notes="hardware FLOPs formula incl. recompute")
    assert recomputed == pytest.approx(flops / 4e6 * 4 / 3)
    assert seconds("mfu_percent", "50") == pytest.approx(flops / (0.5 * 989.4e12 * 4))
    assert seconds("mfu_percent", "50", step_time_s_derived="3.5") == 3.5
    with pytest.raises(InputError, match="unknown metric"):
        seconds("furlongs", "1")


def test_a_file_without_needed_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("id,model,seq,gpus,gpu_typ,global_batch,metric,value\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"no column 'gpu_type'.*gpu_typ"):
        read_run_rows(str(path))
    with pytest.raises(InputError, match="cannot read"):
        read_run_rows(str(tmp_path / "none.csv"))


def test_odd_rows_are_known_by_their_columns() -> None:
    assert oddity(_row(family="bloom_a100", hidden="13824", heads="128"))  # head size 108
    assert not oddity(_row(family="bloom_a100", hidden="14336", heads="64"))  # head size 224


def test_many_microbatches_continue_in_a_straight_line() -> None:
    # 40 microbatches of two stages of two chunks: simulated at 4 and 6, and whole.
    (case,) = describe(_row(global_batch="320", vpp="2")).cases
    assert case.microbatches == 40
    assert shorter_counts(case.parallel, 40) == (4, 6)
    assert shorter_counts(case.parallel, 10) is None  # five groups cost no more than 2 + 3
    assert predict_case(case) == pytest.approx(simulated_s(case, 40), rel=1e-3)


def test_rows_are_scored_and_refusals_kept(capsys: pytest.CaptureFixture[str]) -> None:
    scored = score_rows([_row(), _row(id="r2", gpus="17"), _row(id="r3", value="0.25")])
    assert [row["id"] for row in scored.skipped] == ["r2"]
    table = table_of(scored.scores, scored.skipped)
    first, second = table.rows
    assert first["predicted"] == second["predicted"]  # what was measured plays no part
    assert first["error"] == pytest.approx(first["predicted"] / 0.5 - 1)
    assert goals(scored.scores)["n"] == 2
    capsys.readouterr()


def test_a_band_is_scored_by_the_distance_to_it() -> None:
    band = describe(_row(quality="B"))
    score = RowScore(DescribedRow(_row(quality="B"), band, 1.0, 1.0, ""), 0.9, 1.2)
    assert (score.predicted_s, score.error) == (1.0, 0.0)
    low = RowScore(DescribedRow(_row(), band, 2.0, 1.0, ""), 0.9, 1.2)
    assert low.error == pytest.approx(1.2 / 2 - 1)


def test_the_page_keeps_odd_rows_and_bands_apart() -> None:
    band = describe(_row())

    def score(measured_s: float, odd: str = "", **changes: str) -> RowScore:
        return RowScore(DescribedRow(_row(**changes), band, measured_s, 1.0, odd), 1.0, 1.0)

    page = report(Scored([score(0.8), score(0.5, "strange"), score(2.0, quality="B")]))
    # Predicted 1.0 each: +25%, +100%, -50%.
    assert "| quality A | 1 | 25.0 | 25.0 | 25.0 | 25.0 | +25.0 |" in page
    assert "| strange | 1 | 100.0 |" in page
    assert "| quality B, distance to the band | 1 | 50.0 |" in page


def test_a_plot_has_a_dot_and_a_bar_for_each_row() -> None:
    rows = [
        _row(family="megascale", gpus=str(gpus), model="gpt-175B", global_batch="2048")
        for gpus in (256, 1024)
    ]
    scores = [RowScore(DescribedRow(row, describe(row), 1.0, 1.0, ""), 0.9, 1.2) for row in rows]
    drawn = plot(CURVES[0], scores)
    # A dot and a bar each, one more bar in the legend; both rows have the same batch: one line joins them.
    assert (drawn.count("<circle"), drawn.count("#9cc3e6")) == (2, 3)
    assert drawn.count('stroke="#c0392b"') == 1
    for words in ("MFU, % of the 16-bit peak", "model Tflop/s per GPU", ">GPUs<", ">1,024<"):
        assert words in drawn
    assert any(line.startswith("| 1,024 | gpt-175B | 2048 |") for line in curve_lines(CURVES[0], scores))


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([name for name in _GPT if name not in ("id", "family")] + ["zero_fsdp", "ep", "cp"]),
        st.sampled_from(
            ["", "none", "-", "yes", "1", "8", "1,024", "2.0", "2-4", "not stated", "H200", "auto"]
        ),
        max_size=4,
    )
)
def test_any_words_make_cases_or_a_refusal_that_names_the_row(changes: dict[str, str]) -> None:
    try:
        assert describe(_row(**changes)).cases
    except InputError as error:
        assert str(error)


def test_numbers_may_have_separators_and_say_that_there_are_none() -> None:
    (case,) = describe(_row(global_batch="1,024", vpp="-", cp="none")).cases
    assert (case.microbatches, case.parallel.virtual_stages, case.parallel.cp) == (128.0, 1, 1)
    (by_layout,) = describe(_row(vpp="layout")).cases
    assert by_layout.parallel.virtual_stages == 1


def test_what_was_not_understood_is_said() -> None:
    assert notes_of(_row(family="megatron_new")) == []
    strange = _row(model="Zebra-9", precision="posits", gpu_type="H100 PCIe", source_repo_or_paper="a blog")
    said = notes_of(strange)
    assert len(said) == 4
    assert any("Zebra-9" in note for note in said)
    assert any("megatron-core" in note and "software" in note for note in said)
    assert any("posits" in note for note in said)
    assert any("SXM" in note for note in said)
    (case,) = describe(strange).cases
    assert case.training.precision == "bf16"


def test_bert_attends_both_ways() -> None:
    (case,) = describe(_row(model="BERT-Large", pp="1")).cases
    assert case.model.family == "bert"


def test_a_bug_in_one_row_is_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(row: RunRow) -> Band:
        if row.id == "r2":
            raise ZeroDivisionError("no experts")
        return describe(row)

    monkeypatch.setattr("simcore.apps.measured.runs.score.describe", broken)
    described, skipped = describe_rows([_row(), _row(id="r2")])
    assert [entry.row.id for entry in described] == ["r1"]
    assert skipped[0]["reason"] == "bug: ZeroDivisionError: no experts"
