"""What labels say of tokens: dollars and joules are per output token, per prompt token, or per token of both."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A cost per token, or tokens per joule, and the words that say which tokens.
_COST = re.compile(r"""(?P<before>\b\w+\ )?tokens?/J\b
                       | (?:[$J]\ ?/|(?:joules|dollars|J|\$)\ per)\ ?(?:M\ |1,000\ |million\ )?
                         (?P<which>\w+)?\ ?tokens?\b
                       | \bper\ million\ (?P<of>\w+\ )?tokens?\b""", re.VERBOSE)
_BOTH = re.compile(r" ?\(prompt and output\)|, of (prompts|input) and outputs? |'? of prompts and outputs")
_KNOWN = {"output", "prompt", "input"}


def bare(text: str) -> Iterator[str]:
    """The costs in *text* that do not say of which tokens they are."""
    suspects = "\n".join(line for line in text.splitlines() if "token" in line)
    for found in _COST.finditer(suspects):
        named = {(word or "").strip() for word in found.groupdict().values()}
        if not named & _KNOWN and not _BOTH.match(suspects, found.end()):
            yield suspects[max(0, found.start() - 20):found.end() + 20]


@pytest.mark.parametrize(("text", "wrong"), [
    ("$/M tokens", 1), ("J/token in all", 1), ("tokens/J", 1), ("J/M tokens", 1), ("$ per million tokens", 1),
    ("$/M output tokens", 0), ("J/prompt token", 0), ("J/M tokens (prompt and output)", 0), ("output tokens/J", 0),
    ("output tokens/s", 0), ("dollars per million tokens, of prompts and outputs together", 0)])
def test_a_cost_is_bare_that_does_not_say_which_tokens(text, wrong):
    assert len([*bare(text)]) == wrong


def test_no_label_and_no_page_has_a_cost_per_token_without_saying_which():
    paths = [path for pattern in ("ksim/**/*.py", "ksim/**/*.js", "docs/**/*.md", "notebooks/*.ipynb")
             for path in ROOT.glob(pattern) if "data" not in path.parts]
    found = [f"{path.relative_to(ROOT)}: {wrong!r}" for path in paths
             for wrong in bare(path.read_text(encoding="utf-8"))]
    assert len(paths) > 500 and not found, "\n".join(found)
