"""Where traces are looked for, and what files are that hold none."""

import bz2
import gzip
import json
import struct
import zipfile

import pytest

from simcore.errors import InputError
from tests.imports.traces import launched
from workloads.imports import import_traces
from workloads.imports.files import trace_files

TEXT = json.dumps({"traceEvents": launched("a", 0, 8, 5, corr=1)}).encode()


def zipped(path, method=zipfile.ZIP_DEFLATED, **members):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, text in members.items():
            archive.writestr(f"{name}.json", text)
    return path


def test_traces_in_a_zip_archive(tmp_path):
    path = zipped(
        tmp_path / "t.zip",
        **{"rank0": TEXT, "run/rank1": TEXT.replace(b"8", b"9"), "__MACOSX/run/._rank1": b""},
    )
    job = import_traces([path])
    assert [rank.file for rank in job.report.ranks] == [f"{path}:rank0.json", f"{path}:run/rank1.json"]


def test_zip_archives_that_cannot_be_read(tmp_path):
    cut = zipped(tmp_path / "cut.zip", rank0=TEXT)
    cut.write_bytes(cut.read_bytes()[:-30])
    damaged = zipped(tmp_path / "damaged.zip", zipfile.ZIP_STORED, rank0=TEXT)
    damaged.write_bytes(damaged.read_bytes().replace(b"traceEvents", b"traceEventz", 1))
    locked = bytearray(zipped(tmp_path / "locked.zip", rank0=TEXT).read_bytes())
    entry = locked.index(b"PK\x01\x02")
    struct.pack_into("<H", locked, entry + 8, 1)  # the flag of an encrypted member
    (tmp_path / "locked.zip").write_bytes(locked)
    odd = zipped(tmp_path / "odd.zip", zipfile.ZIP_LZMA, rank0=TEXT)
    for path, reason in (
        (cut, "not a zip file"), (damaged, "Bad CRC-32"), (tmp_path / "locked.zip", "is encrypted"),
        (odd, "packed otherwise"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=reason):
            import_traces([path])


def test_a_zip_archive_of_zeros_is_not_unpacked(tmp_path):
    with pytest.raises(InputError, match="over 250 times"):
        import_traces([zipped(tmp_path / "t.zip", rank0=bytes(65 << 20))])


def test_a_folder_that_holds_but_a_folder(tmp_path):
    run = tmp_path / "plugins" / "profile" / "2026_11_29"
    run.mkdir(parents=True)
    (tmp_path / ".cache").mkdir()
    for name in ("host.xplane.pb", "host.trace.json.gz", "other.trace.json.gz"):
        (run / name).touch()
    found = [source.path.name for source in trace_files(tmp_path)]
    assert found == ["host.xplane.pb", "other.trace.json.gz"]  # XLA's own of the two that say the same
    (tmp_path / "plugins" / "second").mkdir()
    with pytest.raises(InputError, match="holds no trace"):  # of one run or of two?
        trace_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.json", b"PK\x03\x04" + TEXT, "is a zip archive: name it"),
        ("t.json.bz2", bz2.compress(TEXT), "is compressed by bzip2: unpack it"),
        ("t.json", TEXT.decode().encode("utf-16"), "is text in UTF-16 or UTF-32: save it in UTF-8"),
        ("t.nsys-rep", b"\0\1", "is a report of Nsight Systems: make a database of it"),
        ("t.pftrace", b"\n\5", "is a trace of Perfetto"),
        ("t.json.gz", gzip.compress(TEXT) + b"and more", "other bytes follow the compressed data"),
    ],
)
def test_what_a_file_is_that_holds_no_trace(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        import_traces([path])
