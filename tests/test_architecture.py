"""The layers hold: packages import what `ksim.LAYERS` and `ksim.FENCES` allow; modules and functions stay small."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ksim

ROOT = Path(ksim.__file__).parent
#: All modules but the two at the top: the package's own, and `python -m ksim`, which is the command line.
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)
TOP = [ROOT / "__init__.py", ROOT / "__main__.py"]
LONGEST_MODULE, LONGEST_FUNCTION = 300, 45

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def dotted(path: Path) -> str:
    """``ksim/cost/step.py`` is ksim.cost.step, ``ksim/cost/__init__.py`` is ksim.cost."""
    return ".".join(("ksim", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def package(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def imported(path: Path) -> set[str]:
    """What *path* imports, to the name: ksim.cost.step.StepTimer."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@each_module
def test_imports_point_down(path):
    allowed = ksim.LAYERS[package(path)] | {package(path)}
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "ksim":
            assert any(f"{rest}.".startswith(f"{layer}.") for layer in allowed), f"may not import {name}"


@each_module
def test_libraries_stay_behind_their_fences(path):
    for name in imported(path):
        library = name.partition(".")[0]
        assert package(path) in ksim.FENCES.get(library, {package(path)}), f"may not import {library}"


def test_every_package_has_a_layer():
    assert {package(path) for path in MODULES} == ksim.LAYERS.keys()


def test_layers_have_no_cycle():
    graph = {name: {use.partition(".")[0] for use in uses} for name, uses in ksim.LAYERS.items()}
    assert {*TopologicalSorter(graph).static_order()} == ksim.LAYERS.keys()


def test_modules_have_no_cycle():
    known = {dotted(path): path for path in MODULES}
    graph = {}
    for name, path in known.items():
        uses = {use if use in known else use.rpartition(".")[0] for use in imported(path)}
        graph[name] = uses & known.keys() - {name}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("path", [*MODULES, *TOP], ids=dotted)
def test_modules_say_what_they_are_for_and_stay_small(path):
    source = path.read_text()
    assert ast.get_docstring(ast.parse(source)), "has no docstring"
    assert source.count("\n") <= LONGEST_MODULE


@each_module
def test_functions_stay_small(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, f"{node.name} is too long"
