"""`python -m benchmarks.gallery`: write docs/gallery.md from the comments at the top of scenarios/*.toml, and parts of
docs/engines.md.

A comment has a title, a `Question:`, an `Answer:`, a table of runs by name, `Runs:` with their commands, `How sure:`
the answer is, and what to `Try:`.  Columns are keys of summary.json.  `python -m benchmarks gallery` plays each run.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from attrs import evolve, frozen

from benchmarks.findings import Findings, Goal, Sheet
from benchmarks.pages import put
from benchmarks.yardstick import STANDARD
from ksim.scenario.scenario import Scenario, setting
from ksim.scenario.sglang import LACKS
from ksim.simulation.simulate import simulate

ROOT = Path(__file__).parents[1]
#: Characters in a line of the page's text.
WIDTH = 130
PAGE, FOLDER = ROOT / "docs" / "gallery.md", ROOT / "scenarios"
#: The page with the runs of engines.toml, and with what ksim lacks of SGLang.
ENGINES = ROOT / "docs" / "engines.md"
GOAL = Goal("rows of scenarios/*.toml whose figures are no longer those of the run", 0, "rows", timed=False)


@frozen
class Row:
    """A run of a scenario: its name in the table, the command that prints its figures, and these."""

    name: str
    command: str
    figures: Sequence[str]

    @property
    def changes(self) -> Mapping[str, Any]:
        """What the command sets: values by dotted key."""
        return dict(setting(word) for word in shlex.split(self.command)[4::2])

    def played(self, scenario: Scenario, columns: Sequence[str]) -> "Row":
        """The row with the figures that its run has now."""
        summary = simulate(scenario.with_values(self.changes)).summary
        return evolve(self, figures=[figure(summary[column]) for column in columns])


@frozen
class Entry:
    """A scenario of the gallery, as its comment describes it."""

    path: Path
    title: str
    question: str
    answer: str
    certainty: str
    columns: Sequence[str]
    rows: Sequence[Row]
    advice: str
    commands: Sequence[str]

    @classmethod
    def read(cls, path: Path) -> "Entry":
        """Raises KeyError if a part of the comment is missing."""
        parts = _parts(path)
        heads, *rows = (_cells(line) for line in parts["table"].splitlines() if not line.startswith("|-"))
        commands = {name: command for command, name in (line.split("  # ") for line in _lines(parts["Runs"]))}
        advice, _, tries = parts["Try"].partition("\n")
        return cls(path, parts["title"], parts["Question"], parts["Answer"], parts["How sure"], heads[1:],
                   [Row(name, commands[name], figures) for name, *figures in rows], advice, _lines(tries))

    @property
    def scenario(self) -> Scenario:
        return Scenario.read(self.path)

    def played(self) -> "Entry":
        """The entry with the figures that its runs have now."""
        return evolve(self, rows=[row.played(self.scenario, self.columns) for row in self.rows])

    def table(self) -> list[str]:
        """Lines in Markdown whose columns line up."""
        lines = [("run", *self.columns), *((row.name, *row.figures) for row in self.rows)]
        first, *widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [" | ".join([head.ljust(first), *map(str.rjust, cells, widths)]) for head, *cells in lines]
        ruler = "|".join(["-" * (first + 2), *("-" * (width + 1) + ":" for width in widths)])
        return [f"| {texts[0]} |", f"|{ruler}|", *(f"| {text} |" for text in texts[1:])]

    def write(self) -> None:
        """Write the table into the scenario's comment."""
        table = "".join(f"# {line}\n" for line in self.table())
        text = self.path.read_text(encoding="utf-8")
        self.path.write_text(re.sub(r"(?:^# \|.*\n)+", lambda _: table, text, count=1, flags=re.MULTILINE),
                             encoding="utf-8")


def _parts(path: Path) -> Mapping[str, str]:
    """The paragraphs of the comment, by name; lines of text are joined, those of tables and commands are not."""
    comment = re.match(r"(?:#.*\n)*", path.read_text(encoding="utf-8"))
    text = re.sub(r"^# ?", "", comment[0] if comment else "", flags=re.MULTILINE)
    title, *paragraphs = (re.sub(r"\n(?![| ])", " ", paragraph) for paragraph in text.strip().split("\n\n"))
    return {"title": title} | dict(map(_named, paragraphs))


def _named(paragraph: str) -> tuple[str, str]:
    if paragraph.startswith("|"):
        return "table", paragraph
    name, _, text = paragraph.partition(":")
    return name, text.strip()


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def figure(value: float | bool | None) -> str:
    """Three significant digits; "yes" or "no"; a dash if unknown."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def paths() -> list[Path]:
    """The scenarios that ask a question, the first one first."""
    asking = (path for path in FOLDER.glob("*.toml") if "\n# Question: " in path.read_text(encoding="utf-8"))
    return sorted(asking, key=lambda path: (path.stem != "quickstart", path.stem))


def entries() -> list[Entry]:
    return [Entry.read(path) for path in paths()]


def page(shown: Sequence[Entry]) -> Iterator[str]:
    """The lines of the page: its contents, then a section for each scenario."""
    yield from (f"- [{entry.title}](#{_anchor(entry.title)})" for entry in shown)
    for entry in shown:
        yield from _section(entry)


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def _section(entry: Entry) -> Iterator[str]:
    file = entry.path.relative_to(ROOT).as_posix()
    yield from ("", f"## {entry.title}", "", f"[`{file}`](../{file})", "")
    yield from (*_wrapped(f"**{entry.question}**"), "", *_wrapped(entry.answer), "")
    yield from (*entry.table(), "", *(f"    {row.command}  # {row.name}" for row in entry.rows), "")
    yield from (*_wrapped(f"**How sure?** {_sentence(entry.certainty)}"), "")
    yield from (*_wrapped(f"**Try** {entry.advice}"), "", *(f"    {line}" for line in entry.commands))


def _wrapped(text: str) -> list[str]:
    """Lines; a number stays with its unit."""
    kept = re.sub(r"(?<=\d) (?=%|(?:ms|s|W)\b)", chr(0xa0), text)
    return [line.replace(chr(0xa0), " ") for line in wrap(kept, WIDTH, break_long_words=False, break_on_hyphens=False)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def findings(write: bool = False) -> Findings:
    """The rows of all scenarios, run anew; *write* puts their figures into the files and the page."""
    kept = entries()
    now = [entry.played() for entry in kept]
    stale = sum(old != new for entry, other in zip(kept, now, strict=True)
                for old, new in zip(entry.rows, other.rows, strict=True))
    if write:
        for entry in now:
            entry.write()
        main()
    sheets = [Sheet(entry.path.name, ("run", *entry.columns), [(row.name, *row.figures) for row in entry.rows])
              for entry in now]
    return Findings(sheets, [GOAL.judged(stale, STANDARD)])


def engines(entry: Entry) -> Iterator[str]:
    """The runs of the scenario that compares engines, and their commands."""
    yield from (*entry.table(), "", *(f"    {row.command}  # {row.name}" for row in entry.rows))


def approximated() -> Iterator[str]:
    """What vLLM's scheduler stands in for on engines with SGLang's."""
    return (f"- {name}" for name in LACKS)


def main() -> None:
    """Write the pages."""
    put(PAGE, "gallery", page(entries()))
    put(ENGINES, "engines", engines(Entry.read(FOLDER / "engines.toml")))
    put(ENGINES, "approximated", approximated())


if __name__ == "__main__":
    main()
