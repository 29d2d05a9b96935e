"""What pages, terminals and word processors put around the lines that people copy from them, taken away.

Lines keep their numbers, so that messages name the places of the text as it was pasted.
"""

import re

__all__ = ["tidied"]

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
