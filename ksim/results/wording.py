"""How the report and the plots write numbers."""


def number(value: float | None) -> str:
    """About three significant digits, thousands apart; a dash for what is unknown."""
    if value is None:
        return "-"
    if isinstance(value, int) or value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share as per cent; a dash for what is unknown."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"
