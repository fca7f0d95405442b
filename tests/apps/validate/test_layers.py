"""Layers: the measured rows are those of arXiv 2205.05198, Table 4 (22B, TP8, micro batch 4, A100)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcore.apps.validate.layers import COLUMNS, predict_layer, read_layer_rows
from simcore.errors import InputError
from tests.commands import simcore

MODEL = "22B: 48 layers, hidden 6144, 64 heads, seq 2048, TP8, micro batch 4, fp16"
TABLE_4 = {
    "no recompute": (7.7, 11.9),
    "sequence parallelism": (7.2, 11.8),
    "full recompute": (7.7, 19.5),
    "selective recompute": (7.7, 13.2),
    "selective + sequence": (7.2, 13.1),
}


def write(path: Path, *, model: str = MODEL, gpu: str = "A100-80GB", forward: object = 0) -> str:
    lines = [",".join(COLUMNS)]
    for variant, (measured, backward) in TABLE_4.items():
        lines.append(
            f'{gpu},"{model}",one transformer layer,{variant},{forward or measured},{backward},'
            f"{measured + backward}"
        )
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_every_variant_is_within_six_percent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simcore("validate", "--layers", write(tmp_path / "layers.csv"), "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["variant"] for row in table["rows"]] == list(TABLE_4)
    for row in table["rows"]:
        assert row["predicted"] == pytest.approx(row["predicted_forward_ms"] + row["predicted_backward_ms"])
        assert abs(row["error"]) < 0.06


def test_full_recompute_repeats_the_forward_in_backward(tmp_path: Path) -> None:
    rows, _ = read_layer_rows(write(tmp_path / "layers.csv"))
    times = {row.columns["variant"]: predict_layer(row.gpu, row.model, row.shard) for row in rows}
    plain, full = times["no recompute"], times["full recompute"]
    assert full[0] == plain[0]
    # The forward again, but where an exchange of backward hides beside it: never more than both.
    assert plain[1] + 0.95 * plain[0] < full[1] <= plain[1] + plain[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "22B: 48 layers, hidden 6144, 64 heads, TP8, micro batch 4, fp16"}, "seq"),
        ({"model": MODEL.replace("fp16", "int4")}, "precision"),
        ({"model": MODEL.replace("6144", "61")}, "61 is no multiple of heads 64; nearest: 64"),
        ({"model": MODEL.replace("TP8", "TP7")}, "64 is no multiple of tp 7; nearest: 63 or 70"),
        ({"gpu": "GTX 1080"}, "no profile of GPU"),
        ({"forward": "-7"}, "forward_ms = -7 is not from 0.001 to 1e+06 ms"),
        ({"forward": "fast"}, "not a number"),
    ],
)
def test_what_a_row_does_not_say_is_why_it_is_refused(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    rows, skipped = read_layer_rows(write(tmp_path / "layers.csv", **change))
    assert not rows
    assert all(reason in row["reason"] for row in skipped)
    assert [row["id"] for row in skipped] == [2, 3, 4, 5, 6]


def test_a_missing_column_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text("gpu,model\n")
    with pytest.raises(InputError, match="no column 'scope'"):
        read_layer_rows(path)
