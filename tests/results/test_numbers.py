"""The table of numbers is the one place that lists them, and says which of them a view shows."""

import ast
from pathlib import Path

import pytest

import ksim
from ksim.results import numbers
from ksim.results.numbers import LATENCIES, NUMBERS, STATISTICS, latency_key

ROOT = Path(ksim.__file__).parent
#: What lists numbers for a reason of its own: where they are computed, and what others call them.
ALLOWED = {
    "study/capacity/traffic.py": "computes those of a load",
    "cli/start.py": "holds what a run of five requests must come to",
    "cli/validate.py": "names the three that benchmark clients have, too",
    "study/experiment.py": "counts how requests ended",
    "study/tuning/plan.py": "counts how requests ended",
}
#: Rooms whose files have keys of formats of others.
OF_OTHERS = ("results/", "validation/", "calibration/", "server/")


def lists_of_keys(tree: ast.Module) -> list[list[str]]:
    """The tuples, lists, sets and dictionaries that name three numbers or more."""
    found = []
    for node in ast.walk(tree):
        names = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else (
            node.keys if isinstance(node, ast.Dict) else [])
        keys = [name.value for name in names if isinstance(name, ast.Constant) and name.value in NUMBERS]
        found += [keys] if len(keys) > 2 else []
    return found


def test_no_view_and_no_command_has_a_list_of_numbers_of_its_own():
    lists = {path.relative_to(ROOT).as_posix(): lists_of_keys(ast.parse(path.read_text(encoding="utf-8")))
             for path in ROOT.rglob("*.py")}
    assert not [(name, keys) for name, keys in lists.items()
                if keys and not name.startswith(OF_OTHERS) and name not in ALLOWED]


@pytest.mark.parametrize("name", ["REPORTED", "IN_NOTEBOOKS", "OF_WORK", "COMPARED", "OF_STUDIES", "BEST_BY", "OF_COST",
                                  "AGAINST_FIRST", "OF_RANKS", "OF_ROUTERS", "DRAWN_OF_ROUTERS", "_OF_POOLS",
                                  "_ALWAYS_OF_POOLS"])
def test_views_show_numbers_of_the_table(name):
    shown = getattr(numbers, name)
    keys = [key for keys in shown.values() for key in keys] if isinstance(shown, dict) else [*shown]
    assert keys and {*keys} <= NUMBERS.keys()
    assert isinstance(shown, dict) or len({*keys}) == len(keys)


def test_every_statistic_of_a_latency_is_a_number():
    assert {latency_key(name, statistic) for name in LATENCIES for statistic in STATISTICS} <= NUMBERS.keys()


def test_a_number_has_one_title():
    titles = [number.title for number in NUMBERS.values() if number.key != "num_failed"]
    assert len({*titles}) == len(titles)
