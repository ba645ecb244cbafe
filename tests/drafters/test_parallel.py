"""A model that drafts over mask tokens: against a forward pass of the whole text and its masks, without a cache."""

import json

import pytest
import torch
from fixtures.drafting import PROMPT, assert_drafted_from, chain, shaken, tokens_of_calls, tree
from fixtures.refusals import refused
from fixtures.slow_eagle import random_rounds

from specdec.drafters.base import drafters
from specdec.drafters.parallel import Parallel
from specdec.errors import ModelLoadError
from specdec.records import TextStart
from specdec.sampling import generator_for, probabilities
from specdec.targets.causal import Causal

MASK = 60


@pytest.fixture(scope="module")
def model(tiny_model):
    return shaken(tiny_model("llama"))


@pytest.fixture
def parallel(model, tiny_model, sampling):
    """`parallel(temperature=0.0)`: the drafter beside a target of that sampling; `drafts=` and others go to it."""

    def make(drafts="sampled", siblings="without_replacement", **how):
        target = Causal(tiny_model("llama"), sampling(**how))
        return Parallel(model, target, mask_token=MASK, drafts=drafts, siblings=siblings), target

    return make


def slow_logits(model, text, gamma):
    """[gamma, V]: the last rows of one pass over all kept tokens and the masks."""
    tokens = torch.tensor([[*text, *[MASK] * (gamma - 1)]])
    return model(input_ids=tokens, use_cache=False).logits[0, len(text) - 1 :]


@pytest.mark.parametrize(
    "how", [{"temperature": 0.0}, {"temperature": 0.7, "top_k": 9}, {"temperature": 1.2, "top_p": 0.8}]
)
def test_drafts_are_those_of_a_pass_without_a_cache(parallel, model, monkeypatch, how):
    drafter, target = parallel(**how)
    once = drafter.draft
    monkeypatch.setattr(drafter, "draft", lambda shape: (once(shape), once(shape))[1])  # asked twice, as told once
    for text, drafts in random_rounds(drafter, target, [chain(gamma) for gamma in (4, 1, 6, 2, 5)], 3, 10):
        for (length, draft), gamma in zip(drafts, (4, 1, 6, 2, 5) * 2, strict=True):
            assert draft.tree.is_chain and len(draft) == gamma
            logits = slow_logits(model, text[:length], gamma)
            if how["temperature"] == 0:
                assert draft.q is None and torch.equal(draft.tokens, logits.argmax(-1))
            else:
                torch.testing.assert_close(draft.q, probabilities(logits, target.sampling), atol=1e-12, rtol=0)
                assert (draft.q.gather(-1, draft.tokens.unsqueeze(-1)) > 0).all()


def test_one_call_drafts_all_tokens_and_its_cache_holds_no_mask(parallel, model):
    drafter, _ = parallel(temperature=0.0)
    with tokens_of_calls(model) as calls:
        drafter.start(TextStart(PROMPT, 64))
        first = drafter.draft(chain(4)).tokens.tolist()
        drafter.commit([*first, 5])  # all accepted: all of them were masks to the model
        drafter.draft(chain(3))
        drafter.commit([9])
        drafter.draft(chain(1))
    masks = [MASK] * 3
    assert calls == [PROMPT[:-1], [PROMPT[-1], *masks], [*first, 5, *masks[:2]], [9]]
    assert drafter._decoder.length == len([*PROMPT, *first, 5, 9])


@pytest.mark.parametrize(
    ("drafts", "siblings"),
    [("sampled", "without_replacement"), ("sampled", "independent"), ("greedy", "without_replacement")],
)
def test_nodes_of_a_level_have_one_law(parallel, model, drafts, siblings):
    drafter, target = parallel(drafts, siblings, temperature=1.0)
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    levels = slow_logits(model, PROMPT, 3)
    for _ in range(6):
        draft = drafter.draft(tree(-1, -1, 0, 0, 1, 2))
        assert (draft.q is None) == (drafts == "greedy")
        assert_drafted_from(
            draft, lambda node, above: levels[len(above)], target.sampling, independent=siblings == "independent"
        )
    assert drafter._decoder.length == len(PROMPT)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_end_of_the_context(tiny_llama, sampling, temperature):
    """Nothing is drafted beyond the model's last position, and `chances` says so."""
    model = tiny_llama(61, context=12).double()
    target = Causal(model, sampling(temperature=temperature))
    drafter = Parallel(model, target, mask_token=MASK)
    chances = drafter.chances(PROMPT, [1, 2, 3, 4, 5, 6, 7], None, 3)
    drafter.start(TextStart(PROMPT, 64, generator=generator_for(0, "p", "draft")))
    offered = []
    for token in [1, 2, 3, 4, 5, 6, 7]:
        offered.append(len(drafter.draft(chain(3))))
        drafter.commit([token])
    assert offered == [3, 3, 3, 2, 1, 0, 0]
    if temperature:
        assert (chances > 0).sum(-1).tolist() == offered


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 20}])
def test_chances_are_those_of_single_drafts(parallel, model, monkeypatch, how):
    monkeypatch.setattr("specdec.drafters.parallel._ROWS", 12)
    drafter, target = parallel(**how)
    text = [4, 9, 13, 2, 60, 1, 7, 8]
    chances = drafter.chances(PROMPT, text, None, 4)
    for position in range(len(text)):
        logits = slow_logits(model, [*PROMPT, *text[:position]], 4)
        laws = probabilities(logits, target.sampling)
        for level, token in enumerate(text[position : position + 4]):
            assert float(chances[position, level]) == pytest.approx(float(laws[level, token]), abs=1e-12)
        assert not chances[position, len(text) - position :].any()


def along(drafter):
    found = []
    drafter.start(TextStart(PROMPT, 64))
    for gamma, committed in ((4, [5]), (4, [3, 19, 44, 2, 1]), (2, [8, 8]), (6, [1]), (4, [2])):
        found.append(drafter.draft(chain(gamma)).tokens.tolist())
        drafter.commit(committed)
    return found


def test_masks_behind_the_last_that_is_read_change_nothing(parallel, monkeypatch):
    own = along(parallel(temperature=0.0)[0])
    monkeypatch.setattr(Parallel, "_compiled_size", lambda drafter, needed: needed + 3)
    assert along(parallel(temperature=0.0)[0]) == own


@pytest.mark.slow
@torch.inference_mode()
def test_compiled_passes_draft_the_same(model, tiny_model, sampling, parallel):
    """The traced pass serves calls of every size; one made for eight tokens, as on a GPU, serves all rounds of a chain
    of four: masks fill it up.
    """
    how, expected = sampling(temperature=0.0), along(parallel(temperature=0.0)[0])
    drafter = Parallel(model, Causal(tiny_model("llama"), how, compilation="trace"), mask_token=MASK)
    drafter.prepare(64, chain(4))
    passes, decoder = drafter._decoder.passes, drafter._decoder
    assert passes.sizes == (0, 1)
    calls, evaluate = [], decoder.forward
    decoder.forward = lambda tokens, tree, **options: calls.append(len(tokens)) or evaluate(tokens, tree, **options)
    assert along(drafter) == expected and calls[1:] == [4, 4, 6, 7, 4]
    passes.steps[8] = passes.steps.pop(0)
    calls.clear()
    assert along(drafter) == expected and calls[1:] == [8] * 5


@pytest.fixture
def saved(model, tmp_path):
    def save(**changes):
        model.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        return tmp_path

    return save


@pytest.fixture
def built(tiny_model, sampling, group_values):
    def build(name="parallel", **changes):
        target = Causal(tiny_model("llama"), sampling(temperature=0.0))
        return drafters.build(group_values("drafter", name, **changes), target=target)

    return build


def test_a_published_folder_says_its_mask_token(saved, built):
    folder = saved(spd_type="pard", pard_token=58)
    assert built(model=str(folder)).describe()["mask_token"] == 58
    assert built(model=str(folder), mask_token=57).mask_token == 57
    assert built(model=str(saved(pard_token=None, mask_token_id=3))).mask_token == 3


def test_what_cannot_be_used_is_refused(saved, built):
    for changes, values, told in (
        ({}, {}, "names no mask token .* set drafter.mask_token"),
        ({"pard_token": 5, "ptd_token_id": 6}, {}, r"several mask tokens \(pard_token=5, ptd_token_id=6\)"),
        ({"pard_token": "x"}, {}, "should be a int"),
        ({"pard_token": 61}, {}, "drafter.mask_token=61: .* has the tokens 0 to 60"),
        ({"pard_token": -1}, {}, "drafter.mask_token=-1"),
        ({}, {"mask_token": 99}, "drafter.mask_token=99"),
        ({"pard2_target_dim": 8, "pard_token": 5}, {}, "PARD-2, which is not read: .*warp_model.bin"),
        ({"pard_token": 5, "speculators_model_type": "mlp"}, {}, "speculators MLP"),
    ):
        with refused(told):
            built(model=str(saved(**changes)), **values)


def test_other_drafters_name_this_one_and_features_beside_the_model_are_not_overlooked(saved, built):
    folder = saved(spd_type="pard", pard_token=5)
    for other in ("eagle", "medusa", "mlp_speculator"):
        with refused(r"of the format PARD: use \+drafter=parallel", ModelLoadError):
            built(other, model=str(folder))
    (folder / "warp_model.bin").write_bytes(b"")
    with refused("PARD-2", ModelLoadError):
        built(model=str(folder))
