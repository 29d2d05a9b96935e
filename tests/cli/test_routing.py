"""`ksim routing`: from what an engine returned to shares, numbers and a figure."""

import json

import numpy as np

from tests.cli.command import ksim

LINE = ("routing", "a.npy", "--model", "mixtral-8x7b")


def save(folder, tokens=50):
    scores = np.random.default_rng(1).random((tokens, 32, 8)) + np.linspace(0, 0.5, 8)
    np.save(folder / "a.npy", scores.argsort(axis=2)[:, :, -2:].astype(np.uint8))


def test_shares_and_a_figure_are_written_and_shown(tmp_path):
    save(tmp_path)
    shown = ksim(*LINE, "--ranks", "4", "-o", "shares.json", "-o", "shares.csv", "-o", "load.png", folder=tmp_path)
    assert "50 tokens in 32 layers of 8 experts, 2 a token, on 4 ranks" in " ".join(shown.split())
    assert "placed by EPLB" in shown and "wrote load.png" in shown
    rows = json.loads((tmp_path / "shares.json").read_text())
    assert [sum(row) for row in rows] == [100] * 32
    assert (tmp_path / "shares.csv").read_text() == "".join(",".join(map(str, row)) + "\n" for row in rows)
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")
    again = ksim("routing", "shares.csv", "--model", "mixtral-8x7b", "--json", "-", folder=tmp_path)
    first = ksim(*LINE, "--json", "-", folder=tmp_path)
    assert {**json.loads(again), "tokens": 50} == json.loads(first)


def test_a_scenario_runs_with_the_shares(tmp_path):
    save(tmp_path)
    ksim(*LINE, "-o", "shares.json", folder=tmp_path)
    line = ["step", "--model", "mixtral-8x7b", "--gpu", "h200", "--tp", "4", "--enable-expert-parallel", "--decode",
            "64x500", "--oracle", "roofline", "--json", "-"]
    (tmp_path / "s.toml").write_text('model = "mixtral-8x7b"\ngpu = "h200"\noracle = "roofline"\nrouting = {name ='
                                     ' "measured", path = "shares.json"}\n[serve]\ntensor_parallel_size = 4\n'
                                     'enable_expert_parallel = true\nmax_model_len = 1024\n[workload.synthetic]\n'
                                     'count = 2\narrivals = {process = "burst"}\nprompt = {kind = "fixed", value = 9}\n'
                                     'output = {kind = "fixed", value = 2}\n')
    assert json.loads(ksim(*line, folder=tmp_path)) and "completed" in ksim("run", "s.toml", folder=tmp_path)


def test_bad_input_is_refused_by_name(tmp_path):
    save(tmp_path)
    for words, said in (((*LINE, "-o", "x.txt"), "-o: x.txt: shares go to .json or .csv, and a figure to .png"),
                        ((*LINE, "--ranks", "9"), "--ranks: 9 do not share 8 experts; set 1 to 8"),
                        ((*LINE, "-o", "absent/x.json"), "-o: absent/x.json: cannot be written"),
                        (("routing", "b.npy", "--model", "mixtral-8x7b"), "b.npy: No such file"),
                        (("routing", "a.npy", "--model", "llama-3.1-8b"), "llama-3.1-8b has no experts"),
                        (("routing", "a.npy", "--model", "qwen3-30b-a3b"), "shape [50, 32, 2]")):
        assert said in ksim(*words, folder=tmp_path, code=1)
