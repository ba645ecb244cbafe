"""The model bigram: its table against the target asked token by token, continuations against explicit decoding, what
is kept in files, proposals, and bad input.
"""

from copy import deepcopy
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fixtures.drafting import tree
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from specdec.drafters import model_bigram
from specdec.drafters.base import drafters
from specdec.drafters.model_bigram import top_tokens
from specdec.errors import ModelLoadError, UsageError
from specdec.records import EMPTY, Source, TextStart
from specdec.targets.causal import Causal
from specdec.targets.encoder_decoder import EncoderDecoder


@pytest.fixture
def target_of(tiny_model, sampling):
    return lambda name: Causal(tiny_model(name), sampling(temperature=0.7))


@pytest.fixture
def build(group_values):
    """`build(target, extend="greedy", ...)`: the YAML with some keys changed, nothing kept."""

    def make(target, **keys):
        defaults = {"cache_dir": None, "k": 7, "extend_k": 4, "extend_w": 5, "batch_size": 16}
        return drafters.build(group_values("drafter", "model_bigram", **defaults | keys), target=target)

    return make


def asked(target, text):
    """The tokens after `text` by their chance, as the target decodes: through our own cache and masks."""
    target.start(TextStart(text, len(text) + 1))
    return target.verify(EMPTY)[-1].sort(descending=True, stable=True).indices.tolist()


def written(target, text, count):
    tokens = list(text)
    for _ in range(count):
        tokens.append(asked(target, tokens)[0])
    return tuple(tokens[len(text) :])


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "mistral_window", "gemma3"])
def test_the_table_is_what_the_model_says_after_every_token_alone(target_of, build, name):
    target = target_of(name)
    drafter = build(target)
    for token in range(0, target.vocab_size, 12):
        assert drafter.ranked(token, 7) == asked(target, [token])[:7]
        assert drafter.ranked(token, 2) == drafter.ranked(token, 7)[:2]


def test_a_begin_token_goes_in_front(tiny_model, sampling, build):
    model = deepcopy(tiny_model("llama"))
    model.config.bos_token_id = 5
    target = Causal(model, sampling(temperature=0.7))
    drafter, alone = build(target, begin=True, extend="greedy"), build(target)
    for token in (0, 5, 60):
        assert drafter.ranked(token, 7) == asked(target, [5, token])[:7]
        first, *rest = drafter.rows(token, 4, 5)[3]
        assert tuple(rest) == written(target, [5, token, first], 4)
    assert any(drafter.ranked(token, 7) != alone.ranked(token, 7) for token in range(target.vocab_size))


def test_a_table_that_says_the_same_of_all_tokens_is_told(tiny_model, sampling, build, caplog):
    model = deepcopy(tiny_model("llama"))
    model.config.bos_token_id = 5
    build(Causal(model, sampling()))
    assert "drafter.begin" not in caplog.text
    model.lm_head.weight.data.zero_()  # one law, whatever was read
    for begin in (False, True):
        build(Causal(model, sampling()), begin=begin)
    assert caplog.text.count("drafter.begin=true puts its begin token in front") == 1
    assert "After 100.0% of the tokens" in caplog.text


@pytest.mark.parametrize("name", ["opt", "gemma3"])  # positions by number, and windows with turned keys
def test_greedy_continuations_are_what_decoding_writes(target_of, build, name):
    target = target_of(name)
    drafter = build(target, extend="greedy")
    for token in (0, 50):
        for first, *rest in drafter.rows(token, 4, 5)[1::2]:
            assert tuple(rest) == written(target, [token, first], 4)


def test_beyond_what_is_decoded_rows_are_chained(target_of, build):
    target = target_of("llama")
    greedy, chained = build(target, extend="greedy"), build(target)
    for token in range(target.vocab_size):
        rows = greedy.rows(token, 7, 8)
        assert rows[4:] == chained.rows(token, 7, 8)[4:]
        for row, short in zip(rows[:4], greedy.rows(token, 4, 5), strict=True):
            assert row[:5] == short
            for last, following in zip(row[4:], row[5:], strict=False):
                assert following == greedy.ranked(last, 1)[0]
    assert greedy.rows(3, 4, 1) == [(first,) for first in greedy.ranked(3, 4)]
    assert greedy.rows(3, 4, 3) == [row[:3] for row in greedy.rows(3, 4, 5)]


def test_a_law_without_a_model_is_asked(table, random_law, build):
    law = random_law(6, 3)
    for temperature in (0.0, 1.0):  # the law, not its standardised form, is ranked
        drafter = build(table(law, temperature=temperature), extend="greedy", extend_k=2, extend_w=3)
        best = law.argmax(-1).tolist()
        for token in range(6):
            order = law[token].argsort(descending=True).tolist()
            assert drafter.ranked(token, 9) == order
            assert drafter.rows(token, 2, 3) == [(y, best[y], best[best[y]]) for y in order[:2]]


def test_equals_stand_in_the_order_of_their_numbers():
    logits = torch.tensor(
        [[1.0, 3.0, 1.0, 1.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0], [-torch.inf, 2.0, -torch.inf, 1.0, 3.0]]
    )
    assert top_tokens(logits, 3).tolist() == [[1, 4, 0], [0, 1, 2], [4, 1, 3]]
    assert top_tokens(logits.bfloat16(), 4).tolist() == [[1, 4, 0, 2], [0, 1, 2, 3], [4, 1, 3, 0]]
    many = torch.randint(0, 5, (40, 90), generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(top_tokens(many, 30), many.sort(dim=-1, descending=True, stable=True).indices[:, :30])


def test_chains_and_rows_follow_the_last_token(target_of, build, make_structure):
    drafter = build(target_of("llama"), k=2)
    drafter.start(TextStart([3, 8], 100))
    rows = drafter.propose(make_structure("rows", 4))
    assert len(rows.tree.leaves) == 2 and len(rows.tokens) == 8
    assert [rows.tokens[0], rows.tokens[4]] == drafter.ranked(8, 9)
    drafter.commit([1, 2])
    draft = drafter.draft(make_structure("chain", 3))
    assert tuple(draft.tokens.tolist()) == drafter.rows(2, 1, 3)[0] and draft.q is None
    assert draft.source == (Source("model_bigram", 0),) * 3 and draft.tree.is_chain


def test_a_node_of_a_tree_has_its_rank_after_its_parent(target_of, build):
    drafter, parents = build(target_of("llama")), [-1, -1, 0, 0, 1, 2, 0, -1]
    drafter.start(TextStart([8], 100))
    tokens, shape, source = drafter.propose(tree(*parents))
    assert shape.parents == tuple(parents)
    ranks = [0, 1, 0, 1, 0, 0, 2, 2]
    for node, (parent, rank) in enumerate(zip(parents, ranks, strict=True)):
        assert tokens[node] == drafter.ranked(8 if parent < 0 else tokens[parent], rank + 1)[rank]
        assert source[node] == Source("model_bigram", rank)


def test_replay_is_from_the_start_of_a_round_where_pairs_are_decoded_from(target_of, build):
    alone, pairs = (build(target_of("llama"), extend=extend) for extend in ("chain", "greedy"))
    assert (alone.capabilities.replay, pairs.capabilities.replay) == ("position", "start")
    assert pairs.laws([1], [2, 3]) is None


@pytest.fixture
def calls(monkeypatch):
    made, real = [], model_bigram.tabulate
    monkeypatch.setattr("specdec.drafters.model_bigram.tabulate", lambda *a: made.append(a) or real(*a))
    return made


def test_a_table_is_made_once_and_other_keys_weights_or_types_are_other_tables(target_of, build, calls, tmp_path):
    target, keys = target_of("llama"), {"cache_dir": str(tmp_path / "new" / "folder")}
    other = Causal(deepcopy(target.model), target.sampling)
    other.model.lm_head.weight[0, 0] += 1e-6
    narrow = Causal(deepcopy(target.model).float(), target.sampling)
    first = build(target, **keys)
    build(target, **keys, extend_k=2)  # says nothing where nothing is decoded
    again = build(target, **keys, batch_size=3)  # not part of what a table is
    assert len(calls) == 1
    assert all(first.rows(token, 7, 6) == again.rows(token, 7, 6) for token in range(target.vocab_size))
    changes = [(target, {"k": 6}), (target, {"extend": "greedy"}), (other, {}), (narrow, {})]
    for number, (model, change) in enumerate(changes, start=2):
        build(model, **keys, **change)
        assert len(calls) == number == len(list((tmp_path / "new" / "folder").iterdir()))


def other_numbers(path):
    with safe_open(path, framework="numpy") as stored:
        metadata = stored.metadata()
    save_file({name: np.zeros_like(array) for name, array in load_file(path).items()}, path, metadata)


def other_file(path):
    save_file({"first": np.zeros((61, 7), dtype=np.int32)}, path)


def test_a_damaged_table_is_made_again_and_said_so(target_of, build, calls, tmp_path, caplog):
    target, keys = target_of("llama"), {"cache_dir": str(tmp_path)}
    first = build(target, **keys)
    for change, why in (
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "is damaged"),
        (other_numbers, "is damaged (its checksums do not fit)"),
        (other_file, "is damaged (its format"),
    ):
        change(*tmp_path.iterdir())
        calls.clear()
        again = build(target, **keys)
        assert why in caplog.text and "it is made again" in caplog.text and len(calls) == 1
        assert again.rows(5, 7, 3) == first.rows(5, 7, 3)
        caplog.clear()
        build(target, **keys)
        assert not caplog.text and len(calls) == 1


@pytest.fixture
def saved(tiny_model, tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    return str(tmp_path)


def test_another_model_for_a_target_without_one(target_of, build, saved, table, random_law):
    own = build(target_of("llama"))
    drafter = build(table(random_law(61, 0)), model=saved)
    assert all(drafter.ranked(token, 7) == own.ranked(token, 7) for token in range(61))
    assert drafter.describe()["sha256"] and drafter.describe()["dtype"] == "float64"
    assert build(table(random_law(61, 0)), model=saved, dtype="float32").describe()["dtype"] == "float32"


def test_what_does_not_go_together(
    target_of, build, saved, table, random_law, tiny_encoder_decoder, sampling, tmp_path, monkeypatch
):
    llama, small = target_of("llama"), table(random_law(5, 0))
    t5 = tiny_encoder_decoder("t5")
    t5.save_pretrained(tmp_path / "t5")
    (tmp_path / "file").write_text("")
    for target, keys, sentence in (
        (llama, {"extend": "greedy", "extend_k": 8}, r"drafter\.extend_k=8: it should be at most drafter\.k=7"),
        (llama, {"dtype": "float32"}, r"drafter\.dtype=float32: it is of drafter\.model"),
        (llama, {"begin": True}, r"drafter\.begin=true: the target has no begin token"),
        (llama, {"cache_dir": str(tmp_path / "file")}, r"drafter\.cache_dir=.*null to keep none"),
        (small, {"begin": True}, r"drafter\.begin=true: a target without a model"),
        (small, {"model": saved}, r"drafter\.model=.*61 tokens and the target's 5"),
        (EncoderDecoder(t5, sampling(temperature=0.0)), {}, "the target is an encoder-decoder"),
        (table(random_law(61, 0)), {"model": str(tmp_path / "t5")}, "it is an encoder-decoder"),
    ):
        with pytest.raises(UsageError, match=sentence):
            build(target, **keys)
    monkeypatch.setattr("specdec.drafters.model_bigram._LARGEST_LAW", 4)
    with pytest.raises(UsageError, match=r"asking it about 5 tokens.*give a drafter\.model"):
        build(small)


def test_a_recorded_stream_has_no_law(build, table, random_law, monkeypatch):
    """A replay scores its own prompts only."""
    target = table(random_law(5, 0))
    monkeypatch.setattr(target, "score", Mock(side_effect=UsageError("No stream has this prompt.")))
    with pytest.raises(UsageError, match=r"drafter\.model=null: .* cannot say what follows.*give a drafter\.model"):
        build(target)


def test_logits_that_are_not_finite(tiny_model, sampling, build):
    target = Causal(deepcopy(tiny_model("llama")), sampling(temperature=0.0))
    target.model.lm_head.weight[0, 0] = torch.nan
    with pytest.raises(ModelLoadError, match="its logits are not finite"):
        build(target)
