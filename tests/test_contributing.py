"""The first plug-in of CONTRIBUTING.md, step by step as it stands there, in a copy of the checkout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALK = PAGE.partition("## Your first plug-in")[2].partition("\n## ")[0]
FILES = dict(re.findall(r"^\*\*([\w/.]+)\*\*\n\n```python\n(.*?)```", WALK, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^    (ksim .*|python .*|make pages)$", WALK, re.MULTILINE)
#: One process runs all commands: to start one each would take as long again.
RUNNER = """
import sys

import pytest

from benchmarks import reference
from ksim.cli import main

def run(words):
    sys.argv = words
    if words == ["make", "pages"]:
        return reference.main()
    return main() if words[0] == "ksim" else pytest.main([*words[3:], "-p", "no:cacheprovider"])

for line in sys.stdin.read().splitlines():
    try:
        status = run(line.split())
    except SystemExit as stop:
        status = stop.code
    print(f"{line}: {int(status or 0)}", flush=True)
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """What the walk needs of a checkout, with the files that it adds."""
    copy = tmp_path_factory.mktemp("checkout")
    kept = shutil.ignore_patterns("__pycache__")
    for folder in ("ksim", "benchmarks", "scenarios", "tests/cluster", "tests/laws", "docs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=kept)
    for path in (ROOT / "pyproject.toml", *(ROOT / "tests").glob("*.py")):
        shutil.copy(path, copy / path.relative_to(ROOT))
    for name, text in FILES.items():
        assert not (ROOT / name).exists()
        (copy / name).write_text(text, encoding="utf-8")
    return copy


def test_the_walk_has_a_plug_in_and_a_test():
    assert [*FILES] == ["ksim/cluster/routers/fewest_tokens.py", "tests/cluster/test_fewest_tokens.py"]
    assert len(COMMANDS) == 5


def test_every_command_of_the_walk_ends_well(checkout):
    environment = os.environ | {"PYTHONPATH": str(checkout), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", RUNNER], input="\n".join(COMMANDS), cwd=checkout, env=environment,
                          text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(rf"^(?:{'|'.join(map(re.escape, COMMANDS))}): 0$", done.stdout, re.MULTILINE) == [
        f"{command}: 0" for command in COMMANDS], done.stdout
    assert re.search(r"^fewest_tokens +To the engine with the fewest prompt tokens", done.stdout, re.MULTILINE)
    assert "`fewest_tokens`" in (checkout / "docs" / "scenario.md").read_text(encoding="utf-8")


def test_the_files_pass_the_linter(checkout):
    shown = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", *FILES], cwd=checkout, text=True,
                           capture_output=True, check=False)
    assert shown.returncode == 0, shown.stdout
