"""`python -m benchmarks.layers`: draw docs/images/layers.svg from `ksim.LAYERS` and the packages' docstrings.

A package stands above all that it may import.  Arrows that follow from others are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import networkx as nx

import ksim

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "layers.svg"
#: Pixels: a box, the width that an arrow takes in the rows that it passes, and the space between.
WIDTH, HEIGHT, LINE, GAP_X, GAP_Y = 230, 52, 10, 20, 44
#: How often rows are sorted by where their neighbours stand.
PASSES = 12

Point = tuple[float, float]
#: A package, or the place in a row at which an arrow passes it: (upper package, lower package, row).
Node = str | tuple[str, str, int]


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(ksim.LAYERS), encoding="utf-8")


def picture(layers: Mapping[str, set[str]]) -> str:
    """The SVG of *layers*: for each package those that it may import."""
    imports = nx.DiGraph({name: [use if use in layers else use.partition(".")[0] for use in uses]
                          for name, uses in layers.items()})
    arrows = nx.transitive_reduction(imports)
    rows = [sorted(row) for row in nx.topological_generations(arrows)]
    ways = _ways(arrows, {name: number for number, row in enumerate(rows) for name in row})
    centres = _centres(ways)
    width, height = max(x for x, _ in centres.values()) + WIDTH / 2, len(rows) * (HEIGHT + GAP_Y) - GAP_Y
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 -10 {width + 20:g} {height + 20:g}"'
             f' width="{width + 20:g}" font-family="sans-serif" text-anchor="middle">',
             f'<rect x="-10" y="-10" width="{width + 20:g}" height="{height + 20:g}" fill="white"/>',
             '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
             ' orient="auto"><path d="M0 0L8 4L0 8z" fill="#8a94a6"/></marker></defs>']
    lines += [_arrow([centres[node] for node in way]) for way in ways]
    lines += [line for name in layers for line in _box(name, question(name), centres[name])]
    return "\n".join([*lines, "</svg>\n"])


def question(package: str) -> str:
    """What a package answers: the first sentence of its docstring, without what follows a colon."""
    text = " ".join((import_module(f"ksim.{package}").__doc__ or "").split())
    return text[: text.index("?") + 1] if "?" in text else text.partition(".")[0].partition(":")[0]


def _ways(arrows: "nx.DiGraph[str]", row: Mapping[str, int]) -> list[list[Node]]:
    """Each arrow from row to row."""
    return [[upper, *((upper, lower, between) for between in range(row[upper] + 1, row[lower])), lower]
            for upper, lower in sorted(arrows.edges)]


def _centres(ways: Sequence[Sequence[Node]]) -> dict[Node, Point]:
    """The centre of each node, rows from the top, each sorted by the mean of its neighbours to keep arrows short."""
    edges = [pair for way in ways for pair in pairwise(way)]
    graph = nx.Graph(edges)
    order = [sorted(row, key=str) for row in nx.topological_generations(nx.DiGraph(edges))]
    x: dict[Node, float] = {}
    for _ in range(PASSES):
        for nodes in order:
            nodes.sort(key=lambda node: _mean([x.get(other, 0.0) for other in graph[node]]))
            sizes = [WIDTH if isinstance(node, str) else LINE for node in nodes]
            left = -(sum(sizes) + GAP_X * (len(nodes) - 1)) / 2
            for node, size in zip(nodes, sizes, strict=True):
                x[node] = left + size / 2
                left += size + GAP_X
    least = min(x[node] - WIDTH / 2 for node in x)
    return {node: (x[node] - least, row * (HEIGHT + GAP_Y) + HEIGHT / 2)
            for row, nodes in enumerate(order) for node in nodes}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _arrow(way: Sequence[Point]) -> str:
    """A curve through the centres of *way*, from the lower edge of its first box to the upper edge of its last."""
    (x, y), *between, (to_x, to_y) = way
    points = [(x, y + HEIGHT / 2), *((x, y + side) for x, y in between for side in (-HEIGHT / 2, HEIGHT / 2)),
              (to_x, to_y - HEIGHT / 2)]
    curve = f"M{points[0][0]:g} {points[0][1]:g}"
    for (x, y), (to_x, to_y) in pairwise(points):
        bend = (to_y - y) / 2
        curve += f"C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g}"
    return f'<path d="{curve}" fill="none" stroke="#8a94a6" stroke-width="1.2" marker-end="url(#tip)"/>'


def _box(name: str, answered: str, centre: Point) -> Iterator[str]:
    x, y = centre
    yield (f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"'
           ' fill="#f4f6fa" stroke="#5b6b8c"/>')
    yield f'<text x="{x:g}" y="{y - 5:g}" font-size="15" font-weight="bold">{escape(name)}</text>'
    yield f'<text x="{x:g}" y="{y + 14:g}" font-size="11" fill="#444">{escape(answered)}</text>'


if __name__ == "__main__":
    main()
