"""The errors a user can cause; anything else that escapes is a bug in ksim."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class KsimError(Exception):
    """Base class of every error that ksim raises on purpose; as a text it is one line, whatever it quotes.

    Its arguments make it again, as a simulation does that passes it on from one of its processes.
    """

    def __str__(self) -> str:
        return one_line(self.message())

    def message(self) -> str:
        """What is wrong, of the arguments."""
        return super().__str__()


def one_line(text: str) -> str:
    """*text* with what ends a line or controls a terminal escaped, as in ``a\\nb``, and lone surrogates likewise."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class ConfigError(KsimError):
    """A setting is missing, unknown or out of range; `where` names the file and key."""

    def __init__(self, where: str, problem: str):
        super().__init__(where, problem)

    def message(self) -> str:
        return ": ".join(self.args)


class WorkerLost(KsimError):
    """A process that computed was killed, or its machine is gone, which says nothing of what it computed."""


class UnknownKey(ConfigError):
    """A setting that there is not."""


class DataError(ConfigError):
    """A file of data cannot be used; `where` names the file and, where known, the line."""


class UnknownName(KsimError):
    """No plug-in or data file of that kind bears the name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        super().__init__(kind, name, tuple(sorted(known)))

    def message(self) -> str:
        kind, name, known = self.args
        close = near(name, known)
        hint = f"; did you mean {close!r}?" if close else ""
        place = f"`ksim list {_LISTS[kind]}`" if kind in _LISTS else ""
        return f"no {kind} named {name!r}{hint} ({kind}: {nearest(name, known, place)})"


#: What `ksim list` calls the names of a kind.
_LISTS = {"model": "models", "gpu": "gpus", "GPU": "gpus", "system": "systems", "grid": "grids", "policy": "policies",
          "router": "routers", "trace": "traces", "trace format": "traces"}
#: A message lists so many names, or only the nearest of more.
_MANY, _NEAREST = 12, 5


def nearest(name: str, known: Iterable[str], place: str = "") -> str:
    """The *known* names in a message about *name*: all if they are few, else the nearest, and the *place* of the rest.
    """
    names = list(known)
    if len(names) <= _MANY:
        return ", ".join(names)
    by_lower = {each.lower(): each for each in names}
    close = [by_lower[each] for each in get_close_matches(name.lower(), by_lower, n=_NEAREST, cutoff=0.0)]
    return f"{', '.join(close)} and {len(names) - len(close)} more{f': {place}' if place else ''}"


def near(name: str, known: Iterable[str]) -> str:
    """The one of *known* names that is meant by *name*, whatever its case: it begins so, or is similar; "" for none."""
    by_lower = {each.lower(): each for each in known}
    begun = [lower for lower in by_lower if len(name) > 2 and lower.startswith(name.lower())]
    close = get_close_matches(name.lower(), begun or by_lower, n=1, cutoff=0.0 if begun else 0.6)
    return by_lower[close[0]] if close else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about *name*, which is none of the *known* ones: "; did you mean NAME?", if one is near."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


#: What package indexes call ksim: `ksim` is another project there.
DISTRIBUTION = "ksim-llm"
#: The libraries of extras that have other names.
_LIBRARIES = {"tune": "Optuna", "server": "Starlette and uvicorn", "tokenizer": "tokenizers and Jinja",
              "testing": "Hypothesis", "fit": "scikit-learn and scipy",
              "forecast": "pmdarima and Prophet"}


def installing(extra: str = "", options: str = "") -> str:
    """How to install ksim, with an *extra* and with *options* of pip: by its name, and from a checkout."""
    name, here = (f"'{each}[{extra}]'" if extra else each for each in (DISTRIBUTION, "."))
    pip = f"pip install {options}".rstrip()
    return f"{pip} {name} (from a checkout: {pip} -e {here})"


class MissingExtra(KsimError):
    """What is asked for needs a library that ksim alone does not install; `extra` of ksim's brings it."""

    def __init__(self, extra: str, what: str):
        super().__init__(extra, what)

    def message(self) -> str:
        extra, what = self.args
        return f"{what} needs {_LIBRARIES.get(extra, extra)}: {installing(extra)}"


class DoesNotFit(KsimError):
    """The weights, or one request's KV cache, exceed the memory there is."""
