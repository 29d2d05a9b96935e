"""The words of a shell script: quotes, backslashes, comments, operators, here-documents."""

import re
from collections.abc import Iterator

from attrs import field, frozen

from ksim.foundation.errors import ConfigError

#: Operators between commands, the longest first.
_OPERATORS = ("&&", "||", ";;", ";", "|&", "|", "&")
#: Redirections: a word follows each.
_DESCRIPTOR = re.compile(r"\d+(?=[<>])")
_REDIRECTIONS = ("&>>", "&>", ">>", ">&", "<&", "<<<", "<<-", "<<", ">|", ">", "<")


@frozen
class Piece:
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
    pieces: tuple[Piece, ...] = ()


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
        place = 0
        while place < len(self.text):
            place, token = self._next(place)
            if token is not None:
                yield token
                place = self._note_document(token, place)
            if token is not None and token.kind == "end":
                for due in self._take_due():
                    place, document = self._document(due, place)
                    yield document
        yield Token("end", *self._at(place))

    def _next(self, place: int) -> tuple[int, Token | None]:
        letter, rest = self.text[place], self.text[place:place + 3]
        if letter == "\n":
            return place + 1, Token("end", *self._at(place))
        if (skipped := self._skipped(place)) > place:
            return skipped, None
        for kind, signs in (("redirection", _REDIRECTIONS), ("operator", _OPERATORS)):
            for sign in signs:
                if rest.startswith(sign):
                    return place + len(sign), Token(kind, *self._at(place), sign)
        return self._word(place)

    def _skipped(self, place: int) -> int:
        """The place behind what says nothing: blanks, the end of a line that goes on, a comment, a descriptor."""
        letter = self.text[place]
        if letter == "\\" and self._blank_to_end(place + 1):
            return self.text.find("\n", place) + 1
        if letter == "#":
            end = self.text.find("\n", place)
            return len(self.text) if end < 0 else end + self._goes_on(place)
        descriptor = _DESCRIPTOR.match(self.text, place)
        return descriptor.end() if descriptor else place + letter.isspace()

    def _blank_to_end(self, place: int) -> bool:
        """Whether only blanks follow on the line: a backslash before them is meant to go on."""
        end = self.text.find("\n", place)
        return end >= 0 and not self.text[place:end].strip()

    def _goes_on(self, place: int) -> bool:
        """Whether a comment at *place* stands alone between the lines of one command, as on many pages."""
        before = self.text.rfind("\n", 0, place)
        return not self.text[before + 1:place].strip() and self.text[:max(before, 0)].rstrip(" \t").endswith("\\")

    def _at(self, place: int) -> tuple[int, int]:
        return self.text.count("\n", 0, place) + 1, place - self.text.rfind("\n", 0, place)

    def _word(self, start: int) -> tuple[int, Token]:
        pieces, place = [], start
        while place < len(self.text) and not self._ends_word(place):
            place, piece = self._piece(place)
            if piece is not None:
                pieces.append(piece)
        return place, Token("word", *self._at(start), pieces=tuple(pieces))

    def _ends_word(self, place: int) -> bool:
        return self.text[place] in " \t\n;|&<>" and not self.text.startswith("\\\n", place)

    def _piece(self, place: int) -> tuple[int, Piece | None]:
        letter = self.text[place]
        if letter == "'":
            end = self._closing("'", place)
            return end + 1, Piece(self.text[place + 1:end], False, True)
        if letter == '"':
            end = self._closing('"', place)
            return end + 1, Piece(_unescaped(self.text[place + 1:end]), True, True)
        if letter == "\\":
            escaped = self.text[place + 1:place + 2]
            return place + 2, None if escaped in ("\n", "") else Piece(escaped, False, True)
        if self.text.startswith(("$(", "${"), place) or letter == "`":
            end = self._substitution(place)
            return end, Piece(self.text[place:end], True, False)
        end = place + 1
        while end < len(self.text) and not self._ends_word(end) and self.text[end] not in "'\"\\`" and (
                not self.text.startswith(("$(", "${"), end)):
            end += 1
        return end, Piece(self.text[place:end], True, False)

    def _closing(self, quote: str, start: int) -> int:
        """The place of the *quote* that closes that at *start*."""
        place = start + 1
        while place < len(self.text) and self.text[place] != quote:
            inner = self._behind(place) if quote == '"' and self.text.startswith(("$(", "${"), place) else None
            place = inner or place + (2 if self.text[place] == "\\" and quote == '"' else 1)
        if place >= len(self.text):
            line, column = self._at(start)
            raise ConfigError(f"{self.where}line {line}, column {column}", f"the quote {quote} is left open")
        return place

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
        for place in range(start + 1, len(self.text)):
            depth += (self.text[place] == opened) - (self.text[place] == closed)
            if depth == 0:
                return place + 1
        return None

    def _note_document(self, token: Token, place: int) -> int:
        """Remember the mark that a here-document ends with, and go behind it."""
        if token.kind != "redirection" or token.text not in ("<<", "<<-"):
            return place
        while self.text[place:place + 1] in (" ", "\t"):
            place += 1
        if place >= len(self.text) or self._ends_word(place):
            raise ConfigError(f"{self.where}line {token.line}", f"{token.text} names no mark of its end")
        place, word = self._word(place)
        mark = "".join(piece.text for piece in word.pieces)
        self._due.append(_Due(mark, any(piece.quoted for piece in word.pieces), token.text == "<<-"))
        return place

    def _take_due(self) -> list[_Due]:
        due, self._due[:] = [*self._due], []
        return due

    def _document(self, due: _Due, place: int) -> tuple[int, Token]:
        """The here-document at *place*, and the place behind it; a missing mark ends it with the text."""
        lines, start = [], place
        while place < len(self.text):
            end = self.text.find("\n", place) % (len(self.text) + 1)
            line = self.text[place:end].lstrip("\t") if due.strip else self.text[place:end]
            place = end + 1
            if line.strip() == due.mark:
                break
            lines.append(line)
        content = Piece("\n".join(lines) + "\n", not due.literal, True)
        return min(place, len(self.text)), Token("document", *self._at(start), pieces=(content,))


def _unescaped(text: str) -> str:
    """What double quotes leave of *text*; `\\$` stays escaped for the one who expands it."""
    for sign in ('"', "\\", "`"):
        text = text.replace("\\" + sign, sign)
    return text.replace("\\\n", "")
