"""Texts from outside: plain values within limits, or a message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.outside import (
    csv_rows,
    inside,
    json_document,
    limits,
    open_parquet,
    read_text,
    toml_document,
    yaml_document,
)

#: 446 bytes whose aliases stand for 10^12 values.
_BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (json_document, "[" * 2000 + "]" * 2000, "64 levels"),
        (json_document, "[" * 100_000, "64 levels"),
        (json_document, '{"a": ' + "9" * 5000 + "}", "digits"),
        (json_document, '{"a": ' + "9" * 50 + "}", "50 digits"),
        (json_document, '{"a": NaN}', "NaN is no number"),
        (json_document, '{"a": 1e999}', "must be a finite number"),
        (json_document, '{"a": 1, "a": 2}', "'a' is given twice"),
        (json_document, '{"a": "\\ud800"}', "half of a surrogate pair"),
        (json_document, '{"\\udc00": 1}', "half of a surrogate pair"),
        (json_document, '{"a": 1', "line 1, column 8"),
        (json_document, b'{"a":\n"\xff"}', "line 2, byte 7: no UTF-8"),
        (toml_document, "a = " + "[" * 2000, "64 levels"),
        (toml_document, "a" + ".a" * 100_000 + " = 1", "64 levels"),
        (toml_document, "[" + '"a" . ' * 100_000 + "a]", "64 levels"),
        (toml_document, "a = " + "9" * 5000, "digits"),
        (toml_document, "a = inf", "must be a finite number"),
        (toml_document, "a = 1\na = 2", "not valid TOML"),
        (toml_document, "a = 1\n" + "#" * 1_100_000, "at most 1 MiB are read"),
        (yaml_document, "[" * 2000, "64 levels"),
        (yaml_document, "- " * 100_000 + "1", "64 levels"),
        (yaml_document, _BOMB, "stand for more than 1,000,000 values"),
        (yaml_document, "&a [*a]", "stands for what holds it"),
        (yaml_document, "a: 1\nb: 2\na: 3", "'a' is given twice, again in line 3"),
        (yaml_document, "a: .nan", "must be a finite number"),
        (yaml_document, "a: " + "9" * 5000, "digits"),
        (yaml_document, "? [1, 2]\n: 3", "unhashable key"),
        (yaml_document, "a: 2001-99-99", "month"),
        (yaml_document, "a: !!python/object/apply:os.getcwd []", "constructor"),
        (yaml_document, "a: 1\n---\nb: 2", "single document"),
        (yaml_document, "\x00", "control characters"),
    ],
)  # fmt: skip
def test_what_must_not_pass_is_refused(read: Callable[[str | bytes, str], Any], text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read(text, "job.file")
    message = str(refused.value)
    assert message.startswith("job.file: ")
    assert said in message
    assert len(message) < 500


_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@given(_PLAIN)
def test_what_json_can_say_passes(content: Any) -> None:
    import json

    assert json_document(json.dumps(content), "x") == content


def test_limits_are_raised_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "[" * 100 + "]" * 100
    with pytest.raises(InputError, match="SIMCORE_LIMITS=depth="):
        json_document(deep, "x")
    monkeypatch.setenv("SIMCORE_LIMITS", "depth=200, json=2KiB, events=5M, rows=3k")
    assert json_document(deep, "x")
    assert (limits().json, limits().events, limits().rows) == (2048, 5_000_000, 3000)
    with pytest.raises(InputError, match=r"2\.932 KiB of JSON; at most 2 KiB"):
        json_document(" " * 3000 + "{}", "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dept=2", "unknown limit 'dept'; did you mean 'depth'"),
        ("rows=0", "must be"),
        ("rows=many", "expected a number"),
        ("memory=1MiB", "at least 1 GiB"),
        ("json=5s", "not a unit of size"),
    ],
)
def test_limits_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.setenv("SIMCORE_LIMITS", text)
    with pytest.raises(InputError, match="SIMCORE_LIMITS: ") as refused:
        limits()
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["/dev/zero", "no/such/file", ".", "a\0b"])
def test_what_is_no_file_of_text_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        read_text(Path(name), "a cluster")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty; expected kernel times"),
        (b"a,b\n1\n", "line 2: 1 values; the first line names 2 columns"),
        (b"a,b\n\n1,2,3\n", "line 3: 3 values"),
        (b"a,a\n1,2\n", "column 'a' is given twice"),
        (b"a,c\n1,2\n", "no column 'b'"),
        (b"a,b\n1,\xff\n", "line 2, byte 6: no UTF-8"),
        (b"a,b\n1,2\0\n", "line 2: a NUL character"),
        (b'a,b\n1,"2\n', "line 2: unexpected end of data"),
        (b"a,b\n1,x" + b"9" * 41 + b"\n", "line 2: more than 40 digits"),
        (b"a,b\n1,0." + b"9" * 5000 + b"\n", "line 2: more than 40 digits"),
    ],
)
def test_rows_that_are_no_rows_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=r"times\.csv: ") as refused:
        list(csv_rows(data, "kernel times", ("a", "b"), where="times.csv"))
    assert said in str(refused.value)


def test_decimals_may_be_many() -> None:
    exactly = "0.1000000000000000055511151231257827021181583404541015625"  # what 0.1 is in binary
    assert list(csv_rows(f"a\n{exactly}\n".encode(), "times", where="t")) == [(2, {"a": exactly})]


def test_rows_come_with_their_places() -> None:
    rows = list(csv_rows(b'\xef\xbb\xbfa, b\n"1\n",2\n\n3,4\n', "times", where="t"))
    assert rows == [(3, {"a": "1\n", "b": "2"}), (5, {"a": "3", "b": "4"})]


def test_a_parquet_file_of_too_many_rows_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": [0] * 10_000}), path)
    assert open_parquet(path, "rows").metadata.num_rows == 10_000
    monkeypatch.setenv("SIMCORE_LIMITS", "rows=9999")
    with pytest.raises(InputError, match="rows: 10,000 rows; at most 9,999 are read"):
        open_parquet(path, "rows")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="not a readable Parquet file"):
        open_parquet(path, "rows")


def test_names_in_files_do_not_lead_out_of_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    (folder / "more").mkdir(parents=True)
    (tmp_path / "secret.toml").touch()
    (folder / "link.toml").symlink_to(tmp_path / "secret.toml")
    assert inside(folder, "more/x.toml", "job.yaml: cluster") == folder / "more/x.toml"
    for name in ("../secret.toml", str(tmp_path / "secret.toml"), "link.toml", "more/../../secret.toml"):
        with pytest.raises(InputError, match=r"job\.yaml: cluster: .* is outside"):
            inside(folder, name, "job.yaml: cluster")
