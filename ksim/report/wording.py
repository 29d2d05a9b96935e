"""How the report and the plots write numbers."""

#: Characters in a line of plain text.
WIDTH = 80
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"))


def number(value: float | None) -> str:
    """About three significant digits, with separators of thousands; a dash if unknown."""
    if value is None:
        return "-"
    if isinstance(value, int) or value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in per cent; a dash if unknown."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def measure(value: float, unit: str) -> str:
    """With a unit prefix that leaves one to three digits before the point: 92.8 mJ."""
    scale, prefix = next(((scale, prefix) for scale, prefix in _PREFIXES if abs(value) >= scale), _PREFIXES[-1])
    return f"{number(value / scale if value else 0)} {prefix if value else ''}{unit}"
