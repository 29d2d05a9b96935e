"""Files as other programs save them: bytes that are no text, line ends and marks that are harmless."""

import pytest

from tests.cli.command import SCENARIO, TRACE, ksim_here


@pytest.mark.parametrize(("content", "said"), [
    (SCENARIO.encode("utf-16"), "but in UTF-16; save it as UTF-8"),
    (b"PAR1\xff\xfe", "is not text in UTF-8, but a Parquet file"),
    (b"\x1f\x8b\x08\xff", "but gzipped"), (b"\x89PNG\r\n", "but a picture"), (b"a = \xff", "is not text in UTF-8")])
def test_bytes_that_are_no_scenario_are_said_to_be_what_they_are(content, said, tmp_path):
    (tmp_path / "b.toml").write_bytes(content)
    refused = ksim_here("run", "b.toml", folder=tmp_path)
    assert refused.status == 1 and said in refused.stderr and refused.stderr.count("\n") == 1


@pytest.mark.parametrize("changed", [lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text])
def test_line_ends_and_marks_of_other_systems_do_no_harm(changed, tmp_path):
    (tmp_path / "b.toml").write_bytes(changed(SCENARIO).encode())
    (tmp_path / "b.csv").write_bytes(changed(TRACE).encode())
    assert ksim_here("run", "b.toml", "--explain-defaults", folder=tmp_path).status == 0
    assert ksim_here("trace", "b.csv", folder=tmp_path).status == 0
