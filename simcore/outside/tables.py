"""CSV and Parquet from outside: whole rows of text, and files no bigger than their metadata may say."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from simcore.errors import InputError, nearest
from simcore.outside.documents import decoded, read_bytes
from simcore.outside.limits import limits, over

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def csv_rows(
    source: Path | bytes,
    what: str,
    needed: Collection[str] | Callable[[Collection[str]], Collection[str]] = (),
    *,
    one_of: Collection[str] = (),
    where: str = "",
) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a table with a line of column names, each with the number of its line in the file.

    ``source`` is a file or its bytes, which ``where`` then names; ``what`` it should be.  Blank lines are
    passed over.  ``needed`` may follow from the columns.  InputError for text that is no UTF-8, columns that
    come twice or are ``needed`` and missing (of ``one_of``: all of them), rows that are shorter or longer
    than the first line, and numbers of more digits than the limit.
    """
    where = where or str(source)
    data = source if isinstance(source, bytes) else read_bytes(source, what, "json")
    text = decoded(data, where)
    if "\0" in text:
        raise InputError(f"{where}: line {text.count(chr(10), 0, text.index(chr(0))) + 1:,}: a NUL character")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = next((row for row in reader if row), None)
        if columns is None:
            raise InputError(f"{where}: empty; expected {what}")
        columns = [name.strip() for name in columns]
        for name in columns:
            if columns.count(name) > 1:
                raise InputError(f"{where}: column {name!r} is given twice")
        for name in needed(columns) if callable(needed) else needed:
            if name not in columns:
                raise InputError(f"{where}: no column {name!r} of {what}{nearest(name, columns)}")
        if one_of and not any(name in columns for name in one_of):
            raise InputError(f"{where}: none of the columns {', '.join(one_of)} of {what}")
        most, digits = limits().rows, limits().digits
        too_long = re.compile(rf"(?<![.\d])\d{{{digits + 1}}}|\d{{{10 * digits}}}")  # decimals may be many
        for number, row in enumerate(reader):
            if number >= most:
                raise over("rows", 0, where)
            if not row:
                continue
            if len(row) != len(columns):
                place = f"{where}: line {reader.line_num:,}"
                raise InputError(f"{place}: {len(row)} values; the first line names {len(columns)} columns")
            if any(len(cell) > digits and too_long.search(cell) for cell in row):
                raise over("digits", 0, f"{where}: line {reader.line_num:,}")
            yield reader.line_num, dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num:,}: {error}") from None


def open_parquet(source: Path | IO[bytes], where: str) -> pq.ParquetFile:
    """A Parquet file whose rows and unpacked bytes are within the limits; its pages' checksums are verified.

    InputError, by its metadata alone, for one that is bigger or none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source, page_checksum_verification=True)
        metadata = file.metadata
        names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        unpacked = sum(group.total_byte_size for group in groups)
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names that are no UTF-8
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(f"{where}: not a readable Parquet file ({reason})") from None
    if metadata.num_rows > limits().rows:
        raise over("rows", metadata.num_rows, where)
    if unpacked > limits().unpacked:
        raise over("unpacked", unpacked, where)
    if unpacked < 0 or any(group.num_rows < 0 for group in groups) or len(set(names)) < len(names):
        raise InputError(f"{where}: not a readable Parquet file (its metadata contradicts itself)")
    return file
