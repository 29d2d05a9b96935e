"""`ksim new --schema`: the schema on the screen or in a file."""

import json

from ksim.scenario.schema import FILE, ID
from tests.cli.command import ksim_here


def test_the_schema_is_printed_or_written(tmp_path):
    printed = ksim_here("new", "--schema", folder=tmp_path)
    assert json.loads(printed.stdout)["$id"] == ID and printed.stderr == ""
    said = ksim_here("new", "s.json", "--schema", folder=tmp_path).stdout
    assert "#:schema s.json" in said and (tmp_path / "s.json").read_bytes() == FILE.read_bytes()


def test_no_scenario_and_no_folder_is_overwritten(tmp_path):
    (tmp_path / "s.toml").write_text("mine")
    for file, says in ((".", "cannot be written"), ("s.toml", "s.toml: exists; --force replaces it")):
        refused = ksim_here("new", file, "--schema", folder=tmp_path)
        assert refused.status == 1 and says in refused.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
