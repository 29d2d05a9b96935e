"""The layers hold: packages import what `ksim.LAYERS` and `ksim.FENCES` allow; modules and functions stay small."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from math import ceil
from pathlib import Path
from statistics import median, quantiles

import ksim
from ksim.foundation import catalog

ROOT = Path(ksim.__file__).parent
PATHS = sorted(ROOT.rglob("*.py"))
#: All modules but the two at the top: the package's own, and `python -m ksim`, which is the command line.
MODULES = [path for path in PATHS if path.parent != ROOT]
LONGEST_MODULE, SMALLEST_MODULE, LONGEST_FUNCTION, MOST_POSITIONAL = 500, 60, 40, 7
#: Most words that only the code uses, which docs/glossary.md explains.
MOST_WORDS = 60


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in PATHS}


def dotted(path: Path) -> str:
    """``ksim/cost/step.py`` is ksim.cost.step, ``ksim/cost/__init__.py`` is ksim.cost."""
    return ".".join(("ksim", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def room(path: Path) -> str:
    return room_of(dotted(path))


def room_of(module: str) -> str:
    """The room of a module of ksim: its package, or the package within it that `ksim.LAYERS` names."""
    parts = module.split(".")[1:3]
    return within if (within := ".".join(parts)) in ksim.LAYERS else parts[0]


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
        return room(path) in ksim.FENCES.get(top, {room(path)})
    allowed = {*ksim.LAYERS[room(path)], room(path), "__version__"}
    return any(f"{rest}.".startswith(f"{layer}.") and room_of(f"ksim.{layer}") == room_of(name) for layer in allowed)


def test_imports_point_down_and_libraries_stay_behind_their_fences():
    assert not [f"{dotted(path)} may not import {name}" for path in MODULES
                for name in sorted(imported(path)) if not may_import(path, name)]


def test_every_room_has_a_layer():
    assert {room(path) for path in MODULES} - {"kv"} == ksim.LAYERS.keys()


def test_layers_have_no_cycle():
    graph = {name: {room_of(f"ksim.{use}") for use in uses} for name, uses in ksim.LAYERS.items()}
    assert {*TopologicalSorter(graph).static_order()} == ksim.LAYERS.keys()


@cache
def graph() -> dict[str, set[str]]:
    """The modules of ksim that each of them imports."""
    known = {dotted(path): path for path in MODULES}
    return {name: {use if use in known else use.rpartition(".")[0] for use in imported(path)} & known.keys() - {name}
            for name, path in known.items()}


@cache
def importers() -> dict[str, set[str]]:
    """The modules of ksim that import each of them."""
    return {name: {user for user, uses in graph().items() if name in uses} for name in graph()}


def test_modules_have_no_cycle():
    TopologicalSorter(graph()).prepare()


def test_rooms_keep_their_budgets():
    """Whoever needs another module, door or hundred lines writes the number down; whoever needs fewer, too."""
    modules, lines, doors = Counter[str](), Counter[str](), Counter[str]()
    for path in MODULES:
        modules[room(path)] += 1
        lines[room(path)] += path.read_text(encoding="utf-8").count("\n")
        doors[room(path)] += any(room_of(user) != room(path) for user in importers()[dotted(path)])
    found = {name: (modules[name], ceil(lines[name] / 100) * 100, doors[name]) for name in modules}
    assert {name: figures for name, figures in found.items() if ksim.ROOMS.get(name) != figures} == {}
    assert ksim.ROOMS.keys() == found.keys()


def test_small_modules_are_plug_ins_or_have_users():
    """A module of a few lines is a thing more to open: a neighbour has room for it."""
    assert not [dotted(path) for path in MODULES if path.stem not in ("__init__", "__main__")
                and path.read_text(encoding="utf-8").count("\n") < SMALLEST_MODULE
                and len(importers()[dotted(path)]) < 3 and path.parent not in plug_in_folders()]


@cache
def plug_in_folders() -> set[Path]:
    """The folders of `catalog.METHODS`, and those that read and write what others made."""
    folders = {*catalog.METHODS, "compute.kernels", "validation.recordings", "deploy.programs", "deploy.readers",
               "deploy.writers", "calibration.recipes", "features"}
    return {ROOT.joinpath(*folder.split(".")) for folder in folders}


PLAIN_RUN = """
import sys
from ksim import Scenario, simulate
simulate(Scenario.read("scenarios/quickstart.toml").with_values({"workload.replay.limit": 3}))
print(*(name for name in sys.modules if name.partition(".")[0] == "ksim"))
"""
#: Most modules that a plain run loads.
MOST_LOADED = 159
#: What it does not use: features, and what only they need.
UNUSED = ("features.", "kv.offload", "kv.transfer", "study", "server", "cluster.gateway",
          "scheduling.adapter", "scheduling.image", "scheduling.draft", "scheduling.connector_scheduler",
          "scheduling.group", "engine.beam", "engine.event", "engine.connected", "compute.vision", "kv.cache.hybrid",
          "kv.cache.sglang", "kv.cache.block_cache")


def test_a_plain_run_loads_few_modules_and_none_of_a_feature():
    loaded = subprocess.run([sys.executable, "-c", PLAIN_RUN], cwd=ROOT.parent, capture_output=True, text=True,
                            check=True).stdout.split()
    assert len(loaded) <= MOST_LOADED
    assert [name for name in loaded if name.removeprefix("ksim.").startswith(UNUSED)] == []


def test_a_class_has_a_name_of_its_own():
    """Those of plug-ins follow the names of what they are like; a reader meets them in their folder."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        if path.parent not in plug_in_folders():
            for node in trees()[path].body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(dotted(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


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
    rows = re.findall(r"^\| [^|]+ \|([^|]+)\|", page.partition("\n## ")[0], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    classes = {node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert 20 < len(rows) - 1 <= MOST_WORDS and named <= classes


def test_the_page_of_the_architecture_names_every_room():
    page = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("| Package | Answers |")[1].split("\n\n")[0]
    rooms = "".join(row.split("|")[1] for row in table.splitlines() if row)
    assert {*re.findall(r"`([^`]+)`", rooms)} == {*ksim.LAYERS}
