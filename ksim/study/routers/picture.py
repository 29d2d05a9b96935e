"""The figure of a comparison: what it shows of each router."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ksim.study.routers.telling import age, age_title, lanes, router_of
from ksim.study.rows import SweepPoint

if TYPE_CHECKING:
    from ksim.report.plots.studies import Picture

#: The numbers of a figure, a panel each, those first that decide; those that are the same everywhere are left out.
PANELS = {"mean_regret_ms": "mean regret, ms", "p90_ttft_ms": "TTFT p90, ms", "prefix_cache_hit_rate": "GPU hit rate",
          "p90_tpot_ms": "TPOT p90, ms", "engine_tokens_cv": "imbalance", "joules_per_output_token": "J/output token"}


def picture(title: str, points: Sequence[SweepPoint]) -> "Picture":
    """A line for each router, a panel for each number, and a dot for each age of signals."""
    from ksim.report.plots.studies import Dot, Picture, routers_figure
    from ksim.report.plots.style import looks

    beside = lanes(list(dict.fromkeys(map(age, points))))
    panels = {name: [Dot(router_of(point), age_title(age(point)), float(point.value(key)), point.half_width(key),
                         beside[age(point)])
                     for point in points if point.value(key) is not None] for key, name in PANELS.items()}
    with looks():
        return Picture(routers_figure(title, {name: dots for name, dots in panels.items() if dots}))
