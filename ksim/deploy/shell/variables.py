"""Variables of a shell script: what `$NAME` and `${NAME:-default}` stand for."""

import ast
import operator
import re
from collections.abc import Iterator, Sequence

from attrs import define, field

from ksim.deploy.shell.words import Piece
from ksim.foundation.errors import ConfigError

_NAMED = re.compile(r"(?:\\\$)|\$(?:(\w+)|\{(\w+)(?::?([-=+?])([^}]*))?\}|([@*#?!]))"
                    r"|\$\((?!\()([^)]*)\)|`([^`]*)`|\$\(\((.*?)\)\)")
#: A variable in `$((...))`: X, $X, ${X}, ${X:-0}.
_OPERAND = re.compile(r"\$\{(\w+)(?::?-(\w*))?\}|\$?\b([A-Za-z_]\w*)")
#: All elements of an array.
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")


@define
class Variables:
    """The *values* of variables by name, as far as the text sets them."""

    values: dict[str, str | None]
    """None is a value that depends on a condition, or on what a command prints."""
    arrays: dict[str, list[str]] = field(factory=dict, init=False)
    """The elements of arrays by name."""
    _why: dict[str, str] = field(factory=dict, init=False)
    _given: frozenset[str] = field(init=False)

    @_given.default
    def _names_given(self) -> frozenset[str]:
        return frozenset(self.values)

    def set(self, name: str, value: str, condition: str = "") -> None:
        """Set a variable; under a *condition*, such as "if", its value is not known from then on."""
        if condition and name in self._given:
            return  # the user has said which value holds
        if condition and self.values.get(name) != value:
            self._why[name] = f"is set under `{condition}`"
            self.values[name] = None
        else:
            self.values[name] = value

    def filled(self, pieces: Sequence[Piece], where: str | None) -> str:
        """The text of *pieces*; raises ConfigError, which names *where*, for a variable without a value.

        Without *where*, such a variable stays as it is written.
        """
        return "".join(self._fill(piece.text, where) if piece.expands else piece.text for piece in pieces)

    def words(self, pieces: Sequence[Piece], where: str | None) -> Iterator[str]:
        """The words of *pieces*: a variable outside quotes may be several, or none."""
        array = _ARRAY.fullmatch("".join(piece.text for piece in pieces))
        if array and array[1] in self.arrays:
            yield from self.arrays[array[1]]
        elif any(not piece.quoted and piece.expands and "$" in piece.text for piece in pieces):
            yield from self._split(pieces, where)
        else:
            yield self.filled(pieces, where)

    def _split(self, pieces: Sequence[Piece], where: str | None) -> Iterator[str]:
        word, begun = "", False
        for piece in pieces:
            text = self._fill(piece.text, where) if piece.expands else piece.text
            if piece.quoted or not piece.expands:
                word, begun = word + text, True
                continue
            first, *others = re.split(r"\s+", text)
            word += first
            for other in others:
                if word or begun:
                    yield word
                word, begun = other, False
        if word or begun:
            yield word

    def _fill(self, text: str, where: str | None) -> str:
        return _NAMED.sub(lambda match: self._value(match, where), text)

    def _value(self, match: "re.Match[str]", where: str | None) -> str:
        if match[0] == r"\$":
            return "$"
        name, operator, other = match[1] or match[2], match[3], match[4]
        if name is None or name.isdecimal():
            return self._nameless(match, where)
        value = self.values.get(name)
        if operator in ("-", "=") and not value and name not in self._why:
            return self._fill(other, where)
        if operator == "+":
            return self._fill(other, where) if value else ""
        if value is None:
            return self._unknown(match, where, self._why.get(name, "is not set in the text"), name)
        return value if where is None else self._settled(value, name, match, where)

    def _nameless(self, match: "re.Match[str]", where: str | None) -> str:
        if match[8] is not None:
            return self._computed(match, where)
        ran = match[6] or match[7]
        return self._unknown(match, where, "is what a shell would have to run to know" if ran
                             else "is an argument of the script")

    def _computed(self, match: "re.Match[str]", where: str | None) -> str:
        """The value of `$((...))`: whole numbers, variables, and + - * / %."""
        text = _OPERAND.sub(lambda name: self.values.get(name[1] or name[3]) or name[2] or "?", match[8])
        try:
            return str(arithmetic(text))
        except ValueError:
            return self._unknown(match, where, "is what a shell would have to compute")

    def _settled(self, value: str, name: str, match: "re.Match[str]", where: str) -> str:
        """*value*, unless it was made from what is not known."""
        if "$(" in value or "`" in value or "${" in value or re.search(r"\$\w", value):
            return self._unknown(match, where, f"is made of {value!r}, which a shell would have to run to know", name)
        return value

    def _unknown(self, match: "re.Match[str]", where: str | None, why: str, name: str = "") -> str:
        if where is None:
            return match[0]
        remedy = f"say what it is: --env {name}=VALUE" if name else "write its value in its place"
        raise ConfigError(where, f"{match[0]} {why}; {remedy}")


def arithmetic(text: str) -> int:
    """The value of *text*, whole numbers with + - * / % and brackets; raises ValueError for anything else."""
    if len(text) > 200 or not re.fullmatch(r"[\d\s()+*/%-]+", text) or "**" in text:
        raise ValueError(text)
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(text) from error


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    operators = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
                 ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
    if isinstance(node, ast.BinOp) and type(node.op) in operators:
        return int(operators[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError(ast.dump(node))
