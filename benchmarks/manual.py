"""Hooks of MkDocs (mkdocs.yml): pages from outside docs/, and Markdown for GitHub as MkDocs reads it.

Pages stay as GitHub shows them.  Links between them hold on the site; links to other files of the repository become
addresses on GitHub.  Notebooks become pages with the outputs that they are kept with.
"""

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCE = "https://github.com/ksim-project/ksim"
#: Pages in the root of the repository that the site has, too.
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_NAME = re.compile(r"\[[\w/-]+\.md\](?=\(([^)#\s]+))")
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=(?:#[^)]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages in the root, and those made of notebooks with their figures."""
    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for name, content in from_notebook(path).items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """What MkDocs shall read of a page."""
    place = PurePosixPath(page.file.src_uri)
    text = re.sub(r"^<!-- .* -->$", "\n", markdown, flags=re.MULTILINE)  # a table begins after an empty line
    text = re.sub(r"^ {2,3}(?=\* )", " " * 4, text, flags=re.MULTILINE)  # lists in lists are indented by four
    text = re.sub(r"^\|.*", lambda row: _bars(row[0]), text, flags=re.MULTILINE)
    text = _NAME.sub(lambda name: _titled(name, place), text)
    return _LINK.sub(lambda link: target_of(link[1], place), text)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads anything from another host."""
    if foreign := re.search(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)="https?://[^>]*>""", output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {foreign[0]}")
    return output


def _titled(name: re.Match[str], place: PurePosixPath) -> str:
    """What a link of the page at *place* says on the site: the other page's heading; GitHub shows its file's name."""
    path = os.path.normpath(_folder(place) / name[1])
    if not (ROOT / path).is_file() or _page(PurePosixPath(path)) is None:
        return name[0]
    return f"[{(ROOT / path).read_text(encoding='utf-8').partition(chr(10))[0].removeprefix('# ')}]"


def target_of(link: str, place: PurePosixPath) -> str:
    """Where *link* of the page at *place* leads on the site: to a page of it, or else to GitHub."""
    if "://" in link or link.startswith("mailto:"):
        return link
    path = PurePosixPath(os.path.normpath(_folder(place) / link))
    if not (ROOT / path).exists():
        return link  # for MkDocs to complain of
    if (target := _page(path)) is None:
        return f"{SOURCE}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"
    return os.path.relpath(target, place.parent).replace(os.sep, "/")


def _folder(place: PurePosixPath) -> PurePosixPath:
    """The folder of the repository from which the page at *place* has its links."""
    if place.parts[0] == "tutorials":
        return PurePosixPath("notebooks")
    return PurePosixPath(".") if place.name in PAGES else "docs" / place.parent


def _page(path: PurePosixPath) -> PurePosixPath | None:
    """Where the site has the file at *path* of the repository, if it has."""
    if path.parts[0] == "docs":
        return path.relative_to("docs")
    if path.suffix == ".ipynb":
        return PurePosixPath("tutorials") / f"{path.stem}.md"
    if str(path) == "README.md":
        return path  # of docs/, which is the site's home
    return path if str(path) in PAGES else None


def _bars(row: str) -> str:
    r"""*row* of a table, where GitHub wants `\|` in code, and MkDocs `|`."""
    return re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), row)


def from_notebook(path: Path) -> dict[str, str | bytes]:
    """The page that the notebook at *path* makes, and its figures, by name."""
    figures: dict[str, str | bytes] = {}
    parts = [part for cell in nbformat.read(path, as_version=4).cells for part in _cell(cell, path.stem, figures)]
    parts.append(f"[This notebook]({SOURCE}/blob/main/notebooks/{path.name}) is in the repository.")
    return {f"{path.stem}.md": "\n\n".join(parts) + "\n", **figures}


def _cell(cell: Any, name: str, figures: dict[str, str | bytes]) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for output in cell.outputs:
        yield _output(output, name, figures)


def _output(output: Any, name: str, figures: dict[str, str | bytes]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        figure = f"{name}-{len(figures) + 1}.png"
        figures[figure] = base64.b64decode(data["image/png"])
        return f"![What the cell draws]({figure})"
    if "text/html" in data:
        table = re.sub(r"\n\s*\n", "\n", data["text/html"])  # an empty line would end HTML
        return f"<div>\n{table}\n</div>"
    return f"```text\n{data['text/plain'].rstrip()}\n```"
