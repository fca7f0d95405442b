"""Regular expressions that users give, matched in time linear in the text: no pattern can hang a command."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.errors import InputError


def found_in(pattern: str, texts: Sequence[str], where: str) -> list[bool]:
    """Of each text whether the regular expression ``pattern`` finds something in it.

    The syntax is RE2's: Python's without what needs backtracking (look-around and back-references).
    InputError, beginning with ``where``, for a pattern that is none.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        column = pa.array([text.encode(errors="replace").decode() for text in texts], pa.string())
        matched = pc.match_substring_regex(column, pattern=pattern)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        reason = str(error).partition("RE2")[2].partition(":")[2].strip() or str(error)
        shown = f"{pattern[:200]!r} is no regular expression (RE2)"
        raise InputError(f"{where}: {shown}: {reason[:300]}") from None
    return [bool(found) for found in matched.to_pylist()]
