"""What engines returned as routed_experts, or tables of counts, and how uneven that is."""

import base64
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksim.foundation.config import Choice
from ksim.foundation.errors import ConfigError, DataError
from ksim.scenario.models import model_of
from ksim.scenario.routed import BATCHES, read_routed, unevenness
from ksim.scenario.routing import routing_of

MIXTRAL, DEEPSEEK = model_of("mixtral-8x7b"), model_of("deepseek-v3")
LAYERS, EXPERTS, TOP_K = 32, 8, 2


def chosen(tokens=40, layers=LAYERS, experts=EXPERTS, top_k=TOP_K, seed=1):
    scores = np.random.default_rng(seed).random((tokens, layers, experts))
    return scores.argsort(axis=2)[:, :, :top_k]


def counted(array, experts=EXPERTS):
    return np.stack([np.bincount(array[:, layer].ravel(), minlength=experts) for layer in range(array.shape[1])])


def encoded(array):
    written = io.BytesIO()
    np.save(written, array.astype(np.uint8))
    return base64.b64encode(written.getvalue()).decode()


def write(folder, name, content):
    path = folder / name
    if name.endswith(".npy"):
        np.save(path, content)
    elif name.endswith(".npz"):
        np.savez(path, *content)
    else:
        path.write_text(content)
    return path


FORMS = {
    "a.npy": lambda array: array.astype(np.uint8), "a.npz": lambda array: [array[:7], array[7:]],
    "a.json": lambda array: json.dumps(array.tolist()),
    "outputs.json": lambda array: json.dumps([{"request_id": "1", "outputs": [{"routed_experts": part.tolist()}]}
                                              for part in (array[:3], array[3:])]),
    "responses.jsonl": lambda array: "\n".join(json.dumps({"choices": [
        {"text": "", "routed_experts": encoded(part)}, {"routed_experts": None}]}) for part in (array[:9], array[9:])),
    "lists.jsonl": lambda array: "\n".join(json.dumps(part.tolist()) for part in (array[:9], array[9:])),
    "counts.csv": lambda array: "\n".join(",".join(map(str, row)) for row in counted(array)),
    "counts.json": lambda array: json.dumps(counted(array).tolist()),
    "counts.npy": counted,
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_the_same_counts(name, tmp_path):
    array = chosen()
    routed = read_routed(write(tmp_path, name, FORMS[name](array)), MIXTRAL)
    assert routed.counts.tolist() == counted(array).tolist()
    assert routed.tokens == (None if name.startswith("counts") else 40)


@pytest.mark.parametrize("name", ["shares.json", "shares.csv"])
def test_a_scenario_takes_what_was_read(name, tmp_path):
    routed = read_routed(write(tmp_path, "a.npy", chosen()), MIXTRAL)
    text = json.dumps(routed.table()) if name.endswith("json") else "\n".join(
        ",".join(map(str, row)) for row in routed.table())
    routing = routing_of(Choice("measured", {"path": str(write(tmp_path, name, text))}), MIXTRAL)
    assert np.array(routing.shares) == pytest.approx(routed.counts / (40 * TOP_K))


@pytest.mark.parametrize("all_layers", [True, False])
def test_layers_without_experts_are_left_out_and_get_even_shares(all_layers, tmp_path):
    """vLLM leaves the first three layers at 0; other engines return those with experts alone."""
    array = chosen(5, 58, 256, 8)
    whole = np.concatenate([np.zeros((5, 3, 8), int), array], axis=1) if all_layers else array
    routed = read_routed(write(tmp_path, "a.npy", whole), DEEPSEEK)
    assert [*routed.layers] == [*range(3, 61)] and routed.counts.sum() == 5 * 58 * 8
    table = np.array(routed.table())
    assert table.shape == (61, 256) and (table[:3] == 1).all() and (table[3:] == counted(array, 256)).all()


def test_tokens_that_were_not_routed_do_not_count(tmp_path):
    array = chosen()
    padded = np.concatenate([array, np.zeros((3, LAYERS, TOP_K), int), np.full((1, LAYERS, TOP_K), -1)])
    routed = read_routed(write(tmp_path, "a.npy", padded), MIXTRAL)
    assert routed.tokens == 40 and routed.counts.tolist() == counted(array).tolist()


def changed(place, value):
    array = chosen()
    array[place] = value
    return array


@pytest.mark.parametrize("name, content, problem", [
    ("a.npy", chosen(top_k=3), r"shape \[40, 32, 3\]; routed_experts of mixtral-8x7b has \[tokens, 32 layers, 2 exp"),
    ("a.npy", chosen(layers=31), r"shape \[40, 31, 2\]"),
    ("a.npy", changed((3, 4, 1), 8), "names expert 8 in layer 4; those of mixtral-8x7b are 0 to 7"),
    ("a.npy", changed((3, 4, 1), -2), "names expert -2 in layer 4"),
    ("a.npy", changed((3, 4), 5), "a token that goes to one expert twice, in layer 4"),
    ("a.npy", chosen() + 0.5, "fractions"),
    ("a.npy", np.zeros((0, LAYERS, TOP_K), int), "has no rows"),
    ("a.npy", np.zeros((4, LAYERS, TOP_K), int), "no token that was routed in layer 0"),
    ("a.npy", np.full((4, LAYERS, TOP_K), np.nan), "not a finite number"),
    ("a.npy", np.array([["a"]]), "not of numbers"),
    ("a.npz", [], "no routed_experts"),
    ("counts.csv", "\n".join(["1,2,3,4,5,6,7,8"] * 31), r"counts of shape \[31, 8\]; mixtral-8x7b has 32 layers of 8"),
    ("counts.csv", "\n".join(["1,2,3,4,5,6,7,-8"] * 32), "a count of -8"),
    ("counts.csv", "\n".join(["1,2,3,4,5,6,7,x"] * 32), "no table of numbers"),
    ("counts.csv", "\n".join(["1,2,3,4,5,6,7,8"] * 31 + ["1,2"]), "rows of 2 to 8 numbers"),
    ("counts.csv", "\n".join(["1,2,3,4,5,6,7,8"] * 31 + ["0,0,0,0,0,0,0,0"]), "no token that was routed in layer 31"),
    ("counts.csv", "", "no table of numbers"),
    ("a.json", "[", "is not valid JSON"),
    ("a.json", "{}", "has no routed_experts; start vLLM with --enable-return-routed-experts"),
    ("a.json", '{"routed_experts": "text"}', "text that is no .npy file in base64"),
    ("a.json", '{"routed_experts": [[1], [2, 3]]}', "no array of numbers"),
    ("a.json", '{"routed_experts": [["a"]]}', "no array of numbers"),
])
def test_what_is_neither_is_refused(name, content, problem, tmp_path):
    with pytest.raises(DataError, match=problem):
        read_routed(write(tmp_path, name, content), MIXTRAL)


def test_files_that_are_no_arrays_are_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    for name, problem in (("a.npy", "cannot be read"), ("a.json", "is no text"), ("absent.npy", "No such file")):
        with pytest.raises(DataError, match=problem):
            read_routed(tmp_path / name, MIXTRAL)
    with pytest.raises(ConfigError, match="llama-3.1-8b has no experts"):
        read_routed(tmp_path / "a.npy", model_of("llama-3.1-8b"))


@given(st.integers(1, 8), st.integers(0, 99))
def test_eplb_is_never_less_even_and_one_rank_is_even(tmp_path_factory, ranks, seed):
    path = write(tmp_path_factory.mktemp("routed"), "a.npy", chosen(30, seed=seed))
    uneven = unevenness(read_routed(path, MIXTRAL), ranks)
    assert (uneven.fullest >= 1 - 1e-12).all() and 0 < uneven.entropy <= 1
    assert uneven.balanced_fullest is None or (uneven.balanced_fullest <= uneven.fullest + 1e-12).all()
    assert uneven.balancedness == pytest.approx(1 / uneven.fullest.mean())
    assert ranks > 1 or uneven.fullest == pytest.approx(np.ones(LAYERS))
    assert len(uneven.by_batch) == len(BATCHES) and uneven.by_batch[-1] < uneven.by_batch[0] + 1e-9


def test_numbers_by_hand(tmp_path):
    """All layers alike: shares of 1/4, 1/4 and six of 1/12; two ranks have 8/12 and 4/12."""
    path = write(tmp_path, "a.csv", "\n".join(["3,3,1,1,1,1,1,1"] * 32))
    uneven = unevenness(read_routed(path, MIXTRAL), 2)
    assert uneven.fullest == pytest.approx(np.full(32, 2 * 8 / 12)) and uneven.correlation == pytest.approx(1)
    assert uneven.balanced_fullest == pytest.approx(np.ones(32)) and uneven.balancedness == pytest.approx(0.75)
    assert uneven.entropy == pytest.approx((2 / 4 * np.log(4) + 6 / 12 * np.log(12)) / np.log(8))
    with pytest.raises(ConfigError, match="9 do not share 8 experts; set 1 to 8"):
        unevenness(read_routed(path, MIXTRAL), 9)
