"""The words of a shell script (quotes, comments, operators, here-documents), and the values of variables in them."""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import define, field, frozen

from ksim.foundation.errors import ConfigError

#: Operators between commands, the longest first.
_OPERATORS = ("&&", "||", ";;", ";", "|&", "|", "&")
#: Redirections: a word follows each.
_DESCRIPTOR = re.compile(r"\d+(?=[<>])")
_REDIRECTIONS = ("&>>", "&>", ">>", ">&", "<&", "<<<", "<<-", "<<", ">|", ">", "<")


@frozen
class WordPiece:
    """A part of a word; in what was not in single quotes, `$` names variables."""

    text: str
    expands: bool
    quoted: bool


@frozen
class Token:
    """A word in pieces, or an operator, a redirection, or the end of a line."""

    kind: str
    """word, operator, redirection, end or document."""
    line: int
    column: int
    text: str = ""
    pieces: tuple[WordPiece, ...] = ()


@frozen
class _Due:
    """A here-document that begins on the next line."""

    mark: str
    literal: bool
    strip: bool


@frozen
class Tokens:
    """The tokens of *text*; raises ConfigError, which names *where*, for a quote that is left open."""

    text: str
    where: str
    _due: list[_Due] = field(factory=list, init=False)

    def __iter__(self) -> Iterator[Token]:
        index = 0
        while index < len(self.text):
            index, token = self._next(index)
            if token is not None:
                yield token
                index = self._note_document(token, index)
            if token is not None and token.kind == "end":
                for due in self._take_due():
                    index, document = self._document(due, index)
                    yield document
        yield Token("end", *self._at(index))

    def _next(self, index: int) -> tuple[int, Token | None]:
        letter, rest = self.text[index], self.text[index:index + 3]
        if letter == "\n":
            return index + 1, Token("end", *self._at(index))
        if (skipped := self._skipped(index)) > index:
            return skipped, None
        for kind, signs in (("redirection", _REDIRECTIONS), ("operator", _OPERATORS)):
            for sign in signs:
                if rest.startswith(sign):
                    return index + len(sign), Token(kind, *self._at(index), sign)
        return self._word(index)

    def _skipped(self, index: int) -> int:
        """The place behind what says nothing: blanks, the end of a line that goes on, a comment, a descriptor."""
        letter = self.text[index]
        if letter == "\\" and self._blank_to_end(index + 1):
            return self.text.find("\n", index) + 1
        if letter == "#":
            end = self.text.find("\n", index)
            return len(self.text) if end < 0 else end + self._goes_on(index)
        descriptor = _DESCRIPTOR.match(self.text, index)
        return descriptor.end() if descriptor else index + letter.isspace()

    def _blank_to_end(self, index: int) -> bool:
        """Whether only blanks follow on the line: a backslash before them is meant to go on."""
        end = self.text.find("\n", index)
        return end >= 0 and not self.text[index:end].strip()

    def _goes_on(self, index: int) -> bool:
        """Whether a comment at *index* stands alone between the lines of one command, as on many pages."""
        before = self.text.rfind("\n", 0, index)
        return not self.text[before + 1:index].strip() and self.text[:max(before, 0)].rstrip(" \t").endswith("\\")

    def _at(self, index: int) -> tuple[int, int]:
        return self.text.count("\n", 0, index) + 1, index - self.text.rfind("\n", 0, index)

    def _word(self, start: int) -> tuple[int, Token]:
        pieces, index = [], start
        while index < len(self.text) and not self._ends_word(index):
            index, piece = self._piece(index)
            if piece is not None:
                pieces.append(piece)
        return index, Token("word", *self._at(start), pieces=tuple(pieces))

    def _ends_word(self, index: int) -> bool:
        return self.text[index] in " \t\n;|&<>" and not self.text.startswith("\\\n", index)

    def _piece(self, index: int) -> tuple[int, WordPiece | None]:
        letter = self.text[index]
        if letter == "'":
            end = self._closing("'", index)
            return end + 1, WordPiece(self.text[index + 1:end], False, True)
        if letter == '"':
            end = self._closing('"', index)
            return end + 1, WordPiece(_unescaped(self.text[index + 1:end]), True, True)
        if letter == "\\":
            escaped = self.text[index + 1:index + 2]
            return index + 2, None if escaped in ("\n", "") else WordPiece(escaped, False, True)
        if self.text.startswith(("$(", "${"), index) or letter == "`":
            end = self._substitution(index)
            return end, WordPiece(self.text[index:end], True, False)
        end = index + 1
        while end < len(self.text) and not self._ends_word(end) and self.text[end] not in "'\"\\`" and (
                not self.text.startswith(("$(", "${"), end)):
            end += 1
        return end, WordPiece(self.text[index:end], True, False)

    def _closing(self, quote: str, start: int) -> int:
        """The place of the *quote* that closes that at *start*."""
        index = start + 1
        while index < len(self.text) and self.text[index] != quote:
            inner = self._behind(index) if quote == '"' and self.text.startswith(("$(", "${"), index) else None
            index = inner or index + (2 if self.text[index] == "\\" and quote == '"' else 1)
        if index >= len(self.text):
            line, column = self._at(start)
            raise ConfigError(f"{self.where}line {line}, column {column}", f"the quote {quote} is left open")
        return index

    def _substitution(self, start: int) -> int:
        """The place behind `$(...)`, `${...}` or backquotes."""
        if self.text[start] == "`":
            return self._closing("`", start) + 1
        if (behind := self._behind(start)) is not None:
            return behind
        line, column = self._at(start)
        raise ConfigError(f"{self.where}line {line}, column {column}", f"${self.text[start + 1]} is left open")

    def _behind(self, start: int) -> int | None:
        """The place behind `$(...)` or `${...}`; None where it is left open."""
        opened, closed, depth = self.text[start + 1], {"(": ")", "{": "}"}[self.text[start + 1]], 0
        for index in range(start + 1, len(self.text)):
            depth += (self.text[index] == opened) - (self.text[index] == closed)
            if depth == 0:
                return index + 1
        return None

    def _note_document(self, token: Token, index: int) -> int:
        """Remember the mark that a here-document ends with, and go behind it."""
        if token.kind != "redirection" or token.text not in ("<<", "<<-"):
            return index
        while self.text[index:index + 1] in (" ", "\t"):
            index += 1
        if index >= len(self.text) or self._ends_word(index):
            raise ConfigError(f"{self.where}line {token.line}", f"{token.text} names no mark of its end")
        index, word = self._word(index)
        mark = "".join(piece.text for piece in word.pieces)
        self._due.append(_Due(mark, any(piece.quoted for piece in word.pieces), token.text == "<<-"))
        return index

    def _take_due(self) -> list[_Due]:
        due, self._due[:] = [*self._due], []
        return due

    def _document(self, due: _Due, index: int) -> tuple[int, Token]:
        """The here-document at *index*, and the place behind it; a missing mark ends it with the text."""
        lines, start = [], index
        while index < len(self.text):
            end = self.text.find("\n", index) % (len(self.text) + 1)
            line = self.text[index:end].lstrip("\t") if due.strip else self.text[index:end]
            index = end + 1
            if line.strip() == due.mark:
                break
            lines.append(line)
        content = WordPiece("\n".join(lines) + "\n", not due.literal, True)
        return min(index, len(self.text)), Token("document", *self._at(start), pieces=(content,))


def _unescaped(text: str) -> str:
    """What double quotes leave of *text*; `\\$` stays escaped for the one who expands it."""
    for sign in ('"', "\\", "`"):
        text = text.replace("\\" + sign, sign)
    return text.replace("\\\n", "")


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

    def filled(self, pieces: Sequence[WordPiece], where: str | None) -> str:
        """The text of *pieces*; raises ConfigError, which names *where*, for a variable without a value.

        Without *where*, such a variable stays as it is written.
        """
        return "".join(self._fill(piece.text, where) if piece.expands else piece.text
                       for piece in self._with_defaults(pieces))

    def words(self, pieces: Sequence[WordPiece], where: str | None) -> Iterator[str]:
        """The words of *pieces*: a variable outside quotes may be several, or none."""
        if any(not piece.quoted and piece.expands and "$" in piece.text for piece in pieces):
            yield from self._split(pieces, where)
        else:
            yield self.filled(pieces, where)

    def _split(self, pieces: Sequence[WordPiece], where: str | None) -> Iterator[str]:
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

    def _with_defaults(self, pieces: Sequence[WordPiece]) -> Iterator[WordPiece]:
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
        for index, sign in enumerate(rest):
            depth += (sign == "?") - (sign == ":")
            if depth < 0:
                return _chosen(rest[:index] if _chosen(condition) else rest[index + 1:])
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
