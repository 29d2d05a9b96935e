"""Texts as they were pasted, in which every line and every value of YAML knows its place.

What terminals and word processors put around copied lines is taken away; lines keep their numbers.  YAML is checked: no
key twice, no loops, no more values than anybody writes.  A script in a container, or a file in a ConfigMap, has its
places in the manifest.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from attrs import evolve, field, frozen

from ksim.foundation.errors import ConfigError, DataError
from ksim.foundation.files import is_there

__all__ = ["RENDER", "TEMPLATE", "Entry", "documents", "Embedded", "tidied", "names_path", "main_file", "Pasted"]


#: No launch line or manifest is longer.
LONGEST = 4 * 2**20


def names_path(argument: str) -> bool:
    """Whether *argument* names a file or a folder that is there."""
    return "\n" not in argument and is_there(Path(argument))


@frozen
class Pasted:
    """A *text*; *source* is the file it was read from, or empty."""

    text: str
    source: str = ""
    folder: Path = Path()

    @classmethod
    def of_argument(cls, argument: str) -> "Pasted":
        """The text of the file that *argument* names, or *argument* itself."""
        return cls.of_file(Path(argument)) if names_path(argument) else cls(argument, folder=Path.cwd())

    @classmethod
    def of_file(cls, path: Path) -> "Pasted":
        """The text of a file; raises DataError for one that is no text."""
        try:
            content = path.read_bytes()[:LONGEST + 1]
        except OSError as error:
            raise DataError(str(path), error.strerror or str(error)) from None
        return cls.of_bytes(content, str(path), path.parent)

    @classmethod
    def of_bytes(cls, content: bytes, source: str, folder: Path) -> "Pasted":
        """The text that *content* is in UTF-8; raises DataError where it is none."""
        if len(content) > LONGEST:
            raise DataError(source, f"is longer than {LONGEST // 2**20} MiB, and no launch line or manifest")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise DataError(source, "is not text in UTF-8") from None
        if "\0" in text:
            raise DataError(source, "is binary, not text")
        return cls(text.replace("\r\n", "\n"), source, folder)

    def at(self, line: int, column: int = 0) -> str:
        """A place in the text, for messages: "serve.sh:3", or "line 3, column 12"."""
        if self.source:
            return f"{self.source}:{line}" + (f":{column}" if column else "")
        return f"line {line}" + (f", column {column}" if column else "")


#: Files of AIConfigurator, the first that is there counts; its generator_config.yaml has what the others lack.
_FILES = ("generator_config.yaml", "k8s_deploy.yaml", "best_config_topn.csv")
#: Docker Compose's own names of its file.
_COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
#: Files of folders that another program must write out first, and how.
_WRITTEN_OUT = {"Chart.yaml": "is a Helm chart; render it first: helm template RELEASE {} > rendered.yaml",
                "kustomization.yaml": "is a kustomization; build it first: kubectl kustomize {} > built.yaml"}
#: Folders inside its results.
_INNER = ("top1", "agg", "disagg")


def main_file(folder: Path) -> Path:
    """The file of *folder* to import; raises DataError for a folder that no tool wrote which ksim knows."""
    for name, remedy in _WRITTEN_OUT.items():
        if (folder / name).is_file():
            raise DataError(str(folder), remedy.format(folder))
    for name in (*_FILES[:2], *_COMPOSE):
        if (folder / name).is_file():
            return folder / name
    inner = [folder / name for name in _INNER if (folder / name).is_dir()]
    if len(inner) == 1 and any(inner[0].iterdir()):
        return main_file(inner[0])
    if (folder / _FILES[2]).is_file():
        return folder / _FILES[2]
    if inner:
        raise DataError(str(folder), f"has several results; name one: {', '.join(str(path) for path in inner)}")
    raise DataError(str(folder), f"is a folder without {', '.join(_FILES)} or compose.yaml; name a file in it")


#: What a template that nobody has rendered looks like, and how to render it.
TEMPLATE = "{{"
RENDER = "is a Helm template; render it first: helm template RELEASE CHART -f values.yaml > rendered.yaml"


@frozen(eq=False)
class Entry:
    """A value, and the dotted `key` and the `line` of that key in the text that it is from."""

    node: yaml.Node
    pasted: Pasted
    key: str = ""
    line: int = 1
    origins: Mapping[int, tuple[str, int]] = field(factory=dict, repr=False)
    """The keys and lines of nodes inside that stand elsewhere in the text, by the nodes' identities."""
    _values: dict[str, Any] = field(factory=dict, init=False, repr=False)

    def each(self, *keys: str) -> "list[Entry]":
        """The values of the list under *keys*; none if there is no list."""
        value = self.get(*keys)
        return value.items if value is not None else []

    @property
    def place(self) -> str:
        """The file and the line: "serve.yaml:3"."""
        return self.pasted.at(self.line)

    @property
    def where(self) -> str:
        """The file, the line and the key: "serve.yaml:3: spec.replicas"."""
        return self.place + (f": {self.key}" if self.key else "")

    def error(self, problem: str) -> ConfigError:
        return ConfigError(self.where, problem)

    @property
    def is_table(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_null(self) -> bool:
        return str(self.node.tag) == "tag:yaml.org,2002:null"

    @property
    def table(self) -> "dict[str, Entry]":
        """The values by key; raises ConfigError if this is no table."""
        if "table" not in self._values:
            self._values["table"] = dict(self._rows())
        table: dict[str, Entry] = self._values["table"]
        return table

    def _rows(self) -> "Iterator[tuple[str, Entry]]":
        if self.is_null:
            return
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(f"expected keys and values, not {self._shown}")
        for key, value in self.node.value:
            inner = f"{self.key}.{key.value}" if self.key else str(key.value)
            yield str(key.value), self._inner(value, inner, key.start_mark.line + 1)

    @property
    def items(self) -> "list[Entry]":
        """The values of a list, none of an absent one; raises ConfigError if this is no list."""
        if self.is_null:
            return []
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"expected a list, not {self._shown}")
        return [self._inner(item, f"{self.key}[{index}]", item.start_mark.line + 1)
                for index, item in enumerate(self.node.value)]

    def _inner(self, node: yaml.Node, key: str, line: int) -> "Entry":
        return Entry(node, self.pasted, *self.origins.get(id(node), (key, line)), self.origins)

    def get(self, *keys: str) -> "Entry | None":
        """The value under *keys*, tables in tables; None where there is none, or null."""
        inner: Entry | None = self
        for key in keys:
            inner = inner.table.get(key) if inner is not None else None
        return None if inner is None or inner.is_null else inner

    def text_of(self, *keys: str, usual: str = "") -> str:
        """The text under *keys*; *usual* where there is none."""
        value = self.get(*keys)
        return usual if value is None else value.text

    def count_of(self, *keys: str, usual: int = 1) -> int:
        """The whole number under *keys*; *usual* where there is none."""
        value = self.get(*keys)
        return usual if value is None else value.count

    def flag_of(self, *keys: str, usual: bool = False) -> bool:
        """The truth value under *keys*; *usual* where there is none."""
        value = self.get(*keys)
        return usual if value is None else value.flag

    def need(self, *keys: str) -> "Entry":
        """The value under *keys*; raises ConfigError where there is none."""
        value = self.get(*keys)
        if value is None:
            raise self.error(f"has no {'.'.join(keys)}")
        return value

    @property
    def text(self) -> str:
        """The text of a scalar, as it is written: "8", 8 and true alike."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"expected a text, not {self._shown}")
        return str(self.node.value)

    @property
    def texts(self) -> list[str]:
        return [item.text for item in self.items]

    @property
    def count(self) -> int:
        """A whole number of 0 or more, quoted or not."""
        text = self.text.strip()
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise self.error(f"expected a whole number, not {text!r}{_HINT if TEMPLATE in text else ''}")
        return int(text)

    @property
    def flag(self) -> bool:
        """A truth value."""
        if (text := self.text.lower()) not in ("true", "false"):
            raise self.error(f"expected true or false, not {self.text!r}")
        return text == "true"

    @property
    def plain(self) -> Any:
        """The value as Python's."""
        if "plain" not in self._values:
            self._values["plain"] = _constructed(self)
        return self._values["plain"]

    @property
    def _shown(self) -> str:
        if isinstance(self.node, yaml.ScalarNode):
            return repr(self.node.value) if len(self.node.value) < 60 else "a long text"
        return "a table" if self.is_table else "a list"


_HINT = f"; the file {RENDER}"


def _constructed(entry: Entry) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(entry.node, deep=True)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise entry.error(f"is no value that can be read: {getattr(error, 'problem', None) or error}") from None


#: Most values of a document once its aliases are followed.  Some ten lines of aliases of aliases stand for billions.
_MOST_VALUES = 200_000


def documents(pasted: Pasted) -> list[Entry]:
    """The documents of a YAML or JSON text that are not empty.

    Raises DataError, which names the line, for text that is neither, for a key that is there twice and for aliases that
    stand for too much.
    """
    nodes = _composed(_without_tabs(pasted.text), pasted)
    for node in nodes:
        _check(node, pasted)
    return [Entry(node, pasted, line=node.start_mark.line + 1) for node in nodes
            if node.tag != "tag:yaml.org,2002:null"]


def _without_tabs(text: str) -> str:
    """*text*, with spaces for tabs if it is JSON: JSON may be indented by tabs, YAML may not."""
    if "\t" not in text or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


def _composed(text: str, pasted: Pasted) -> list[yaml.Node]:
    whole = pasted.source or "the text"
    try:
        return [node for node in yaml.compose_all(text, yaml.SafeLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DataError(pasted.at(mark.line + 1) if mark else whole, _complaint(error, mark, pasted.text)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DataError(pasted.at(line), f"is no text that YAML allows: {error.reason}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(whole, f"is not valid YAML: {(str(error) or type(error).__name__).splitlines()[0]}") from None


def _complaint(error: yaml.MarkedYAMLError, mark: Any, text: str) -> str:
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if TEMPLATE in text and (TEMPLATE in line or "{{-" in text or "{{ " in text):
        return RENDER
    if "\t" in line[:mark.column + 1 if mark else None]:
        return "has a tab, and YAML is indented by spaces"
    if any(line.startswith("<<<<<<< ") for line in lines):
        return "has a conflict of a merge that is not resolved"
    return f"is not valid YAML: {error.problem or error.context}"


def _check(root: yaml.Node, pasted: Pasted) -> None:
    """Merge the tables that `<<` names, and raise DataError for keys that are there twice, loops and sheer size."""
    try:
        size = _size(root, {}, set(), pasted)
    except RecursionError:
        raise DataError(pasted.source or "the text", "is nested too deeply") from None
    if size > _MOST_VALUES:
        raise DataError(pasted.at(root.start_mark.line + 1), f"stands for {size:,} values once its aliases are"
                                                             f" followed; {_MOST_VALUES:,} are allowed")


def _size(node: yaml.Node, sizes: dict[int, int], path: set[int], pasted: Pasted) -> int:
    """How many values *node* stands for.  *sizes* has those that are known, *path* those that *node* is inside of."""
    if id(node) in sizes:
        return sizes[id(node)]
    if id(node) in path:
        raise DataError(pasted.at(node.start_mark.line + 1), "has an alias of what it is inside of")
    path.add(id(node))
    inner = list(node.value) if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        inner = [value for _, value in node.value]
    size = 1 + sum(_size(item, sizes, path, pasted) for item in inner)
    if isinstance(node, yaml.MappingNode) and size <= _MOST_VALUES:
        _check_keys(node, pasted)
    path.discard(id(node))
    sizes[id(node)] = size
    return size


def _check_keys(node: yaml.MappingNode, pasted: Pasted) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        where = pasted.at(key.start_mark.line + 1)
        if not isinstance(key, yaml.ScalarNode):
            raise DataError(where, RENDER if TEMPLATE in pasted.text else "has a key that is no text")
        if key.value in seen and key.value != "<<":
            raise DataError(where, f"the key {key.value!r} is there twice")
        seen.add(key.value)
    if "<<" in seen:
        _merge(node, pasted)


def _merge(node: yaml.MappingNode, pasted: Pasted) -> None:
    """Put the keys of what `<<` names into *node*, whose own keys come last and win."""
    try:
        yaml.SafeLoader("").flatten_mapping(node)
    except yaml.MarkedYAMLError as error:
        raise DataError(pasted.at(node.start_mark.line + 1), f"is not valid YAML: {error.problem}") from None
    node.value = [*{key.value: (key, value) for key, value in node.value}.values()]


@frozen
class Embedded(Pasted):
    """A text inside a manifest, whose places are the manifest's."""

    entry: Entry | None = None

    def at(self, line: int, column: int = 0) -> str:
        assert self.entry is not None, "an embedded text stands somewhere"
        entry, literal = self.entry, getattr(self.entry.node, "style", None) == "|"
        first = entry.node.start_mark.line + 1
        return evolve(entry, line=first + line if literal else first).where


_FENCE = re.compile(r" {0,3}(```+|~~~+)\s*\{?\.?([\w+-]*)")
#: Languages of fenced blocks that may start engines; a page's other blocks, such as Python, do not.
_LANGUAGES = ("", "bash", "sh", "shell", "zsh", "fish", "console", "shell-session", "terminal", "text", "txt",
              "plaintext", "yaml", "yml", "json", "powershell", "ps1", "pwsh", "bat", "batch", "cmd", "dockerfile",
              "docker", "ini", "systemd")
_ENGINES = re.compile(r"vllm|sglang|trtllm|tensorrt|apiVersion", re.IGNORECASE)
#: Quotes that word processors and web pages put in the place of a shell's.
_QUOTES = {'"': "\u201c\u201d\u201e\u2033", "'": "\u2018\u2019\u2032"}
#: Their blanks, and signs without a width.
_BLANKS = str.maketrans(dict.fromkeys("\u00a0\u202f\u2009\u2003", " ") | dict.fromkeys("\u200b\u200c\u2060\ufeff", ""))
_DASHES = ((re.compile(r"(?<!\S)[\u2013\u2014\u2015](?=[A-Za-z])"), "--"),
           (re.compile(r"(?<!\S)[\u2212\u2010\u2011](?=[-\w])"), "-"))
_NUMBER = re.compile(r"\s*(\d+)[:.|)]?(?:\s|$)")
#: What a terminal prints before a command: `$ `, `(venv) user@host:~/work$ `, `root@1a2b:/# `, `PS C:\Users\me> `.
_PROMPT = re.compile(r"\s*(?:(?:\([\w.-]+\)\s*)?\[?[\w.-]+@[\w.-]+[^$#%>\n]{0,60}[$#%>]|\([\w.-]+\)\s*[$#%>]"
                     r"|PS [A-Z]:[^>\n]*>|[A-Z]:\\[^>\n]*>|[$%\u276f\u279c]|>>?)\s+(?=\S)")
#: The ends of lines that go on in PowerShell, and at Windows' command prompt.
_GOES_ON = {"`": re.compile(r"(?m)(?<=\s)`[ \t]*$"), "^": re.compile(r"(?m)(?<=\s)\^[ \t]*$")}


def tidied(text: str) -> str:
    """*text* without Markdown's fences, typographic signs, numbers of lines, prompts, and line ends of Windows."""
    return _without_prompts(_going_on(_without_numbers(_unquoted(_plain(_unfenced(text))))))


def _unfenced(text: str) -> str:
    """The fenced blocks of a page, with blank lines in place of all else; *text* itself where they start no engine."""
    kept: list[str] = []
    fence, wanted = "", False
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if match and not fence:
            fence, wanted = match[1], match[2].lower() in _LANGUAGES
        elif match and match[1].startswith(fence) and not match[2]:
            fence = ""
        kept.append(line if fence and wanted and not match else "")
    return "\n".join(kept) if any(_ENGINES.search(line) for line in kept) else text


def _plain(text: str) -> str:
    """*text* with a shell's quotes, blanks and dashes; typographic quotes stay where there are the shell's, too."""
    text = text.translate(_BLANKS)
    for quote, signs in _QUOTES.items():
        if quote not in text:
            text = re.sub(f"[{signs}]", quote, text)
    for dash, plain in _DASHES:
        text = dash.sub(plain, text)
    return text


def _unquoted(text: str) -> str:
    """*text* without the backquotes around the whole of it, as Markdown writes code within a line."""
    inner = text.strip()
    if len(inner) > 2 and inner[0] == inner[-1] == "`" and "`" not in inner[1:-1] and "\n" not in inner:
        return inner[1:-1]
    return text


def _without_numbers(text: str) -> str:
    """*text* with blanks for the numbers before its lines, if all lines have one and they rise."""
    lines = text.split("\n")
    matches = [_NUMBER.match(line) for line in lines if line.strip()]
    numbers = [int(match[1][:9]) for match in matches if match]
    if not numbers or len(numbers) < len(matches) or numbers != sorted(set(numbers)):
        return text
    return "\n".join(_NUMBER.sub(_blank, line, count=1) for line in lines)


def _going_on(text: str) -> str:
    """*text* with a backslash at the ends of lines that PowerShell or Windows' command prompt lets go on."""
    for sign, end in _GOES_ON.items():
        if text.count(sign) == len(end.findall(text)):
            text = end.sub(lambda match: "\\", text)
    return text


def _without_prompts(text: str) -> str:
    """*text* with blanks for the prompts before its lines, if its first command has one."""
    lines = text.split("\n")
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    return "\n".join(_PROMPT.sub(_blank, line, count=1) for line in lines) if _PROMPT.match(first) else text


def _blank(match: "re.Match[str]") -> str:
    return " " * len(match[0])
