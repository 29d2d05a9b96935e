"""A shell script to its commands: variables are filled in, and what no engine's line needs is passed over."""

import re
from collections.abc import Iterator, Mapping

from attrs import define, evolve, field, frozen

from ksim.deploy.commands import Word
from ksim.deploy.shell.variables import Token, Tokens, Variables
from ksim.deploy.texts import Pasted
from ksim.foundation.errors import ConfigError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
#: Words that open and close what a shell runs under a condition, or more than once.
_OPENS = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac"}
_BETWEEN = ("then", "do", "else", "elif", "{", "}", "!", "time", "exec", "nohup", "sudo", "eval")
#: All elements of an array.
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
#: Commands whose output, sent to a file, is the text that they are given.
_PRINTERS = ("cat", "tee", "echo", "printf")
#: What stands, with the word of the condition, for the content of a file that is written under one.
CONDITIONAL = "\0"


@frozen
class Simple:
    """A simple command: its words, variables before it, and what surrounds it."""

    words: tuple[Word, ...]
    line: int
    assigned: Mapping[str, Word] = field(factory=dict)
    """Variables set for it alone."""
    exported: Mapping[str, Word] = field(factory=dict)
    """Variables that the script has exported before it."""
    condition: str = ""
    """The word, such as "if", under which it runs; empty for none."""
    into: str = ""
    """The file that its output goes to."""
    document: str | None = None
    """The here-document that it reads."""

    def keep_document(self, files: dict[str, str]) -> None:
        """Put the file that a command such as `cat > serve.yaml << EOF` writes among *files*."""
        if self.document is None:
            return
        names = [word.text for word in self.words]
        into = self.into or (names[-1] if names[0] == "tee" and len(names) > 1 else "")
        if names[0] in _PRINTERS and into:
            differs = self.condition and files.get(into, "") != self.document
            files[into] = f"{CONDITIONAL}{self.condition}" if differs else self.document

    def check_unconditional(self, where: str) -> None:
        """Raise ConfigError for an engine that only a shell could tell whether it starts."""
        if self.condition:
            raise ConfigError(where, f"starts an engine under `{self.condition}`, and whether it runs is what a shell"
                                     " would have to find out; paste the line that runs")


@define
class Script:
    """Reads the simple commands of *pasted*; *environment* has variables that the text does not set."""

    pasted: Pasted
    environment: Mapping[str, str]
    _open: list[str] = field(factory=list, init=False)
    _exported: dict[str, Word] = field(factory=dict, init=False)
    _arrays: dict[str, list[Word]] = field(factory=dict, init=False)

    def commands(self) -> Iterator[Simple]:
        """The simple commands, in order; words with variables that have no value say so."""
        variables = Variables(dict(self.environment))
        for tokens in _statements(self._tokens()):
            simple = self._simple(tokens, variables)
            if simple is not None:
                yield simple

    def _tokens(self) -> Iterator[Token]:
        where = f"{self.pasted.source}: " if self.pasted.source else ""
        return iter(Tokens(self.pasted.text, where))

    def _simple(self, tokens: list[Token], variables: Variables) -> Simple | None:
        words = [token for token in tokens if token.kind == "word"]
        words = self._without_keywords(words)
        words, assigned = self._assignments(words, variables)
        if not words:
            self._assign(assigned, variables)
            return None
        names = [_raw(token) for token in words]
        if names[0] in ("export", "declare", "readonly", "local", "set"):
            self._export(words[1:], variables)
            return None
        into, document = self._redirected(tokens, variables)
        expanded = tuple(word for token in words for word in self._expanded(token, variables))
        return Simple(expanded, words[0].line, assigned, dict(self._exported), self._open[-1] if self._open else "",
                      into, document)

    def _without_keywords(self, words: list[Token]) -> list[Token]:
        """*words* behind what opens, divides and closes conditions and loops."""
        while words:
            word = _raw(words[0])
            if word in _OPENS:
                self._open.append(word)
                if word in ("for", "case"):
                    return []
            elif self._open and word == _OPENS[self._open[-1]]:
                self._open.pop()
            elif word not in _BETWEEN:
                break
            words = words[1:]
        return words

    def _assignments(self, words: list[Token], variables: Variables) -> tuple[list[Token], dict[str, Word]]:
        assigned: dict[str, Word] = {}
        while words and (match := _ASSIGNMENT.match(_raw(words[0]))):
            if _raw(words[0])[match.end():].startswith("("):
                words = self._array(match[0], words, variables)
                continue
            name, word = self._assignment(words[0], variables)
            assigned[name] = word
            words = words[1:]
        return words, assigned

    def _array(self, name: str, words: list[Token], variables: Variables) -> list[Token]:
        """Take in `NAME=(...)`; the words behind it."""
        count = next((index for index, token in enumerate(words) if _raw(token).endswith(")")), len(words) - 1) + 1
        elements = [word for token in words[:count] for word in self._expanded(token, variables)]
        elements[0] = evolve(elements[0], text=elements[0].text.partition("(")[2])
        elements[-1] = evolve(elements[-1], text=elements[-1].text.removesuffix(")"))
        before = self._arrays.get(name[:-2], []) if name.endswith("+=") else []
        self._arrays[name.rstrip("+=")] = [*before, *(word for word in elements if word.text)]
        return words[count:]

    def _assignment(self, token: Token, variables: Variables) -> tuple[str, Word]:
        name, _, _ = _raw(token).partition("=")
        text = variables.filled(token.pieces, None).partition("=")[2]
        before = variables.values.get(name[:-1], "") if name.endswith("+") else ""
        return name.removesuffix("+"), Word((before or "") + text, self.pasted.at(token.line, token.column))

    def _assign(self, assigned: Mapping[str, Word], variables: Variables) -> None:
        for name, word in assigned.items():
            variables.set(name, word.text, self._open[-1] if self._open else "")
            if name in self._exported:
                self._exported[name] = word

    def _export(self, words: list[Token], variables: Variables) -> None:
        for token in words:
            if _ASSIGNMENT.match(_raw(token)):
                name, word = self._assignment(token, variables)
                self._assign({name: word}, variables)
                self._exported[name] = word
            elif (value := variables.values.get(_raw(token))) is not None:
                self._exported[_raw(token)] = Word(value, self.pasted.at(token.line, token.column))

    def _expanded(self, token: Token, variables: Variables) -> Iterator[Word]:
        """The words of *token*; the elements of an array stand where the array has them."""
        array = _ARRAY.fullmatch(_raw(token))
        if array and array[1] in self._arrays:
            yield from self._arrays[array[1]]
            return
        where, unknown = self.pasted.at(token.line, token.column), ""
        try:
            texts = [*variables.words(token.pieces, where)]
        except ConfigError as error:
            texts, unknown = [variables.filled(token.pieces, None)], error.args[1]
        yield from (Word(text, where, unknown) for text in texts)

    def _redirected(self, tokens: list[Token], variables: Variables) -> tuple[str, str | None]:
        """The file that output goes to, and the here-document that is read."""
        into, document = "", None
        for token in tokens:
            if token.kind == "into":
                into = variables.filled(token.pieces, None)
            elif token.kind == "document":
                document = variables.filled(token.pieces, None)
        return into, document


def _raw(token: Token) -> str:
    return "".join(piece.text for piece in token.pieces)


def _statements(tokens: Iterator[Token]) -> Iterator[list[Token]]:
    """The tokens of each simple command, with the here-documents that it reads."""
    line: list[list[Token]] = [[]]
    for token in _without_redirections(tokens):
        if token.kind == "operator":
            line.append([])
        elif token.kind == "document":
            _reader_of_document(line).append(token)
        elif token.kind != "end":
            line[-1].append(token)
        ends = token.kind == "document" or (token.kind == "end" and not _opens_array(line[-1]))
        if ends and not any(_waits_for_document(part) for part in line):
            yield from (part for part in line if part)
            line = [[]]
    yield from (part for part in line if part)


def _without_redirections(tokens: Iterator[Token]) -> Iterator[Token]:
    """*tokens* in which the word behind a redirection is marked, "into" or "other"; only `<<` stays."""
    redirects = ""
    for token in tokens:
        if token.kind == "redirection":
            redirects = "" if token.text in ("<<", "<<-") else token.text
            if not redirects:
                yield token
        elif redirects and token.kind == "word":
            kind = "into" if ">" in redirects and "&" not in redirects else "other"
            yield Token(kind, token.line, token.column, pieces=token.pieces)
            redirects = ""
        else:
            yield token


def _opens_array(part: list[Token]) -> bool:
    """Whether the brackets of `NAME=(` are open yet."""
    opened = any(re.match(r"\w+\+?=\(", _raw(token)) for token in part)
    return opened and not any(_raw(token).endswith(")") for token in part)


def _waits_for_document(part: list[Token]) -> bool:
    return sum(token.kind == "redirection" for token in part) > sum(token.kind == "document" for token in part)


def _reader_of_document(line: list[list[Token]]) -> list[Token]:
    return next((part for part in line if _waits_for_document(part)), line[-1])
