"""What PyPI shows: the README, with addresses for its links into the repository.  pyproject.toml has all else."""

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
SOURCE = "https://github.com/ksim-project/ksim/blob/main/"
IMAGES = "https://raw.githubusercontent.com/ksim-project/ksim/main/"


def readme() -> str:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\g<1>{IMAGES}", text)
    return re.sub(r"((?<!!)\[[^\[\]]*\]\()(?!https?:|#)", rf"\g<1>{SOURCE}", text)


setup(long_description=readme(), long_description_content_type="text/markdown")
