"""Plug-ins from outside ksim: what is imported, and what is called."""

import sys

import pytest

from ksim.foundation import catalog
from ksim.foundation.catalog import METHODS, TRUST, plugin
from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that leaves a file where it is imported, as an installer has put it."""
    folder = tmp_path / "site-packages"
    (folder / "stranger").mkdir(parents=True)
    (folder / "stranger" / "__init__.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Mine:\n    def choose(self): ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    yield tmp_path / "ran"
    sys.modules.pop("stranger", None)


def test_an_installed_package_is_imported_only_where_that_is_trusted(installed, monkeypatch):
    with pytest.raises(ConfigError, match="stranger:Mine: is not imported: .* add --trust"):
        plugin("cluster.routers", Choice("stranger:Mine"))
    assert not installed.exists()
    monkeypatch.setenv(TRUST, "1")
    assert type(plugin("cluster.routers", Choice("stranger:Mine"))).__name__ == "Mine"


@pytest.mark.parametrize("folder", METHODS)
@pytest.mark.parametrize("name", ["subprocess:Popen", "os:system", "builtins:eval", "numpy:save", "posix:system"])
def test_no_module_of_python_or_of_its_packages_is_a_plugin(folder, name):
    with pytest.raises(ConfigError, match="is not imported"):
        catalog.find(folder, name)


@pytest.mark.parametrize("folder", METHODS)
def test_what_has_no_method_of_its_kind_is_not_called(folder, monkeypatch):
    monkeypatch.setenv(TRUST, "1")
    with pytest.raises(ConfigError, match=f"has .*{METHODS[folder][0]}" if METHODS[folder] else "is no function"):
        plugin(folder, Choice("subprocess:Popen", {"args": ["true"]}))


def test_a_kind_without_plugins_of_ones_own_takes_none():
    with pytest.raises(ConfigError, match="takes its own alone"):
        catalog.find("deploy.readers", "tests.cli.command:ksim")


@pytest.mark.parametrize("folder", [folder for folder in METHODS if folder != "ranks.processes"])  # none ships
def test_all_that_ships_has_a_method_of_its_kind(folder):
    for name in catalog.names(folder):
        made = catalog.find(folder, name)
        methods = METHODS[folder] or ("__call__",)
        assert name == "fcfs" or any(hasattr(made, method) for method in methods)  # fcfs is the default
