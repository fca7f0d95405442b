"""The commands that README promises, and what they rest on."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def dry_run(*targets, **variables):
    """What make would do, line by line, were nothing set up yet."""
    settings = [f"{key}={value}" for key, value in {"VENV": "no-such-venv", **variables}.items()]
    # Under `make test` this make would take itself for a part of that one.
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "-n", *targets, *settings], cwd=ROOT, env=outside, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_readme_has_exactly_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(?:\$ )?make \w+.*$", "\n".join(re.findall(r"```.*?```", text, re.S)), re.M)
    assert [c.removeprefix("$ ").split("#")[0].strip() for c in commands] == ["make run", "make test"]


def test_run_needs_no_torch():
    plan = dry_run("run", ARGS="--json")
    assert "scripts/run_sim.py --json" in plan
    assert "-m venv" in plan
    assert "torch" not in plan


def test_test_installs_the_pinned_torch_preferring_the_cpu_build():
    plan = dry_run("test")
    assert plan.index("torch==2.13.0+cpu") < plan.index('"torch==2.13.0"')
    assert "--no-deps megatron-core" in plan
    assert plan.rstrip().endswith("scripts/test")


def test_setup_does_what_run_and_test_need():
    def installs(target):
        return [line for line in dry_run(target).splitlines() if " install " in line]

    assert installs("run") == installs("setup")[: len(installs("run"))]
    assert installs("test") == installs("setup")


def test_everything_is_pinned_exactly_and_without_an_index():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==\d[\w.]*", pin)] == []
    assert "torch==2.13.0" in pins
    assert "megatron-core==0.16.1" in pins


def test_the_oldest_packages_are_those_that_are_allowed_and_the_newest_are_newer():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    bounds = dict(line.split(">=") for line in config["options"]["install_requires"].split())
    assert bounds == pinned("constraints-oldest.txt")
    newest = pinned("constraints.txt")
    for name, bound in bounds.items():
        assert number(newest[name]) >= number(bound), name
    # What Python is checked with the oldest is the oldest allowed one, that types are checked for, too.
    assert config["options"]["python_requires"] == f">={config['mypy']['python_version']}"


def pinned(file):
    lines = (ROOT / file).read_text().lower().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def number(version):
    return [int(part) for part in version.split(".")]


def test_continuous_integration_runs_the_readme_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [
        line for line in script.read_text().splitlines() if line and not line.startswith(("#", "set", "cd"))
    ]
    assert commands == ["exec make browser docs test versions"]
    assert "scripts/check_versions.py" in dry_run("versions")


def test_checks_are_executable_and_cover_all_code():
    assert os.access(ROOT / "scripts" / "check", os.X_OK)
    assert os.access(ROOT / "scripts" / "test", os.X_OK)
    assert "scripts/check" in (ROOT / "scripts" / "test").read_text()
    assert "mypy simcore workloads hardware_profiles scripts" in (ROOT / "scripts" / "check").read_text()


def test_all_data_and_the_mark_of_types_travel_with_the_wheel():
    # The list of files that setuptools would install, without building anything.
    program = (
        "from setuptools import Distribution; d = Distribution(); d.parse_config_files(['setup.cfg']);"
        "c = d.get_command_obj('build_py'); c.ensure_finalized();"
        "print(*(f'{p}/{n}' for p, _, _, ns in c.data_files for n in ns), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = done.stdout.splitlines()
    found = {
        file.relative_to(ROOT).as_posix()
        for package in ("simcore", "workloads", "hardware_profiles")
        for file in (ROOT / package).rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    assert {"hardware_profiles/gpu/h800.toml", "simcore/py.typed"} < found
    assert found <= set(files)


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
