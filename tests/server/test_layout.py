"""The packages of the server import only those below them, in the order of the server's docstring."""

import re
from pathlib import Path

from ksim import server

FOLDER = Path(server.__file__).parent
ORDER = re.findall(r"^    (\w+)  ", server.__doc__ or "", re.MULTILINE)


def test_packages_import_only_those_below_them():
    assert {path.stem for path in FOLDER.glob("[!_]*")} == {*ORDER}
    for path in FOLDER.rglob("*.py"):
        package = path.relative_to(FOLDER).with_suffix("").parts[0]
        for name in re.findall(r"^ *from ksim\.server\.(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert ORDER.index(name) >= ORDER.index(package), f"{path} imports ksim.server.{name}"
