"""Variables of a shell script: what `$NAME` and `${NAME:-default}` stand for."""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import define, field

from ksim.deploy.shell.words import Piece, Tokens
from ksim.foundation.errors import ConfigError

#: The default of a variable: it may have braces, as JSON does.
_INNER = r"[^{}]"
for _ in range(5):
    _INNER = rf"(?:[^{{}}]|\{{{_INNER}*+\}})"
_NAMED = re.compile(r"(?:\\\$)|\$(?:(\w+)|\{(\w+)(?::?([-=+?])(" + _INNER + r"*+|[^}]*))?\}|([@*#?!]))"
                    r"|\$\((?!\()([^)]*)\)|`([^`]*)`|\$\(\((.*?)\)\)", re.DOTALL)
#: A variable in `$((...))`: X, $X, ${X}, ${X:-0}.
_OPERAND = re.compile(r"\$\{(\w+)(?::?-(\w*))?\}|\$?\b([A-Za-z_]\w*)")
#: What a value has that is not known.
_OPEN = re.compile(r"\$[\w({]|`")


@define
class Variables:
    """The *values* of variables by name, as far as the text sets them."""

    values: dict[str, str | None]
    """None is a value that depends on a condition, or on what a command prints."""
    _why: dict[str, str] = field(factory=dict, init=False)
    _given: frozenset[str] = field(init=False)

    @_given.default
    def _names_given(self) -> frozenset[str]:
        return frozenset(self.values)

    def set(self, name: str, value: str, condition: str = "") -> None:
        """Set a variable; under a *condition*, such as "if", its value is not known from then on."""
        if name in self._given and (condition or _OPEN.search(value)):
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
        return "".join(self._fill(piece.text, where) if piece.expands else piece.text
                       for piece in self._with_defaults(pieces))

    def words(self, pieces: Sequence[Piece], where: str | None) -> Iterator[str]:
        """The words of *pieces*: a variable outside quotes may be several, or none."""
        if any(not piece.quoted and piece.expands and "$" in piece.text for piece in pieces):
            yield from self._split(pieces, where)
        else:
            yield self.filled(pieces, where)

    def _split(self, pieces: Sequence[Piece], where: str | None) -> Iterator[str]:
        word, begun = "", False
        for piece in self._with_defaults(pieces):
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

    def _with_defaults(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """*pieces* in which `${NAME:-'default'}` outside quotes is its default's own pieces, without their quotes."""
        for piece in pieces:
            match = _NAMED.fullmatch(piece.text) if piece.expands and not piece.quoted else None
            default = match[4] if match and match[3] in ("-", "=") and self._takes_default(match[2]) else ""
            tokens = [*Tokens(default, "")] if default and {*default} & {*"'\""} else []
            if [token.kind for token in tokens] == ["word", "end"]:
                yield from tokens[0].pieces
            else:
                yield piece

    def _takes_default(self, name: str) -> bool:
        return not self.values.get(name) and name not in self._why

    def _fill(self, text: str, where: str | None) -> str:
        return _NAMED.sub(lambda match: self._value(match, where), text)

    def _value(self, match: "re.Match[str]", where: str | None) -> str:
        if match[0] == r"\$":
            return "$"
        name, operator, other = match[1] or match[2], match[3], match[4]
        if name is None or name.isdecimal():
            return self._nameless(match, where)
        value = self.values.get(name)
        if operator in ("-", "=") and self._takes_default(name):
            return self._fill(other, where)
        if operator == "+":
            return self._fill(other, where) if value else ""
        if value is None:
            return self._unknown(match, where, self._reason(name), name)
        return value if where is None else self._settled(value, name, match, where)

    def _reason(self, name: str) -> str:
        """Why a variable has no value."""
        return self._why.get(name, "is not set in the text")

    def _nameless(self, match: "re.Match[str]", where: str | None) -> str:
        if match[8] is not None:
            return self._computed(match, where)
        ran = match[6] or match[7]
        return self._unknown(match, where, "is what a shell would have to run to know" if ran
                             else "is an argument of the script")

    def _computed(self, match: "re.Match[str]", where: str | None) -> str:
        """The value of `$((...))`: that of `arithmetic`, with variables."""
        for operand in _OPERAND.finditer(match[8]):
            if not self.values.get(name := operand[1] or operand[3]) and not operand[2]:
                return self._unknown(match, where, f"needs {name}, which {self._reason(name)}", name)
        text = _OPERAND.sub(lambda name: self.values.get(name[1] or name[3]) or name[2], match[8])
        try:
            return str(arithmetic(text))
        except ValueError:
            return self._unknown(match, where, "is what a shell would have to compute")

    def _settled(self, value: str, name: str, match: "re.Match[str]", where: str) -> str:
        """*value*, unless it was made from what is not known."""
        if _OPEN.search(value):
            return self._unknown(match, where, f"is made of {value!r}, which a shell would have to run to know", name)
        return value

    def _unknown(self, match: "re.Match[str]", where: str | None, why: str, name: str = "") -> str:
        if where is None:
            return match[0]
        remedy = f"say what it is: --env {name}=VALUE" if name else "write its value in its place"
        raise ConfigError(where, f"{match[0]} {why}; {remedy}")


#: Comparisons, by Python's operators.
_COMPARES: Mapping[type, Callable[[int, int], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne}


def arithmetic(text: str) -> int:
    """The value of *text*: whole numbers, + - * / %, comparisons, && || !, A ? B : C and brackets.

    Raises ValueError for anything else.
    """
    if len(text) > 200 or not re.fullmatch(r"[\d\s()+*/%<>=!&|?:-]+", text) or "**" in text or "//" in text:
        raise ValueError(text)
    while (inner := re.search(r"\(([^()]*)\)", text)) is not None:
        text = f"{text[:inner.start()]} {_chosen(inner[1])} {text[inner.end():]}"
    return _chosen(text)


def _chosen(text: str) -> int:
    """The value of *text* without brackets: one side of its first `?`, or a sum."""
    condition, asks, rest = text.partition("?")
    if asks:
        depth = 0
        for place, sign in enumerate(rest):
            depth += (sign == "?") - (sign == ":")
            if depth < 0:
                return _chosen(rest[:place] if _chosen(condition) else rest[place + 1:])
        raise ValueError(text)
    python = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    try:
        return _value(ast.parse(python.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(text) from error


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return int(not _value(node.operand))
    if isinstance(node, ast.BoolOp):
        return int((any if isinstance(node.op, ast.Or) else all)(_value(value) for value in node.values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARES:
        return int(_COMPARES[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    operators = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
                 ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
    if isinstance(node, ast.BinOp) and type(node.op) in operators:
        return int(operators[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError(ast.dump(node))
