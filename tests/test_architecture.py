"""The layers hold: packages import what `ksim.LAYERS` and `ksim.FENCES` allow; modules and functions stay small."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median, quantiles

import ksim

ROOT = Path(ksim.__file__).parent
PATHS = sorted(ROOT.rglob("*.py"))
#: All modules but the two at the top: the package's own, and `python -m ksim`, which is the command line.
MODULES = [path for path in PATHS if path.parent != ROOT]
LONGEST_MODULE, LONGEST_FUNCTION, MOST_POSITIONAL = 500, 40, 7


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in PATHS}


def dotted(path: Path) -> str:
    """``ksim/cost/step.py`` is ksim.cost.step, ``ksim/cost/__init__.py`` is ksim.cost."""
    return ".".join(("ksim", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def package(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@cache
def imported(path: Path) -> set[str]:
    """What *path* imports, to the name: ksim.cost.step.StepTimer."""
    names: set[str] = set()
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def may_import(path: Path, name: str) -> bool:
    top, _, rest = name.partition(".")
    if top != "ksim":
        return package(path) in ksim.FENCES.get(top, {package(path)})
    allowed = {*ksim.LAYERS[package(path)], package(path), "__version__"}
    return any(f"{rest}.".startswith(f"{layer}.") for layer in allowed)


def test_imports_point_down_and_libraries_stay_behind_their_fences():
    assert not [f"{dotted(path)} may not import {name}" for path in MODULES
                for name in sorted(imported(path)) if not may_import(path, name)]


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


def test_modules_say_what_they_are_for():
    assert not [dotted(path) for path, tree in trees().items() if not ast.get_docstring(tree)]


def test_modules_and_functions_stay_small():
    assert not [dotted(path) for path in PATHS if path.read_text(encoding="utf-8").count("\n") > LONGEST_MODULE]
    lengths = {f"{dotted(path)}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
               for path, tree in trees().items() for node in ast.walk(tree)
               if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert not [name for name, lines in lengths.items() if lines > LONGEST_FUNCTION]
    assert median(lengths.values()) <= 5 and quantiles(lengths.values(), n=10)[-1] < 20


def test_values_have_few_positional_arguments():
    """Where there are more than seven, nobody can tell them apart; a row of a trace has its format's order.

    Those of a table are the names of its columns.
    """
    calls = [(path, node, ast.unparse(node.func)) for path, tree in trees().items() for node in ast.walk(tree)
             if isinstance(node, ast.Call) and len(node.args) > MOST_POSITIONAL]
    assert not [f"{dotted(path)}:{call.lineno}" for path, call, name in calls
                if (name[0].isupper() or name == "cls") and name not in ("Row", "Group", "Table.of")]


def test_the_words_of_the_code_in_the_glossary_are_classes_of_the_code():
    page = (ROOT.parent / "docs" / "glossary.md").read_text(encoding="utf-8").partition("## Words of the code")[2]
    named = {name for row in re.findall(r"^\| [^|]+ \|([^|]+)\|", page.partition("\n## ")[0], re.MULTILINE)
             for name in re.findall(r"`(\w+)`", row)}
    classes = {node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert len(named) > 40 and named <= classes
