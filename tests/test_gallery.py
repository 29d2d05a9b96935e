"""The gallery: scenarios/*.toml, whose comments ask a question and answer it, and docs/gallery.md made of them.

Runs are short here; `python -m benchmarks gallery` plays them in full and compares every figure.
"""

import re
from functools import cache
from itertools import permutations

import attrs
import pytest

from benchmarks import gallery
from ksim.simulation.simulate import simulate

ENTRIES = {entry.path.stem: entry for entry in gallery.entries()}

#: By scenario: how many requests show what its answer says, and runs of which the first has less in a column.
CLAIMS = {
    "quickstart": (40, [("H200", "H100", "median_tpot_ms"), ("H100", "A100", "median_tpot_ms")]),
    "adapters": (40, [("base model", "8 adapters", "median_tpot_ms"), ("8 adapters", "64 adapters", "p99_ttft_ms")]),
    "agents": (80, [("knows prefixes", "in turn", "median_ttft_ms"),
                     ("in turn", "knows prefixes", "prefix_cache_hit_rate")]),
    "burst": (100, [("fcfs, Poisson", "fcfs", "median_ttft_ms"), ("stall_free, 512", "fcfs", "p99_itl_ms"),
                    ("fcfs", "stall_free, 512", "p99_ttft_ms")]),
    "capacity_plan": (200, [("H100: 1 x TP8", "H100: 1 x TP4", "p99_ttft_ms"),
                            ("H100: 3 x TP2, FP8", "H100: 2 x TP2, FP8", "p99_tpot_ms")]),
    "carbon": (40, [("in Sweden", "L40S", "carbon_grams_per_request"),
                    ("at 8 requests/s", "H100 in Poland", "carbon_grams_per_request")]),
    "deepseek_v3": (24, [("TP8, 32 in flight", "DP8, 32 in flight", "median_tpot_ms")]),
    "engines": (80, [("SGLang, 3/s", "vLLM, 3/s", "median_ttft_ms"), ("vLLM, 3/s", "SGLang, 3/s", "p99_itl_ms"),
                      ("SGLang, mixed, 3/s", "SGLang, 3/s", "p99_itl_ms")]),
    "eplb": (768, [("equally popular", "no EPLB", "median_ttft_ms"), ("16 copies", "EPLB", "median_tpot_ms"),
                   ("EPLB", "no EPLB", "median_tpot_ms")]),
    "gpt_oss": (128, [("16 in flight", "64 in flight", "median_tpot_ms"),
                      ("64 in flight", "16 in flight", "joules_per_output_token")]),
    "long_documents": (60, [("20 documents", "20, no prefix cache", "median_ttft_ms")]),
    "mixture_without_nvlink": (60, [("TP2, PP2", "TP4", "median_ttft_ms"),
                                    ("two L40S, TP2, FP8", "TP4", "median_tpot_ms")]),
    "nvl72": (480, [("NVFP4", "no overlap", "median_tpot_ms"), ("no overlap", "BF16 sent, too", "median_ttft_ms"),
                    ("NVFP4", "FP8", "joules_per_output_token")]),
    "offload": (130, [("256 GiB", "GPU alone", "p99_ttft_ms")]),
    "power_cap": (60, [("400 W", "700 W", "joules_per_output_token"), ("700 W", "400 W", "p99_ttft_ms"),
                       ("slack", "400 W", "p99_tpot_ms")]),
    "reasoning": (60, [("FP8 weights and cache", "BF16", "preemptions"), ("FP8 weights", "BF16", "median_e2el_ms")]),
    "slow_gpu": (16, [("TP8, all alike", "TP8, 90 %", "median_tpot_ms"), ("TP8, 90 %", "TP8, half", "median_tpot_ms"),
                      ("replicas, all alike", "replicas, half", "p99_tpot_ms")]),
    "split": (50, [("split, 1.5/s", "together, 1.5/s", "p99_itl_ms"),
                   ("together, 1.5/s", "split, 1.5/s", "median_ttft_ms")]),
    "wide_ep": (64, [("DeepEP", "all tokens to all ranks", "median_tpot_ms"),
                     ("DeepEP", "all tokens to all ranks", "median_ttft_ms"),
                     ("popular experts", "DeepEP", "median_tpot_ms")]),
    "upgrade": (60, [("2 H100, FP8", "4 A100", "median_tpot_ms"),
                     ("2 H100, FP8", "4 A100", "dollars_per_million_output_tokens")]),
}
#: What units make of the figures of columns: milliseconds, shares and grams.
SCALES = (1.0, 1e-3, 1e2, 1e3)


def test_every_scenario_has_a_claim():
    assert CLAIMS.keys() == ENTRIES.keys()


#: Whose runs take longest, and are left to `make explore`.
LONG = {"agents", "capacity_plan", "deepseek_v3", "eplb", "gpt_oss", "mixture_without_nvlink", "nvl72", "offload",
        "power_cap", "reasoning", "upgrade", "wide_ep"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.explore] * (name in LONG)) for name in CLAIMS])
def test_a_short_run_shows_what_the_answer_says(name):
    count, claims = CLAIMS[name]
    for less, more, column in claims:
        assert _short(name, less, count)[column] < _short(name, more, count)[column]


@cache
def _short(name, run, count):
    entry = ENTRIES[name]
    (row,) = (row for row in entry.rows if row.name == run)
    scenario = entry.scenario.with_values(row.changes)
    key = "workload.synthetic.count" if scenario.workload.synthetic else "workload.replay.limit"
    return simulate(scenario.with_values({key: count})).summary


@pytest.mark.parametrize("name", CLAIMS)
def test_the_table_shows_what_the_answer_says(name):
    entry = ENTRIES[name]
    cells = {(row.name, column): _value(cell) for row in entry.rows
             for column, cell in zip(entry.columns, row.figures, strict=True)}
    for less, more, column in CLAIMS[name][1]:
        assert cells[less, column] < cells[more, column]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_an_answer_has_its_figures_from_the_table(entry):
    """Or from the question, the settings and the names of runs; in per cent of each other and as multiples, too."""
    toml = re.sub(r"^#.*\n", "", entry.path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    runs = " ".join(f"{row.name} {row.command}" for row in entry.rows)
    known = {_value(number) for number, _ in _numbers(f"{entry.title} {entry.question} {toml} {runs}")}
    assert not [(number, unit) for number, unit in _numbers(entry.answer)
                if _value(number) not in known and not _in_table(number, unit, entry)]


def _numbers(text):
    """Numbers and the words that follow them."""
    return re.findall(r"(?<![\w.])(\d+(?:,\d{3})*(?:\.\d+)?)(?!\w)(?: (%|times))?", text)


def _in_table(number, unit, entry):
    """Whether a cell rounds to the *number*, or two cells of a column make it as per cent or a multiple."""
    columns = [[_value(cell) for cell in column] for column in zip(*(row.figures for row in entry.rows), strict=True)]
    cells = [cell * scale for column in columns for cell in column for scale in SCALES]
    ratios = [one / other for column in columns for one, other in permutations(column, 2) if other]
    made = {"%": [100 * abs(ratio - 1) for ratio in ratios], "times": ratios}.get(unit, [])
    last = 10.0 ** -len(number.partition(".")[2])
    return any(abs(_value(number) - cell) <= 0.501 * last for cell in cells) or any(
        abs(_value(number) - ratio) <= last for ratio in made)


def _value(cell):
    return float(cell.replace(",", "")) if cell[0].isdigit() else float(cell == "yes")


def test_commands_of_runs_name_their_scenario():
    for entry in ENTRIES.values():
        for row in entry.rows:
            assert re.fullmatch(rf"ksim run scenarios/{entry.path.name}(?: --set (?:'[^']+'|[^' ]+))*", row.command)


def test_figures_of_the_quickstart_are_those_of_its_run():
    """The others take minutes: `python -m benchmarks gallery`."""
    entry = ENTRIES["quickstart"]
    assert entry.rows[0].played(entry.scenario, entry.columns) == entry.rows[0]


def test_the_page_says_what_the_files_say():
    text = gallery.PAGE.read_text(encoding="utf-8")
    assert "\n".join(gallery.page([*ENTRIES.values()])) in text, "make pages"


def test_the_page_of_engines_has_their_runs_and_what_is_approximated():
    text = gallery.ENGINES.read_text(encoding="utf-8")
    for lines in (gallery.engines(ENTRIES["engines"]), gallery.approximated()):
        assert "\n".join(lines) in text, "make pages"


def test_a_table_is_written_where_it_stood(tmp_path):
    entry = ENTRIES["burst"]
    copy = tmp_path / "burst.toml"
    copy.write_text(entry.path.read_text(encoding="utf-8").replace(entry.rows[0].figures[0], "1"), encoding="utf-8")
    stale = gallery.Entry.read(copy)
    assert stale.rows[0] != entry.rows[0]
    attrs.evolve(stale, rows=entry.rows).write()
    assert gallery.Entry.read(copy).rows == entry.rows


def test_figures_have_three_digits():
    assert [*map(gallery.figure, (None, True, False, 12345, 1234.5, 99.94, 0.99751, 0.00404))] == [
        "-", "yes", "no", "12,345", "1,234", "99.9", "0.998", "0.00404"]
