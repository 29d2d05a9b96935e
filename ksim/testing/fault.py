"""The error that is raised when an invariant breaks."""

from ksim.testing.case import Case


class PolicyFault(AssertionError):
    """`policy` breaks `invariant` in `step`, as `case` shows.

    `scenario` is the text of a scenario file, which `ksim run` replays.  It reads the trace `trace_name`, whose text
    is `trace`, from the same folder.
    """

    def __init__(self, invariant: str, policy: str, step: int, problem: str, case: Case | None = None,
                 scenario: str = "", trace: str = "", trace_name: str = ""):
        super().__init__(invariant, policy, step, problem)
        self.invariant, self.policy, self.step, self.problem = invariant, policy, step, problem
        self.case, self.scenario, self.trace, self.trace_name = case, scenario, trace, trace_name

    def __str__(self) -> str:
        text = f"{self.policy} breaks {self.invariant} in step {self.step}: {self.problem}"
        if self.case:
            text += f"\n\n{describe(self.case)}"
        if self.scenario:
            text += f"\n\n# scenario.toml\n{self.scenario}\n# {self.trace_name}\n{self.trace}"
        return text


def describe(case: Case) -> str:
    """The case in a few lines of text."""
    lines = [f"settings: {', '.join(f'{key}={value}' for key, value in case.settings.items())}"]
    lines += [f"request {number}: {arrival}" for number, arrival in enumerate(case.coming)]
    lines += [f"abort of request {number} in turn {turn}, {'with' if in_flight else 'without'} a batch in flight"
              for turn, number, in_flight in case.aborts]
    return "\n".join(lines)
