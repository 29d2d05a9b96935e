"""`ksim explain` of a counter-example of `check_policy`: which invariant broke, and the steps up to that."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ksim.cli.screen import console, table
from ksim.foundation.errors import ConfigError, KsimError

if TYPE_CHECKING:
    from ksim.testing.history import Moment
    from ksim.testing.replayed import Replayed, Written

#: Steps that are shown, up to the one that breaks the invariant.
_SHOWN = 12


def explain_fault(path: Path) -> dict[str, Any]:
    """Print what the file at *path* shows, and return it as JSON has it."""
    try:
        from ksim.testing.replayed import Written, replay
    except ImportError as error:
        raise KsimError(str(error)) from None
    screen, written = console(), Written.read(path)
    screen.print(f"\n{path}: a counter-example of `check_policy`", markup=False)
    screen.print(f"{written.subject} breaks {written.invariant} in step {written.step}: {written.problem}",
                 markup=False)
    if written.statement:
        screen.print(f"{written.invariant}: {written.statement}", markup=False)
    try:
        again = replay(path, written)
    except ConfigError as error:
        screen.print(f"! it cannot be played again: {error}", markup=False)
        return _content(written, None)
    screen.print(f"{len(again.case.arrivals)} requests; {_limits(again)}", markup=False)
    screen.print(_steps(again, again.breach[0] if again.breach else written.step))
    for line in _verdict(written, again):
        screen.print(line, markup=False)
    screen.print(f"to see it on the clock: ksim run {path} -o DIR, then ksim explain DIR", markup=False)
    return _content(written, again)


def _verdict(written: "Written", again: "Replayed") -> list[str]:
    untold = f" (the file could not hold its {written.untold})" if written.untold else ""
    if again.breach is None:
        return [f"* played again, {written.invariant} holds{untold}: the policy has changed since, or a scheduler or"
                " cache of its own is at fault, which a scenario cannot name"]
    step, problem = again.breach
    return [f"* played again, it breaks in step {step}: {problem}{untold}"]


def _steps(again: "Replayed", last: int) -> Table:
    """What each step up to the *last* computed, and who waited and gave way."""
    made = table(">step", "computed (request: tokens)", "gave way", "running", "waiting")
    shown = [moment for moment in again.moments if moment.step <= last][-_SHOWN:]
    for moment in shown:
        made.add_row(str(moment.step), _shares(moment), _listed(moment.preempted), _listed(moment.running),
                     _listed(moment.waiting), style="bold" if moment.step == last else None)
    return made


def _shares(moment: "Moment") -> str:
    return ", ".join(f"{share.request}: {share.tokens}{' (admitted)' if share.admitted else ''}"
                     for share in moment.shares) or "-"


def _listed(requests: tuple[int, ...]) -> str:
    """Numbers of requests, those beyond the tenth as a count."""
    more = f" and {len(requests) - 10} more" if len(requests) > 10 else ""
    return f"{', '.join(map(str, requests[:10]))}{more}"


def _limits(again: "Replayed") -> str:
    settings = again.case.settings
    return (f"max_num_batched_tokens {settings['max_num_batched_tokens']}, max_num_seqs {settings['max_num_seqs']},"
            f" {settings['blocks']} KV blocks of {settings['block_tokens']} tokens")


def _content(written: "Written", again: "Replayed | None") -> dict[str, Any]:
    now = again and again.breach
    return {"invariant": written.invariant, "statement": written.statement, "subject": written.subject,
            "step": written.step, "problem": written.problem, "played_again": again is not None,
            "breaks_again": now and {"step": now[0], "problem": now[1]}}
