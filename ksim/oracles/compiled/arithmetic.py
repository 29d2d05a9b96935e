"""Arithmetic on arrays, floats and intervals: namespaces for formulas that are written once, and bounds of results.

A namespace has what no operator does.  Where the arguments of an operation are known to lie in intervals, so is its
result, and comparisons may be decided.

Stage formulas: run once on symbols, a formula becomes straight code without all that is known before.

A formula is written once, over operators and a namespace of what no operator does (`ceil`, `where`, ...), and runs on
whatever is a number to both.  Run on symbols it leaves on a tape what it does.  Symbols have bounds, and so has what
comes of them; where bounds decide a comparison, or the larger of two, that is decided once for all, and with it what
hangs on it.  What is known is worked out, what comes twice is done once, what no result needs is dropped, and what is
left is compiled.  No operation is exchanged for another or moved past one, so the code gives the formula's own bits,
but for the sign of a zero.
"""

import linecache
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import count, product
from types import CodeType
from typing import Any, ClassVar

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from ksim.compute.kernels.attention import COUNTS

__all__ = ["Arrays", "Floats", "Interval", "decided", "interval_of", "BatchKinds", "StagedFormula", "batch_kinds",
           "stage", "COUNT_INTERVALS"]


#: The least and the most that something may be.
Interval = tuple[float, float]

UNBOUNDED: Interval = (-math.inf, math.inf)
#: What does not fall when any of its arguments grows.
GROWING: Mapping[str, Callable[..., float]] = {
    "+": lambda one, other: one + other, "minimum": min, "maximum": max, "ceil": lambda one: _whole(math.ceil, one),
    "floor": lambda one: _whole(math.floor, one)}
#: What changes nothing on either side, and what does not on the right.
NOTHING: Mapping[str, float] = {"+": 0, "*": 1, "&": True}
NOTHING_RIGHT: Mapping[str, float] = {"-": 0, "/": 1, "**": 1}
#: What is true or false.
TRUTHS = frozenset(("<", "<=", "==", "&"))


class Arrays:
    """The operations that differ between arrays and floats."""

    ceil, floor, log, log2 = np.ceil, np.floor, np.log, np.log2
    minimum, maximum, where = np.minimum, np.maximum, np.where

    @staticmethod
    @lru_cache(maxsize=4096)
    def constant(number: float) -> NDArray[np.float64]:
        """The number that `stage` writes for *number*: operations take 1.5 times as long on one of Python's own."""
        return np.asarray(number, dtype=np.float64)

    @staticmethod
    def look_up(table: NDArray[np.float64], row: Any, column: Any) -> Any:
        return table[np.asarray(row, np.intp), np.asarray(column, np.intp)]


class Floats:
    """The operations on floats: for one new batch a step, as in a serving simulation, arrays take ten times as long."""

    ceil, floor, log, log2, minimum, maximum = math.ceil, math.floor, math.log, math.log2, min, max
    #: How `stage` writes down what it need not call.
    inline: ClassVar[Mapping[str, str]] = {
        "minimum": "{1} if {1} < {0} else {0}", "maximum": "{1} if {1} > {0} else {0}", "where": "{1} if {0} else {2}",
        "look_up": "{0}.item(int({1}), int({2}))", "&": "{0} and {1}"}

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        return yes if condition else no

    @staticmethod
    def look_up(table: NDArray[np.float64], row: Any, column: Any) -> Any:
        return float(table[int(row), int(column)])


def interval_of(operation: str, *between: Interval) -> Interval:
    """The interval of the result of *operation* for arguments *between* these; a table's is that of its entries."""
    if operation in TRUTHS:
        return False, True
    least, most = zip(*between, strict=True)
    if operation in GROWING:
        return GROWING[operation](*least), GROWING[operation](*most)
    if operation == "where":
        return min(least[1:]), max(most[1:])
    if operation == "look_up":
        return between[0]
    if len(between) == 2 and all(map(math.isfinite, (*least, *most))):
        return _of_two(operation, *between)
    return UNBOUNDED


def _of_two(operation: str, one: Interval, other: Interval) -> Interval:
    if operation == "-":
        return one[0] - other[1], one[1] - other[0]
    if operation == "*":
        corners = [first * second for first, second in product(one, other)]
        return min(corners), max(corners)
    if operation == "/" and not other[0] <= 0 <= other[1]:
        corners = [first / second for first, second in product(one, other)]
        return min(corners), max(corners)
    if operation == "**" and one[0] >= 0 and other[0] == other[1] > 0:
        return float(one[0]) ** other[0], float(one[1]) ** other[0]
    return UNBOUNDED


def _whole(rounded: Callable[[float], int], number: float) -> float:
    return rounded(number) if math.isfinite(number) else number


def decided(operation: str, arguments: tuple[Any, ...], between: tuple[Interval, ...]) -> Any:
    """The result of *operation* on *arguments* that lie *between* these, if the bounds decide it; else None."""
    if operation == "where":
        return _branch(between[0], *arguments)
    if len(arguments) != 2:
        return None
    (first, second), (one, other) = arguments, between
    if operation in ("minimum", "maximum"):
        return _chosen(operation, first, second, one, other)
    if operation in ("<", "<=", "=="):
        return _compared(operation, one, other)
    return _without_effect(operation, first, second, one, other)


def _branch(condition: Interval, _: Any, yes: Any, no: Any) -> Any:
    return yes if condition[0] > 0 or yes is no else no if condition[1] <= 0 else None


def _chosen(operation: str, first: Any, second: Any, one: Interval, other: Interval) -> Any:
    larger, smaller = (first, second) if operation == "maximum" else (second, first)
    return larger if one[0] >= other[1] else smaller if other[0] >= one[1] else None


def _compared(operation: str, one: Interval, other: Interval) -> bool | None:
    if operation == "==":
        return False if one[1] < other[0] or other[1] < one[0] else None
    if one[1] < other[0] or (operation == "<=" and one[1] == other[0]):
        return True
    return False if one[0] > other[1] or (operation == "<" and one[0] == other[1]) else None


def _without_effect(operation: str, first: Any, second: Any, one: Interval, other: Interval) -> Any:
    nothing = NOTHING.get(operation)
    if other == (nothing, nothing) or other == (NOTHING_RIGHT.get(operation),) * 2:
        return first
    if one == (nothing, nothing):
        return second
    if operation in ("*", "&") and (0, 0) in (one, other) and all(map(math.isfinite, (*one, *other))):
        return 0
    if operation == "/" and not other[0] <= 0 <= other[1]:
        return 1 if first is second else 0 if one == (0, 0) else None
    return None


#: Whether a batch has decodes, and whether it has chunks; None where some of many batches have.
BatchKinds = tuple[bool | None, bool | None]
#: Bounds of how many sequences there are of a kind, and of all that is counted of them.
COUNT_INTERVALS: Mapping[bool | None, Interval] = {False: (0.0, 0.0), True: (1.0, 2.0**53), None: (0.0, 2.0**53)}

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "&": operator.and_}

_numbers = count()


def stage(formula: Callable[..., Any], symbols: Mapping[str, Interval], m: Any) -> Callable[..., Any]:
    """A function of the numbers that *symbols* names, in order, which returns what *formula* does of a namespace and
    them: a number, or a tuple of such.

    A number must lie within its bounds; one with no room between them is taken to be that, and not looked at.  Numbers
    are of the kind that the namespace *m* is for.  It may have `inline`: how something is sooner written down than
    called, with arguments as {0}, {1}, ..., and `constant`: what to write for a number.  `inspect.getsource` has the
    source.
    """
    tape = _Tape(m)
    results = formula(tape, *(least if least == most else _Term(tape, name, "", (), (least, most))
                            for name, (least, most) in symbols.items()))
    body, text = tape.written(results)
    source = "\n    ".join((f"def staged({', '.join(symbols)}):", *body, f"return {text}"))
    exec(_compiled(source), tape.names)
    tape.terms.clear()  # they and the tape refer to each other, as do a function and a name of it among its globals
    staged: Callable[..., Any] = tape.names.pop("staged")
    return staged


@lru_cache(maxsize=1024)  # engines alike have the same formulas, whose numbers alone differ
def _compiled(source: str) -> CodeType:
    name = f"<staged {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec")


def _forth(operation: str) -> Callable[["_Term", Any], Any]:
    return lambda term, other: term.tape.put(operation, term, other)


def _back(operation: str) -> Callable[["_Term", Any], Any]:
    return lambda term, other: term.tape.put(operation, other, term)


@define(eq=False)
class _Term:
    """A number to come, which code calls *name*: a symbol, or an operation on terms and on what is known."""

    tape: "_Tape"
    name: str
    operation: str
    arguments: tuple[Any, ...]
    between: Interval

    __add__, __radd__ = _forth("+"), _back("+")
    __sub__, __rsub__ = _forth("-"), _back("-")
    __mul__, __rmul__ = _forth("*"), _back("*")
    __truediv__, __rtruediv__ = _forth("/"), _back("/")
    __pow__, __rpow__ = _forth("**"), _back("**")
    __and__, __rand__ = _forth("&"), _back("&")
    __lt__, __gt__ = _forth("<"), _back("<")
    __le__, __ge__ = _forth("<="), _back("<=")
    __eq__, __hash__ = _forth("=="), object.__hash__


@define(eq=False)
class _Tape:
    """Records the operations of a formula on symbols, in order; the formula sees it as its namespace `m`.

    `names` has the objects that the code refers to by name, such as arrays and functions; `known` numbers those that
    have none of their own.
    """

    m: Any
    terms: dict[tuple[str, ...], _Term] = field(factory=dict)
    names: dict[str, Any] = field(factory=lambda: {"inf": math.inf})
    known: dict[int, str] = field(factory=dict)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self.names[name] = getattr(self.m, name)
        return lambda *arguments: self.put(name, *arguments)

    def put(self, operation: str, *arguments: Any) -> Any:
        """The result of *operation* on *arguments*: a value where it is known already, else a new term."""
        if not any(isinstance(argument, _Term) for argument in arguments):
            return _plain((OPERATORS.get(operation) or self.names[operation])(*arguments))
        between = tuple(map(_between, arguments))
        known = decided(operation, arguments, between)
        if known is not None:
            return known
        key = (operation, *map(self._text, arguments))
        if key not in self.terms:
            self.terms[key] = _Term(self, f"t{len(self.terms)}", operation, arguments, interval_of(operation, *between))
        return self.terms[key]

    def written(self, results: Any) -> tuple[list[str], str]:
        """Lines of code, and what to write for *results*; what is used once is written where it is used."""
        uses, lines, places = self._uses(results), list[str](), dict[str, str]()
        for term in self.terms.values():
            if uses[term.name]:
                texts = map(self._text, term.arguments)
                text = self._form(term).format(*(places.get(name, name) for name in texts))
                if uses[term.name] > 1:
                    lines.append(f"{term.name} = {text}")
                else:
                    places[term.name] = f"({text})"
        return lines, _nested(results, lambda leaf: places.get(name := self._text(leaf), name))

    def _uses(self, results: Any) -> Counter[str]:
        """The number of times that the code for *results* uses each name."""
        uses = Counter(_flat(results, self._text))
        for term in reversed(self.terms.values()):
            if uses[term.name]:
                form = self._form(term)
                for index, argument in enumerate(term.arguments):
                    uses[self._text(argument)] += form.count(f"{{{index}}}")
        return uses

    def _form(self, term: _Term) -> str:
        """The template of the code that computes *term*."""
        called = ", ".join(f"{{{index}}}" for index in range(len(term.arguments)))
        form: str = getattr(self.m, "inline", {}).get(term.operation) or (
            f"{{0}} {term.operation} {{1}}" if term.operation in OPERATORS else f"{term.operation}({called})")
        return form

    def _text(self, argument: Any) -> str:
        """The code for a term, a number, or some other object: its name, or a literal."""
        if isinstance(argument, _Term):
            return argument.name
        if isinstance(argument, int | float):
            if not hasattr(self.m, "constant"):
                return f"({argument!r})" if argument < 0 else repr(argument)
            argument = self.m.constant(argument)
        name = self.known.setdefault(id(argument), f"known{len(self.known)}")
        self.names[name] = argument
        return name


def _flat(results: Any, text: Callable[[Any], str]) -> list[str]:
    return [leaf for part in results for leaf in _flat(part, text)] if isinstance(results, tuple) else [text(results)]


def _nested(results: Any, text: Callable[[Any], str]) -> str:
    if isinstance(results, tuple):
        return f"({''.join(f'{_nested(part, text)}, ' for part in results)})"
    return text(results)


def _plain(number: Any) -> Any:
    """A number of numpy's as one of Python's."""
    return number.item() if isinstance(number, np.generic | np.ndarray) and number.ndim == 0 else number


def _between(argument: Any) -> Interval:
    if isinstance(argument, _Term):
        return argument.between
    return (argument, argument) if isinstance(argument, int | float) else (argument.min(), argument.max())


class StagedFormula(dict[BatchKinds, Callable[..., Any]]):
    """A *formula* of a namespace, `COUNTS` and *further* numbers, staged for a kind of batch when one first comes."""

    def __init__(self, formula: Callable[..., Any], m: Any, further: Mapping[str, Interval] | None = None) -> None:
        self.formula, self.m, self.further = formula, m, further or {}

    def __missing__(self, kinds: BatchKinds) -> Callable[..., Any]:
        decodes, chunks = (COUNT_INTERVALS[kind] for kind in kinds)
        counts = {name: chunks if name.startswith("chunk") else decodes for name in COUNTS}
        self[kinds] = stage(self.formula, {**counts, **self.further}, self.m)
        return self[kinds]


def batch_kinds(counts: Sequence[NDArray[Any]]) -> BatchKinds:
    """The kinds of batches whose `COUNTS` are columns."""
    decodes, _, _, chunks, *_ = counts
    return _all(decodes), _all(chunks)


def _all(numbers: NDArray[Any]) -> bool | None:
    some = np.count_nonzero(numbers)
    return True if some == len(numbers) else None if some else False
