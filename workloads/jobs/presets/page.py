"""docs/presets.md: every setting of every preset with its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simcore.files import whole_text
from workloads.jobs.presets.preset import Preset, Setting, load_preset, preset_names

_HEAD = """# Presets

What a framework version does by default.  Written from `workloads/jobs/presets/*.toml` by
`python -m workloads.jobs.presets.page docs/presets.md`.  A setting without a published source is marked
*inferred*, with the reason.  `unpublished` lists what a run may have used where its source does not say:
such runs are predicted as a band.  `supports` lists what the build has or ran on: a job that asks for
another generation, recomputation or schedule is answered with a warning; the rest is what
[plans](planning.md) may change.
"""


def page() -> str:
    """The page."""
    return "\n".join([_HEAD, *(line for name in preset_names() for line in _section(load_preset(name)))])


def _section(preset: Preset) -> Iterator[str]:
    yield f"## {preset.name}\n"
    yield f"{preset.description}.\n"
    yield "| setting | value | source |"
    yield "|---|---|---|"
    for table, key, setting in preset.settings():
        yield f"| {table}.{key} | `{setting.value}` | {_why(setting)} |"
    yield ""


def _why(setting: Setting) -> str:
    return (setting.source or f"*inferred*: {setting.inferred}").replace("|", "\\|")


if __name__ == "__main__":
    import sys

    whole_text(Path(sys.argv[1]), page())
