"""The wheel installs without a network, runs, and has the data it needs and nothing of the tests."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import ksim
from ksim.foundation.errors import DISTRIBUTION

ROOT = Path(ksim.__file__).parents[1]
#: What `make dist` builds from.
PARTS = ("ksim", "docs", "scenarios", "traces", "tests/test_package.py", "README.md", "CHANGELOG.md", "CITATION.cff",
         "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "pyproject.toml", "setup.py", "MANIFEST.in")
BUILD = "from setuptools import build_meta; build_meta.build_sdist('dist'); build_meta.build_wheel('dist')"


def run(*words, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both distributions, built in a copy: a build writes beside its sources."""
    copy = tmp_path_factory.mktemp("copy")
    for part in PARTS:
        source, target = ROOT / part, copy / part
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    run(sys.executable, "-c", BUILD, folder=copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel):
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ksim").rglob("*")
             if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == files
    assert {"ksim/py.typed", "ksim/data/scenario.schema.json", "ksim/views/page/assets/page.css"} <= files
    assert any(name.startswith("ksim/data/profiles/") for name in files)


def test_the_source_distribution_has_pages_and_scenarios_and_no_tests(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"docs/scenario.md", "scenarios/quickstart.toml", "traces/conversation.csv", "setup.py"} <= names
    assert not {name for name in names if name.startswith(("tests", "shared", "benchmarks"))}


def test_the_readme_on_pypi_links_to_addresses(wheel):
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"ksim_llm-{ksim.__version__}.dist-info/METADATA").decode()
    metadata = message_from_string(text)
    assert (metadata["Name"], metadata["Version"]) == (DISTRIBUTION, ksim.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "](docs/" not in text and "](https://github.com/ksim-project/ksim/blob/main/docs/" in text
    assert "![" in text and "](https://raw.githubusercontent.com/ksim-project/ksim/main/docs/images/" in text


def test_it_runs_where_nothing_but_the_wheel_and_its_dependencies_is(wheel, tmp_path):
    """Those are taken from here, by a .pth file: `pip` may not look for them on a network."""
    clean, binaries = tmp_path / "clean", "Scripts" if os.name == "nt" else "bin"
    run(sys.executable, "-m", "venv", "--without-pip", clean, folder=tmp_path)
    python = clean / binaries / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile", wheel,
        folder=tmp_path)
    paths = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", folder=tmp_path).strip()
    (Path(paths) / "here.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    assert run(clean / binaries / "ksim", "--version", folder=tmp_path) == f"ksim {ksim.__version__}\n"
    shutil.copy(ROOT / "scenarios" / "workloads" / "constant.toml", tmp_path / "mine.toml")
    assert "TTFT" in run(clean / binaries / "ksim", "run", "mine.toml", folder=tmp_path)
