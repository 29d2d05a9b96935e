"""Pages of the documentation whose tables are written anew: what stands between the marks of a name."""

import re
from collections.abc import Iterable
from pathlib import Path


def put(path: Path, name: str, lines: Iterable[str]) -> None:
    """Write *lines* between the marks of *name* in the page at *path*; raises SystemExit if it has none."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    table = "".join(f"{line}\n" for line in lines)  # which may take so long that the page is edited meanwhile
    text = path.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise SystemExit(f"{path} has no marks {begin.strip()} and {end.strip()}")
    written = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: begin + table + end, text, flags=re.DOTALL)
    path.write_text(written, encoding="utf-8")
