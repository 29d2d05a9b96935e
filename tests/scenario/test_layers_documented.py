"""What docs/einsum.md shows is what its code prints, but for the figures."""

import re
from pathlib import Path

import pytest

import ksim
from tests.scenario.layers import LLAMA

PAGE = (Path(ksim.__file__).parents[1] / "docs" / "einsum.md").read_text()


def first_words(text: str) -> list[str]:
    """Of each line, but for figures."""
    return [word for line in text.splitlines() if (word := line.partition(" ")[0]) and not word[0].isdigit()]


def test_the_code_on_the_page_prints_what_stands_below_it(capsys):
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```python")
    for code, shown in blocks:
        exec(code, names)
        assert first_words(capsys.readouterr().out.replace("─", "")) == first_words(shown.replace("─", ""))


@pytest.mark.parametrize("make", [lambda: ksim.op("bsm,mgF->bsF"), lambda: LLAMA.tasks(tensor=16)])
def test_the_refusals_on_the_page_are_given(make):
    with pytest.raises((ValueError, ksim.KsimError)) as error:
        make()
    assert f"`{error.value}`" in " ".join(PAGE.split())
