"""Published EAGLE checkpoints draft what the equations draft, over rounds with rejections; others are refused.

A file of each format is made on the spot, tiny and random; the equations read the same tensors apart from any reader.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from fixtures.drafting import begun
from fixtures.refusals import refused
from fixtures.slow_eagle import SlowBlock, SlowEagle, features_of, random_rounds
from safetensors.torch import save_file

from specdec.drafters.base import drafters
from specdec.eagle.eagle_config import RopeScaling
from specdec.errors import ModelLoadError, SpecdecError
from specdec.published.checkpoint_files import open_checkpoint
from specdec.published.recognise import recognise
from specdec.targets.causal import Causal

H, HEADS, KV_HEADS, INNER, V, DEPTH = 16, 4, 2, 24, 40, 8
IDS = [0, 2, 3, 7, 11, 12, 19, 20, 28, 31, 33, 39]  # tokens that can be drafted
DRAFTED = len(IDS)


@pytest.fixture(scope="module")
def target(tiny_llama, sampling):
    return Causal(tiny_llama(V, context=256, layers=DEPTH), sampling(temperature=0.0))


def weights_of(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * (0.5 if len(shape) > 1 else 0.3) + (len(shape) == 1)
        for name, shape in shapes.items()
    }


def layer(number, inputs, head_dim, *norms):
    at, shapes = f"layers.{number}.", {}
    for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        shapes[f"{at}self_attn.{name}_proj.weight"] = (rows * head_dim, inputs)
    shapes[at + "self_attn.o_proj.weight"] = (H, HEADS * head_dim)
    shapes |= {at + f"mlp.{name}_proj.weight": (INNER, H) for name in ("gate", "up")}
    shapes[at + "mlp.down_proj.weight"] = (H, INNER)
    return shapes | {at + f"{name}.weight": (H,) for name in (*norms, "post_attention_layernorm")}


DECODER = dict(hidden_size=H, intermediate_size=INNER, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS)
DECODER |= dict(num_hidden_layers=1, vocab_size=V, rms_norm_eps=1e-5, hidden_act="silu")
VARIANT = dict(norm_before_residual=True, norm_before_fc=True, fc_norm=False, norm_output=True)
PLAIN = dict.fromkeys(VARIANT, False)
FACTS = dict(heads=HEADS, kv_heads=KV_HEADS, boundaries=[2, 4, 5], target_hidden=H, rope_theta=10000.0)
FACTS |= dict(rope_scaling=None, qk_norm=False, **PLAIN)


def made(form, *, features=3, head_dim=4, draft=DRAFTED, layers=1, more=None, **facts):
    if form == "dflash":
        shapes = {"fc.weight": (H, features * H), "norm.weight": (H,), "hidden_norm.weight": (H,)}
        for number in range(layers):
            norms = {f"layers.{number}.self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
            shapes |= layer(number, H, head_dim, "input_layernorm") | norms
        facts = dict(qk_norm=True, block=4, mask_token=39, shifted=False) | facts
    elif form == "eagle1":
        shapes = {"fc.weight": (H, 2 * H)} | layer(0, H, head_dim)
        facts = dict(boundaries=[], features=1) | facts
    else:
        shapes = {"fc.weight": (H, features * H), "norm.weight": (H,), "lm_head.weight": (draft, H)}
        shapes |= layer(0, 2 * H, head_dim, "hidden_norm", "input_layernorm")
        for number in range(1, layers):
            shapes |= layer(number, H, head_dim, "input_layernorm")
    weights = weights_of(shapes | (more or {}))
    if "lm_head.weight" in weights and draft < V:
        weights["d2t"] = torch.tensor(IDS) - torch.arange(len(IDS))
        weights["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, torch.tensor(IDS), True)
    own = dict(form=form, features=features, head_dim=head_dim, layers=layers)
    return weights, SimpleNamespace(**(FACTS | own | facts))


def speculators(kind, **config):
    verifier = {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]}
    about = {"algorithm": kind, "default_proposal_method": "greedy", "verifier": verifier}
    decoder = {**DECODER, **config.pop("decoder", {})}
    return dict(speculators_model_type=kind, transformer_layer_config=decoder, speculators_config=about, **config)


EAGLE3, NUMBERS = dict(DECODER, draft_vocab_size=DRAFTED), "eagle_aux_hidden_state_layer_ids"
EMBEDDING = {"embed_tokens.weight": (V, H)}
PROJECTIONS = (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
BIASES = {f"layers.0.self_attn.{name}_proj.bias": (rows * 4,) for name, rows in PROJECTIONS}
DFLASH = dict(DECODER, num_hidden_layers=2, num_target_layers=DEPTH, rope_theta=500.0)
MASKED = dict(mask_token_id=39, block_size=4)
NAMED = dict(MASKED, target_layer_ids=[1, 4])
REDUCED = dict(draft_vocab_size=DRAFTED, aux_hidden_state_layer_ids=[2, 5], decoder=DFLASH)
RANK, OUTPUT = 3, {"lm_head.weight": (DRAFTED, H)}
BLOCK_FACTS = dict(form="dflash", features=2, boundaries=[2, 5], layers=2, rope_theta=500.0)
CONFIDENCE = {"confidence_head.proj.weight": (1, H + RANK), "confidence_head.proj.bias": (1,)}
MARKOV = {
    kind: {
        f"markov_head.{name}": shape
        for name, shape in {"markov_w1.weight": (V, RANK), "markov_w2.weight": (drafted, RANK), **more}.items()
    }
    for kind, drafted, more in (
        ("vanilla", V, {}),
        ("gated", DRAFTED, {"gate_proj.weight": (RANK, H + RANK), "gate_proj.bias": (RANK,)}),
        ("rnn", V, {"joint_proj.weight": (3 * RANK, 2 * RANK + H), "joint_proj.bias": (3 * RANK,)}),
    )
}
# Format -> (config, form and facts of the network, beginnings of names in the file).
FORMATS = {
    "eagle1": (dict(DECODER, bias=False, rope_theta=500.0), dict(form="eagle1", rope_theta=500.0), {}),
    "eagle1_biases": (dict(DECODER), dict(form="eagle1", more=BIASES | {"fc.bias": (H,)}), {}),
    "eagle3_midlayer": (EAGLE3, dict(form="eagle3"), {"layers.0.": "midlayer."}),
    "eagle3_layers": (
        dict(EAGLE3, draft_vocab_size=V, eagle_aux_hidden_state_layer_ids=[2, 3, 5, 6, 7], head_dim=8),
        dict(form="eagle3", features=5, boundaries=[2, 3, 5, 6, 7], draft=V, head_dim=8),
        {},
    ),
    "speculators_eagle": (
        speculators("eagle", fusion_bias=False, layernorms=False),
        dict(form="eagle1"),
        {"fc.": "fusion_fc.", "layers.0.": "transformer."},
    ),
    "speculators_eagle3": (
        speculators("eagle3", draft_vocab_size=DRAFTED, **VARIANT, decoder=dict(num_hidden_layers=2)),
        dict(form="eagle3", layers=2, more=EMBEDDING | {"input_norm.weight": (3 * H,)}, **VARIANT),
        {},
    ),
    "p_eagle": (
        speculators("peagle", draft_vocab_size=DRAFTED, mask_token_id=38, decoder=dict(num_hidden_layers=2)),
        dict(form="eagle3", layers=2, mask_token=38, more=EMBEDDING | {"mask_hidden": (3 * H,)}),
        {},
    ),
    "dflash": (dict(DFLASH, dflash_config=NAMED), dict(BLOCK_FACTS, head_dim=8), {}),
    "speculators_dflash": (speculators("dflash", **MASKED, **REDUCED), dict(BLOCK_FACTS, more=EMBEDDING | OUTPUT), {}),
    "dspark": (  # as DeepSpec writes it, with copies of the target's embeddings and output layer
        dict(DFLASH, **NAMED, markov_rank=RANK),
        dict(BLOCK_FACTS, draft=V, shifted=True, more=EMBEDDING | {"lm_head.weight": (V, H)} | MARKOV["vanilla"]),
        {},
    ),
    "speculators_dspark": (
        speculators("dspark", **MASKED, **REDUCED, markov_rank=RANK, markov_head_type="gated"),
        dict(BLOCK_FACTS, shifted=True, more=EMBEDDING | OUTPUT | MARKOV["gated"] | CONFIDENCE),
        {},
    ),
    "dspark_rnn": (  # the root's own slot is not used
        dict(DFLASH, sample_from_anchor=False, markov_head_type="rnn", dflash_config=NAMED),
        dict(BLOCK_FACTS, more=MARKOV["rnn"]),
        {},
    ),
}


EAGLE1_WEIGHTS, EAGLE3_WEIGHTS = made("eagle1")[0], made("eagle3")[0]


def without(weights, *names):
    return {name: value for name, value in weights.items() if name not in names}


@pytest.fixture
def drafter_of(tmp_path, target, group_values):
    """`drafter_of(config, weights, renamed, layers=None)` writes a checkpoint and builds a drafter over it."""

    def write(config, weights, renamed=None, **changes):
        named = {}
        for name, value in weights.items():
            old = next((old for old in renamed or {} if name.startswith(old)), "")
            named[(renamed or {}).get(old, "") + name[len(old) :]] = value.contiguous()
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(named, tmp_path / "model.safetensors")
        return drafters.build(group_values("drafter", "eagle", model=str(tmp_path), **changes), target=target)

    return write


@pytest.mark.parametrize("name", FORMATS)
def test_drafts_are_those_of_the_equations(drafter_of, target, make_structure, name):
    config, network, renamed = FORMATS[name]
    weights, facts = made(**network)
    drafter = drafter_of(config, weights, renamed)
    slow = (SlowBlock if facts.form == "dflash" else SlowEagle)(
        weights, facts, target.hidden.embedding, target.hidden.output_layer
    )
    compared, tokens = 0, set()
    for text, drafts in random_rounds(drafter, target, make_structure("chain", 2), 2, 3):
        rows = slow.text_rows(text, features_of(target.model, text, facts.boundaries))
        for length, draft in drafts:
            path = []
            for token in draft.tokens.tolist():
                path.append(slow.target_token(int(slow.logits_after(rows[: length - 1], path).argmax())))
                assert token == path[-1], f"round {compared} at {length} tokens"
            tokens |= set(path)
            compared += len(path) == 2
    assert compared == 6 and len(tokens) > 1


def test_flags_that_no_format_above_sets_are_values_of_the_network(drafter_of):
    """`tests/drafters/test_eagle.py` has the equations of each."""
    turns = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
    linear = RopeScaling(kind="linear", factor=4.0)
    llama3 = RopeScaling(kind="llama3", factor=8.0, low=1.0, high=4.0, original=16)
    output_bias = BIASES | {"layers.0.self_attn.o_proj.bias": (H,)}
    for config, more, name, value in (
        (dict(rope_parameters={"rope_theta": 50.0, "rope_type": "default"}), {}, "rope_theta", 50.0),
        (dict(rope_scaling={"type": "linear", "factor": 4.0}), {}, "rope_scaling", linear),
        (dict(rope_scaling=turns | {"rope_type": "llama3"}), {}, "rope_scaling", llama3),
        (dict(rms_norm_eps=0.1), {}, "rms_eps", 0.1),
        (dict(eagle_config={"fc_norm": True}), {f"fc_norm.{i}.weight": (H,) for i in range(3)}, "fc_norm", True),
        ({}, output_bias, "attention_bias", "qkvo"),
    ):
        drafter = drafter_of(EAGLE3 | config, EAGLE3_WEIGHTS | weights_of(more, 1))
        assert getattr(drafter.network.config, name) == value


def test_what_a_file_may_leave_out_or_have_besides(drafter_of):
    p_eagle, masked = FORMATS["p_eagle"][0], made(**FORMATS["p_eagle"][1])[0]
    state = masked["mask_hidden"].view(1, 1, 3 * H)
    based = dict(EAGLE3, rope_theta=10000.0)
    for (config, weights), other in (
        ((DECODER, EAGLE1_WEIGHTS), (DECODER, EAGLE1_WEIGHTS | weights_of(EMBEDDING))),
        ((based, EAGLE3_WEIGHTS), (EAGLE3, without(EAGLE3_WEIGHTS, "t2d"))),
        ((based, EAGLE3_WEIGHTS), (without(based, "draft_vocab_size"), EAGLE3_WEIGHTS)),
        ((p_eagle, masked), (p_eagle, masked | {"mask_hidden": state})),
        ((p_eagle, masked), (p_eagle, masked | {"mask_hidden": state[0]})),
    ):
        one, same = drafter_of(config, weights).network, drafter_of(*other).network
        assert one.config == same.config
        torch.testing.assert_close(one.state_dict(), same.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["plain", "eagle_config", "speculators"])
def test_both_conventions_of_layer_numbers_are_told_apart(drafter_of, kind):
    for numbers, inputs in ((None, [2, 4, 5]), ([1, 3, 4], [2, 4, 5]), ([2, 4, 5], [2, 4, 5]), ([1, 2, 6], [2, 3, 7])):
        said = {} if numbers is None else {NUMBERS: numbers}
        config = {"plain": EAGLE3 | said, "eagle_config": EAGLE3 | {"eagle_config": said}}.get(kind)
        config = config or speculators("eagle3", draft_vocab_size=DRAFTED, **PLAIN, **said)
        described = drafter_of(config, EAGLE3_WEIGHTS).describe()
        assert described["network"]["boundaries"] == inputs
        assert described["format"] == ("speculators eagle3" if kind == "speculators" else "EAGLE-3")
        assert described["made_for"] == ("some/target" if kind == "speculators" else "") and described["sha256"]


def test_a_convention_that_cannot_be_told_is_asked_for(drafter_of):
    weights, config = EAGLE3_WEIGHTS, EAGLE3 | {NUMBERS: [3, 4, 6]}
    told = r"drafter\.layers=\[3,4,6\] for inputs, or drafter\.layers=\[4,5,7\] for outputs"
    with pytest.raises(ModelLoadError, match=told):
        drafter_of(config, weights)
    assert drafter_of(config, weights, layers=[4, 5, 7]).describe()["network"]["boundaries"] == [4, 5, 7]
    counted = speculators("eagle3", draft_vocab_size=DRAFTED, **PLAIN, eagle_aux_hidden_state_layer_ids=[3, 4, 6])
    assert drafter_of(counted, weights).describe()["network"]["boundaries"] == [3, 4, 6]


MASKED_WEIGHTS, PEAGLE = EAGLE3_WEIGHTS | {"mask_hidden": torch.ones(1, 48)}, speculators("peagle", draft_vocab_size=12)
REFUSED = [
    (dict(DECODER, bias=True), EAGLE1_WEIGHTS, "lacks fc.bias"),
    (dict(DECODER, hidden_size=12), EAGLE1_WEIGHTS, "target of width 12, and this one has 16"),
    (dict(DECODER, vocab_size=41), EAGLE1_WEIGHTS, "vocabulary 41, and this one has 40"),
    (without(DECODER, "num_attention_heads"), EAGLE1_WEIGHTS, "no num_attention_heads in its config"),
    (dict(DECODER, num_attention_heads=3), EAGLE1_WEIGHTS, "3 heads do not divide"),
    (dict(DECODER, hidden_act="gelu"), EAGLE1_WEIGHTS, "hidden_act='gelu'"),
    (dict(DECODER, rope_scaling={"type": "yarn"}), EAGLE1_WEIGHTS, "rotary scaling 'yarn'"),
    (dict(DECODER, num_hidden_layers=2), EAGLE1_WEIGHTS, "an EAGLE-1 network has one"),
    (EAGLE3, without(EAGLE3_WEIGHTS, "d2t"), "lacks d2t"),
    (EAGLE3, EAGLE3_WEIGHTS | {"d2t": torch.tensor(IDS)}, "gives no ascending ids below 40"),
    (EAGLE3, EAGLE3_WEIGHTS | {"t2d": torch.ones(V, dtype=torch.bool)}, "d2t and t2d that name different tokens"),
    (dict(EAGLE3, draft_vocab_size=13), EAGLE3_WEIGHTS, r"\[12\] in place of \[13\]"),
    (EAGLE3, EAGLE3_WEIGHTS | {"fc.weight": torch.ones(H, 40)}, "no features of width 16"),
    (EAGLE3, EAGLE3_WEIGHTS | {"fc.weight": torch.ones(H, 80)}, "give drafter.layers"),
    (dict(EAGLE3, **{NUMBERS: [2, 4]}), EAGLE3_WEIGHTS, r"2 layers \[2, 4\], and its fc reads 3"),
    (dict(EAGLE3, **{NUMBERS: [1, 3, 7]}), EAGLE3_WEIGHTS, "boundary 8 is the output of the target's last block"),
    (dict(EAGLE3, target_hidden_size=16), EAGLE3_WEIGHTS, "lacks embed_tokens.weight"),
    (dict(EAGLE3, eagle_config={"use_aux_hidden_state": False}), EAGLE3_WEIGHTS, "use_aux_hidden_state"),
    (dict(EAGLE3, norm_output=True), EAGLE3_WEIGHTS, "until September 2026"),
    (speculators("eagle3", draft_vocab_size=12), EAGLE3_WEIGHTS, "no norm_before_residual"),
    (speculators("eagle", layernorms=True), EAGLE1_WEIGHTS, "layernorms=true"),
    (EAGLE3, MASKED_WEIGHTS, "EAGLE-3 with mask tokens, which is not read"),
    (dict(PEAGLE, mask_token_id=V), MASKED_WEIGHTS, "mask_token_id=40, which is no token of 40"),
    (PEAGLE, MASKED_WEIGHTS, "no mask_token_id in its config"),
    ({}, {"mtp.fc.weight": torch.ones(H, 32)}, r"MTP module: use \+drafter=mtp"),
    (EAGLE3, EAGLE3_WEIGHTS | {"layers.0.self_attn.kv_a_proj_with_mqa.weight": torch.ones(4, H)}, "latent attention"),
    (speculators("independent"), {"a": torch.ones(1)}, "another type, which is not read"),
]
BLOCK = dict(DFLASH, block_size=4, mask_token_id=39)
BLOCK_REFUSED = [
    (dict(BLOCK, num_target_layers=9), "number of layers 9, and this one has 8"),
    (dict(DFLASH, mask_token_id=39), "block_size=None"),
    (dict(BLOCK, mask_token_id=V), "a token below 40"),
    (without(BLOCK, "rope_theta"), "no rope_theta in its config.json"),
    (dict(BLOCK, dflash_config={"causal": True}), "sets causal, which is not read"),
    (dict(BLOCK, sample_from_anchor="yes"), "shifted"),
    (dict(BLOCK, layer_types=["sliding_attention", "full_attention"]), "has layers of sliding attention"),
    (dict(BLOCK, target_layer_ids=[1, 2, 3]), r"names the 3 layers \[2, 3, 4\]"),
    (dict(BLOCK, target_layer_ids=[1, 7]), "output of the target's last block"),
]
BLOCK_WEIGHTS = made(**FORMATS["dflash"][1])[0]
REFUSED += [(config, BLOCK_WEIGHTS, told) for config, told in BLOCK_REFUSED]
DSPARK, DSPARK_WEIGHTS = FORMATS["dspark"][0], made(**FORMATS["dspark"][1])[0]
W2 = "markov_head.markov_w2.weight"
REFUSED += [
    (DSPARK, without(DSPARK_WEIGHTS, W2), f"lacks {W2}: get the checkpoint"),
    (dict(DSPARK, markov_rank=5), DSPARK_WEIGHTS, r"\[40, 3\] in place of \[40, 5\]"),
    (dict(DSPARK, markov_head_type="rnn"), DSPARK_WEIGHTS, "lacks markov_head.joint_proj.w"),
    (dict(DSPARK, markov_head_type="gru"), DSPARK_WEIGHTS, "vanilla, gated or rnn"),
    (dict(DSPARK, hidden_size=12), DSPARK_WEIGHTS, "and its fc reads another number"),
    (dict(DSPARK, projector_type="domino"), DSPARK_WEIGHTS, "sets projector_type"),
]


def test_what_does_not_fit_is_refused(drafter_of):
    for config, weights, sentence in REFUSED:
        with refused(sentence, SpecdecError):
            drafter_of(config, weights)


def test_a_block_ends_the_draft_and_is_always_whole(drafter_of, target, make_structure):
    """With fewer slots it would be another law: they see each other. So the first tokens of all drafts are the same."""
    drafter = drafter_of(FORMATS["dflash"][0], BLOCK_WEIGHTS)
    assert drafter.capabilities.deepest == 3 and drafter.capabilities.replay == "start"
    begun(drafter, target, [5, 1, 4])
    drafts = [drafter.draft(make_structure("chain", gamma)).tokens.tolist() for gamma in (1, 2, 3, 6)]
    assert [len(draft) for draft in drafts] == [1, 2, 3, 3]
    assert all(draft == drafts[3][: len(draft)] for draft in drafts)
    tree = drafter.draft(make_structure("tree", 3))
    assert tree.tokens[0] == drafts[3][0] and tree.tree.depth == 3


def test_layers_of_dflash_that_its_config_does_not_name(drafter_of):
    for layers, boundaries in ((None, [2, 6]), ([1, 3], [1, 3])):
        assert drafter_of(BLOCK, BLOCK_WEIGHTS, layers=layers).describe()["network"]["boundaries"] == boundaries


def test_layers_that_do_not_fit_are_refused_and_another_drafter_is_named(drafter_of, tmp_path):
    with pytest.raises(ModelLoadError, match="set drafter.layers=null"):
        drafter_of(DECODER, EAGLE1_WEIGHTS, layers=[2, 4, 5])
    with pytest.raises(ModelLoadError, match=r"drafter.layers=\[2, 4\]: .* reads 3 layers"):
        drafter_of(EAGLE3, EAGLE3_WEIGHTS, layers=[2, 4])
    with pytest.raises(ModelLoadError, match=r"use \+drafter=eagle"):
        recognise(open_checkpoint(str(tmp_path)), "medusa")
