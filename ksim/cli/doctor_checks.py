"""What `ksim doctor` looks at: each thing as a finding, with what to do where it is broken."""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from attrs import frozen

from ksim.foundation import catalog
from ksim.foundation.errors import DISTRIBUTION, installing

#: What ksim needs, and from which version on, as pyproject.toml says.
NEEDED = {"attrs": "23.2", "cattrs": "24.1", "matplotlib": "3.8", "networkx": "3.2", "numpy": "1.26", "plotly": "6.0",
          "pyarrow": "15", "pyyaml": "6.0", "rich": "13.7", "simpy": "4.1", "sortedcontainers": "2.4",
          "tomli-w": "1.0", "typer": "0.12"}
#: What each extra of ksim brings, and what that is for.
EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "server": (("httptools", "msgspec", "prometheus-client", "pyzmq", "starlette", "uvicorn", "uvloop"),
               "`ksim serve`"),
    "tokenizer": (("jinja2", "tokenizers"), "`ksim serve --tokenizer`: the token counts of a real model"),
    "tune": (("optuna",), "`ksim tune`"),
    "ray": (("ray",), "`--on ray`: studies on many machines"),
    "pandas": (("pandas",), "`to_pandas()` of results in Python"),
    "testing": (("hypothesis",), "`ksim.testing`: property tests of your own plug-ins"),
    "fit": (("scikit-learn", "scipy"), "`ksim gpu calibrate`, and fits of the oracle `learned`"),
    "forecast": (("pandas", "pmdarima", "prophet"), "forecasts of Dynamo's planner by ARIMA and Prophet"),
    "browser": (("playwright",), "tests of pages in a browser"),
}
OK, NOTE, BROKEN = "ok", "note", "broken"
REINSTALL = installing(options="--force-reinstall")
#: What the metadata of ksim has, whatever it is called, and that of another project has not.
_OURS = "github.com/ksim-project/ksim"
#: The oldest Python, and the oldest Python that nobody has tested yet.
_PYTHONS = (3, 11), (3, 15)
_GIB = 2.0**30


@frozen
class Finding:
    """What was found of one thing: its `value`, how it is `shown`, whether it is broken, and the remedy."""

    area: str
    name: str
    value: Any
    shown: str = ""
    status: str = OK
    remedy: str = ""

    @property
    def text(self) -> str:
        """The value as people read it."""
        return self.shown or str(self.value)


def versions() -> Iterator[Finding]:
    """Of ksim, Python and the platform, and of the packages that ksim needs."""
    from ksim import __version__

    yield Finding("versions", "ksim", __version__, f"{__version__}, {catalog.DATA.parent}")
    least, untested = _PYTHONS
    version = platform.python_version()
    status = BROKEN if sys.version_info[:2] < least else NOTE if sys.version_info[:2] >= untested else OK
    yield Finding("versions", "python", version, f"{version}, {sys.executable}", status,
                  "" if status == OK else f"ksim is tested with Python {'.'.join(map(str, least))} to"
                                          f" {untested[0]}.{untested[1] - 1}")
    yield Finding("versions", "platform", platform.platform())
    yield from namesakes()
    for name, version in NEEDED.items():
        yield _package(name, version)


def namesakes() -> Iterator[Finding]:
    """Installed distributions called `ksim`: that of another project, or this one under its earlier name."""
    for other in metadata.distributions(name="ksim"):
        if other.read_text("RECORD") is None:  # metadata that a build left in a checkout: nothing is installed
            continue
        ours = any(_OURS in url for url in other.metadata.get_all("Project-URL", []))
        whose = f"this project, now {DISTRIBUTION}" if ours else "another project, whose files mix with this one's"
        yield Finding("versions", "other_ksim", other.version, f"{other.version}, of {whose}", NOTE if ours else BROKEN,
                      f"pip uninstall ksim, then {REINSTALL}")


def _package(name: str, least: str) -> Finding:
    version = _version(name)
    if version is None:
        return Finding("packages", name, None, "missing", BROKEN, f"pip install '{name}>={least}'")
    if _numbers(version) < _numbers(least):
        return Finding("packages", name, version, f"{version}, older than {least}", BROKEN,
                       f"pip install --upgrade '{name}>={least}'")
    return Finding("packages", name, version)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    return tuple(map(int, re.findall(r"\d+", re.match(r"[\d.]*", version)[0])))  # type: ignore[index]


def extras() -> Iterator[Finding]:
    """Yield a finding for each extra: its version, or what it would add."""
    for extra, (packages, purpose) in EXTRAS.items():
        present = {name: _version(name) for name in packages if name != "uvloop" or sys.platform != "win32"}
        missing = [name for name, version in present.items() if version is None]
        yield Finding("extras", extra, not missing, f"{'not ' * bool(missing)}installed: {purpose}",
                      NOTE if missing else OK, installing(extra) if missing else "")


def data() -> Iterator[Finding]:
    """The catalogue, the profiles that ship, and the GPUs that have none."""
    for folder in ("models", "gpus", "systems", "engines"):
        names = catalog.entries(folder)
        yield Finding("catalogue", folder, len(names), "", OK if names else BROKEN,
                      "" if names else f"the package lacks its data files: {REINSTALL}")
    profiles = sorted(path.stem for path in (catalog.DATA / "profiles").glob("*.npz"))
    measured = [name for name in catalog.entries("gpus") if name in profiles]
    yield Finding("catalogue", "gpus_with_profile", measured, ", ".join(measured))
    without = [name for name in catalog.entries("gpus") if name not in profiles]
    remedy = ("times on these come from the oracle `learned`, out of other GPUs; `ksim gpu points` and `ksim"
              " calibrate` make a profile")
    yield Finding("catalogue", "gpus_without_profile", without, f"{', '.join(without) or 'none'}",
                  NOTE if without else OK, remedy if without else "")


def caches() -> Iterator[Finding]:
    """Files that are kept between runs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    old, fonts = home / "ksim", Path(os.environ.get("MPLCONFIGDIR") or home / "matplotlib")
    yield Finding("caches", "matplotlib_bytes", _size(fonts), f"{_mb(_size(fonts))} in {fonts}")
    if old.is_dir():
        yield Finding("caches", "old_ksim_bytes", _size(old), f"{_mb(_size(old))} in {old}", NOTE,
                      f"an earlier release left it, and nothing reads it: rm -r {old}")
    writes = not sys.dont_write_bytecode and (sys.pycache_prefix or os.access(catalog.DATA.parent, os.W_OK))
    kept = bool(writes) or (catalog.DATA.parent / "__pycache__").is_dir()
    remedy = "every start compiles ksim anew: unset PYTHONDONTWRITEBYTECODE, or set PYTHONPYCACHEPREFIX"
    yield Finding("caches", "bytecode", kept, "kept" if kept else "not kept", OK if kept else NOTE,
                  "" if kept else remedy)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def shell() -> Iterator[Finding]:
    """Completion, and what the terminal can show."""
    from ksim.cli import terminal
    from ksim.cli.completion import SCRIPTS, script_path

    installed = [name for name in SCRIPTS if script_path(name).is_file()]
    stale = [name for name in installed if script_path(name).read_text(encoding="utf-8") != SCRIPTS[name]]
    yield Finding("shell", "completion", installed, f"{', '.join(installed) or 'not installed'}",
                  OK if installed and not stale else NOTE,
                  f"ksim --install-completion{' ' + stale[0] if stale else ''}" if stale or not installed else "")
    colours = terminal.wants_colour(os.environ)
    shown = {None: "on terminals", True: "always", False: "never"}[colours]
    yield Finding("shell", "colours", shown, f"{shown} (TERM={os.environ.get('TERM', '')})")
    columns = terminal.width(sys.stdout) or _terminal_columns()
    yield Finding("shell", "width_columns", columns, f"{columns} columns", OK if columns >= 80 else NOTE,
                  "" if columns >= 80 else "tables lack columns: widen the terminal, or give --wide")
    encoding = sys.stdout.encoding or "unknown"
    fits = encoding.lower().replace("-", "") == "utf8"
    yield Finding("shell", "encoding", encoding, "", OK if fits else NOTE,
                  "" if fits else "what it lacks is shown as ?: set PYTHONUTF8=1")


def _terminal_columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def machine() -> Iterator[Finding]:
    """Yield the CPUs and the memory that studies can use."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("machine", "cpus", cpus, f"{cpus}, as many processes as studies start")
    memory = _memory()
    if memory is not None:
        least = 2 * _GIB
        yield Finding("machine", "memory_bytes", memory, f"{memory / _GIB:.1f} GiB", OK if memory >= least else NOTE,
                      "" if memory >= least else "long runs need --stream -o DIR")


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
