"""The answer of a sweep or a tune: how many points there are, and the best of each objective."""

from collections.abc import Iterator

from ksim.page.markup import Markup, breakable, element
from ksim.page.studies.reading import Point, Study
from ksim.page.studies.wording import mean, settings_text, shown_keys

#: The most numbers with a card of their own.
_CARDS = 6


def lead(study: Study) -> Iterator[Markup]:
    """A sentence, and a card with the best point of each number that matters."""
    yield element("p", _sentence(study), cls="lead")
    counting = study.counting
    if not counting:
        yield element("p", "No point counts, so there is no best one; the table says why.", cls="missing")
        return
    keys = [key for key in shown_keys(study) if len({point.means.get(key) for point in counting}) > 1]
    cards = (_card(study, key, counting) for key in (keys or shown_keys(study))[:_CARDS])
    yield element("dl", *cards, cls="cards")


def _sentence(study: Study) -> str:
    runs, failed = len(study.rows), sum(point.failed for point in study.points)
    saturated = sum(point.saturated for point in study.points)
    said = [f"{_count(len(study.points), 'point')}, {_count(runs, 'run')}"]
    if failed:
        said.append(f"{failed:,} of them failed, were stopped or have not been run")
    if saturated:
        said.append(f"{_count(saturated, 'point')} could not keep up with the load")
    if study.required:
        said.append(f"{_count(len(study.counting), 'point')} kept {' and '.join(map(str, study.required))}")
    return "; ".join(said) + f". {_over(study)}"


def _over(study: Study) -> str:
    return f"What varies: {', '.join(study.axes)}." if study.axes else "Nothing varies."


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _card(study: Study, key: str, points: list[Point]) -> Markup:
    more = study.more(key)
    having = [point for point in points if key in point.means]
    if not having:
        return element("div", element("dt", key), element("dd", "-"), cls="card")
    best = (max if more else min)(having, key=lambda point: point.means[key])
    settings = breakable(f"point {best.number}: {settings_text(best, study.axes)}")
    return element("div", element("dt", "Highest " if more else "Lowest ", breakable(key)),
                   element("dd", mean(best, key)), element("dd", settings, cls="interval"), cls="card")
