"""MTP heads of a target's own checkpoint draft what a second implementation without a cache says, over rounds with
rejections; and what is no such checkpoint is refused.
"""

import json

import pytest
import torch
from fixtures.drafting import decoded
from fixtures.refusals import refused
from fixtures.slow_eagle import assert_chances_are_those_of_drafts, features_of, random_rounds
from fixtures.slow_mtp import SlowMtp, mtp_model, mtp_weights, write_mtp
from fixtures.tiny_models import unprobed
from safetensors.torch import save_file

from specdec.drafters.base import drafters
from specdec.errors import SpecdecError
from specdec.models import probe as probing
from specdec.models.decoder import Probed
from specdec.published.checkpoint_files import open_checkpoint
from specdec.published.recognise import recognise
from specdec.records import TextStart
from specdec.sampling import probabilities
from specdec.targets import targets
from specdec.targets.causal import Causal

# Case -> family of the target, layout of the names, number of heads.
CASES = {
    "qwen3_5": ("qwen3_5", "qwen", 1),
    "qwen3_next": ("qwen3_next", "qwen", 2),
    "deepseek_v3_three_heads": ("deepseek_v3", "deepseek", 3),
    "glm4_moe": ("glm4_moe", "deepseek", 2),
    "mimo": ("qwen2", "mimo", 1),
}


@pytest.fixture(scope="module", autouse=True)
def without_probes():
    """Probe the recurrent families alone, which take trees by rows only."""
    examine = probing.probe

    def probe(decoder):
        return examine(decoder) if "qwen3" in decoder.model.config.model_type else Probed()

    with unprobed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "probe", probe)
        yield


@pytest.fixture(scope="module")
def made(sampling, group_values, tmp_path_factory):
    """`made("qwen3_5", temperature=0.0)` gives the drafter, its target and the slow implementation."""
    folders = {}

    def make(case, **how):
        family, layout, heads = CASES[case]
        model = mtp_model(family)
        weights = mtp_weights(model, layout, heads)
        if case not in folders:
            folders[case] = write_mtp(tmp_path_factory.mktemp(case), model, weights)
        target = Causal(model, sampling(**how), name=str(folders[case]))
        drafter = drafters.build(group_values("drafter", "mtp"), target=target)
        return drafter, target, SlowMtp(model, weights, layout, heads)

    return make


@pytest.mark.parametrize("case", CASES)
def test_q_is_the_law_of_the_heads_over_random_rounds(made, make_structure, case):
    """The first text has two tokens, so that further heads have no row yet."""
    drafter, target, slow = made(case, temperature=0.7, top_k=9)
    compared = 0
    for text, drafts in random_rounds(drafter, target, make_structure("chain", 5), 2, 3):
        features = features_of(target.model, text, ())
        for length, draft in drafts:
            assert len(draft) == 5
            found = slow.logits_along(text[:length], features[: length - 1], draft.tokens.tolist())
            law = torch.stack([probabilities(logits, target.sampling) for logits in found])
            torch.testing.assert_close(draft.q, law, atol=1e-4, rtol=1e-3)
            compared += 1
    assert compared == 6


@pytest.mark.parametrize("case", ["qwen3_5", "deepseek_v3_three_heads"])
def test_chances_along_a_text_are_those_of_drafts_at_every_place(made, make_structure, monkeypatch, case):
    """Several chains are drafted in one call; a text of two tokens begins before every head has a row."""
    monkeypatch.setattr("specdec.eagle.mtp_network._REPLAYED", 60)
    drafter, target, _ = made(case, temperature=1.0)
    for prompt in ([7], [11, 3, 7, 30]):
        assert_chances_are_those_of_drafts(drafter, target, prompt, [5, 1, 4, 1, 5, 9, 50, 8], 5, rel=1e-3, abs=1e-6)


def test_a_folder_in_shards_is_the_target_and_its_own_drafter(made, sampling, group_values, make_structure):
    """Nothing but `+drafter=mtp` is said; the heads are recorded, and that drafts go beyond them."""
    _, target, _ = made("deepseek_v3_three_heads", temperature=0.0)
    loaded = targets.build(
        group_values("target", "causal", model=target.name, compile=False, dtype="float64", device="cpu"),
        sampling=sampling(temperature=0.0),
    )
    drafter = drafters.build(group_values("drafter", "mtp"), target=loaded)
    about = drafter.describe()
    assert (about["heads"], about["format"], len(about["sha256"])) == (3, "MTP module", 64)
    weights = mtp_weights(target.model, "deepseek", 3)
    biases = sum(weight.numel() for name, weight in weights.items() if name.endswith("correction_bias"))  # buffers
    assert about["parameters"] == sum(weight.numel() for weight in weights.values()) - biases
    assert "3 MTP heads: from draft token 4 on" in drafter.notes[0]
    assert len(decoded(loaded, drafter, make_structure("chain", 4), [5, 1, 4], 12, rule="greedy").tokens) == 12
    with refused(r"format MTP module: use \+drafter=mtp", SpecdecError):
        recognise(open_checkpoint(target.name), "eagle")


AT = "model.layers.2."
# The weights after a change, and the sentence.
REFUSED = [
    (lambda w: {}, r"no MTP weights that are read: there is none of mtp\.fc\.weight, .* has saved lacks them"),
    (
        lambda w: {"model.mtp.layers.0.eh_proj.weight": torch.ones(2)},
        r"it has model\.mtp\.layers\.0\.eh_proj\.weight, a layout that is not read",
    ),
    (
        lambda w: {name: weight for name, weight in w.items() if "experts.3.up" not in name},
        r"lacks model\.layers\.2\.mlp\.experts\.3\.up_proj",
    ),
    (lambda w: w | {AT + "mlp.extra": torch.ones(2)}, r"has model\.layers\.2\.mlp\.extra too many"),
    (
        lambda w: w | {AT + "eh_proj.weight_scale_inv": torch.ones(1, 1)},
        r"quantised MTP weights \(model\.layers\.2\.eh_proj\.weight_scale_inv\)",
    ),
    (lambda w: w | {AT + "eh_proj.weight": torch.ones(16, 32)}, "made for a target of width 16, and this one has 32"),
    (
        lambda w: w | {AT + "shared_head.head.weight": torch.ones(7, 32)},
        r"shared_head\.head\.weight of shape \[7, 32\] in place of \[61, 32\]",
    ),
]


@pytest.fixture
def drafter_of(sampling, group_values, tmp_path):
    def build(weights, config=None):
        save_file({"a": torch.ones(1)} | weights, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config or {}))
        target = Causal(mtp_model("glm4_moe"), sampling(temperature=0.0))
        return drafters.build(group_values("drafter", "mtp", model=str(tmp_path)), target=target)

    return build


def test_what_does_not_fit_is_refused(drafter_of):
    for change, sentence in REFUSED:
        with refused(sentence, SpecdecError):
            drafter_of(change(mtp_weights(mtp_model("glm4_moe"), "deepseek")))


def test_names_and_copies_change_nothing_and_the_order_of_the_halves_does(drafter_of):
    weights = mtp_weights(mtp_model("glm4_moe"), "deepseek")
    copies = {AT + "embed_tokens.weight": torch.ones(61, 32), AT + "shared_head.head.weight": torch.ones(61, 32)}
    halves = weights[AT + "eh_proj.weight"].chunk(2, 1)
    turned, laws = weights | {AT + "eh_proj.weight": torch.cat(halves[::-1], 1)}, []
    apart = mtp_weights(mtp_model("glm4_moe"), "speculators")  # the same numbers, as that library writes them
    for each in (weights, weights | copies, apart, turned):
        drafter = drafter_of(each, {"speculators_model_type": "mtp"} if each is apart else None)
        drafter.start(TextStart([5, 1, 4], 50), features_of(mtp_model("glm4_moe"), [5, 1], ()))
        laws.append(drafter.read().draft(1).first)
    assert torch.equal(laws[0], laws[1]) and torch.equal(laws[0], laws[2]) and not torch.allclose(laws[0], laws[3])


def test_relatives_and_targets_without_such_a_checkpoint_are_refused(
    table, random_law, sampling, group_values, tiny_model, tmp_path
):
    save_file({"pre_projection.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "gemma4_assistant"}')
    with refused("of the format assistant over shared keys, which is not read: ", SpecdecError):
        recognise(open_checkpoint(str(tmp_path)), "eagle")
    values = group_values("drafter", "mtp")
    with refused("the target has no network; use target=causal"):
        drafters.build(values, target=table(random_law(5, 0)))
    for name, sentence in (
        ("some/model.gguf", r"drafter\.model=null: MTP weights of a GGUF file"),
        ("nowhere/at/all", "does not exist"),
    ):
        with refused(sentence, SpecdecError):
            drafters.build(values, target=Causal(tiny_model("llama"), sampling(), name=name))
