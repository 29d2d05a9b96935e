"""`ksim schema`: the schema on the screen or in a file."""

import json

from ksim.scenario.schema import FILE, ID
from tests.cli.command import ksim_here


def test_the_schema_is_printed_or_written(tmp_path):
    printed = ksim_here("schema", folder=tmp_path)
    assert json.loads(printed.stdout)["$id"] == ID and printed.stderr == ""
    said = ksim_here("schema", "-o", "s.json", folder=tmp_path).stdout
    assert "#:schema s.json" in said and (tmp_path / "s.json").read_bytes() == FILE.read_bytes()


def test_a_folder_is_no_file_to_write_to(tmp_path):
    refused = ksim_here("schema", "-o", ".", folder=tmp_path)
    assert refused.status == 1 and "cannot be written" in refused.stderr and [*tmp_path.iterdir()] == []
