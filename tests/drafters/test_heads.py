"""Drafters over heads: they draft what the heads say of every path, from the states that the target really had."""

from functools import cache
from itertools import product

import pytest
import torch
from fixtures.drafting import assert_drafted_from, assert_likeliest_paths, begun, decoded, expansion, tree
from fixtures.slow_eagle import random_rounds
from fixtures.small_parts import composed
from fixtures.two_tiers import pairwise

from specdec.certification.greedy_identity import PROMPT, Scattered, own_greedy
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.heads import HeadsDrafter
from specdec.drafters.blockwise import BlockwiseHeads
from specdec.drafters.grounded import Grounded
from specdec.drafters.medusa import Medusa
from specdec.errors import UsageError
from specdec.plan.plan import plan
from specdec.published.network_files import TRAINED_HEADS
from specdec.session.parts import open_parts
from specdec.structures.base import structures
from specdec.targets.causal import Causal

KINDS = {
    "medusa": (Medusa, {}),
    "medusa_prefix": (Medusa, {"prefix": True, "output": "own", "layers": 2, "width": 24}),
    "grounded": (Grounded, {"grounded": True}),
    "grounded_embeddings": (Grounded, {"grounded": True, "state": "embeddings"}),
    "attention": (Grounded, {"grounded": True, "mixer": "attention"}),
    "gru": (Grounded, {"grounded": True, "mixer": "gru", "prefix": True}),
}
# Siblings at every level, in an order in which levels are not apart.
BUSHY = [-1, 0, 0, -1, 3, 1, 3, 5, -1, 4, 9, 7]


@pytest.fixture
def target_at(tiny_model, sampling):
    def make(temperature: float = 0.0, evaluation: str = "packed", architecture: str = "llama", **how) -> Causal:
        target = Causal(tiny_model(architecture), sampling(temperature=temperature, **how))
        target.evaluation = evaluation
        return target

    return make


def taught(drafter: HeadsDrafter, target: Causal, path: list[int], prompt=PROMPT):
    """The logits after `path` behind the prompt, as training computes them: teacher-forced over the whole text."""
    heads, k = drafter.heads, len(path) + 1
    text = torch.tensor([[*prompt, *path]])
    offset = target.hidden.layers if heads.config.state == "embeddings" else heads.config.offset
    states, _ = target.hidden.sequence(text, offset)
    features = heads.features(states.clone(), text)[k - 1]
    return heads.logits(k, features[0, len(prompt) - 2])  # h_t is before the root


# Every kind where siblings are at every level, and other shapes with heads that read drafted tokens or do not.
RANKED = [("bushy", kind) for kind in KINDS] + [("chain", "medusa"), ("rows", "gru"), ("expansion", "medusa")]


@pytest.mark.parametrize(("shape", "kind"), RANKED)
def test_a_node_of_rank_j_is_the_next_best_choice_of_its_depths_head(
    target_at, random_heads, make_structure, kind, shape
):
    cls, make = KINDS[kind]
    target = target_at()
    drafter = begun(cls(random_heads(target, **make), target), target, PROMPT)
    own = {"bushy": tree(*BUSHY), "expansion": expansion(4, 3, 2)}
    structure = own.get(shape) or make_structure(shape, 5)
    draft = drafter.draft(structure)
    assert draft.tree == structure.tree and draft.q is None
    assert_drafted_from(draft, lambda node, above: taught(drafter, target, above))
    if cls is Medusa:  # the Cartesian product
        table = {(depth, rank): set() for depth in range(6) for rank in range(4)}
        for node, depth in enumerate(draft.tree.depths):
            rank = draft.tree.children[draft.tree.parents[node] + 1].index(node)
            table[depth, rank].add(int(draft.tokens[node]))
        assert max(map(len, table.values())) == 1
    ranks = [source.rank for source in draft.source]
    if shape == "rows":
        first = [draft.tree.path(node)[0] for node in range(len(draft))]
        assert ranks == [draft.tree.children[0].index(node) for node in first]
    elif shape == "bushy":
        assert ranks == [0, 0, 1, 1, 0, 0, 1, 0, 2, 0, 0, 0]


DRAWN = [
    *(("tree", "without_replacement", kind) for kind in KINDS),
    *(("chain", "independent", "medusa"), ("rows", "without_replacement", "gru"), ("tree", "independent", "gru")),
]


@pytest.mark.parametrize(("shape", "siblings", "kind"), DRAWN)
def test_q_is_the_heads_law_as_the_target_standardises(target_at, random_heads, make_structure, kind, siblings, shape):
    cls, make = KINDS[kind]
    target = target_at(0.7, top_k=9)
    heads = random_heads(target, **make)
    drafter = cls(heads, target, siblings=siblings)
    for text, drafts in random_rounds(drafter, target, make_structure(shape, 3), 1, 3):
        for length, draft in drafts:
            assert_drafted_from(
                draft,
                lambda node, above, text=text[:length]: taught(drafter, target, above, text),
                target.sampling,
                independent=siblings == "independent",
            )


@pytest.mark.parametrize(("kind", "temperature"), [("medusa", 1.0), ("grounded", 0.0), ("gru", 0.0)])
def test_a_dynamic_tree_holds_the_most_confident_paths(target_at, random_heads, group_values, kind, temperature):
    cls, make = KINDS[kind]
    target = target_at(temperature)
    drafter = begun(cls(random_heads(target, **make), target), target, PROMPT)
    shape = dict(nodes=9, depth=3, branching=4, beam=64)
    draft = drafter.draft(structures.build(group_values("structure", "dynamic", **shape)))
    assert len(draft) == 9
    assert_likeliest_paths(draft, lambda path: taught(drafter, target, list(path)), 3, 4)


@pytest.mark.parametrize("kind", ["medusa", "grounded", "attention"])
def test_heads_below_the_structure_are_not_computed(target_at, random_heads, make_structure, kind):
    cls, make = KINDS[kind]
    target = target_at(1.0)
    heads = random_heads(target, **make)
    for head in heads.heads[2:]:
        for weight in head.parameters():
            weight.fill_(torch.nan)
    drafter = begun(cls(heads, target), target, PROMPT)
    assert torch.isfinite(drafter.draft(make_structure("tree", 2)).q).all()
    assert torch.isnan(drafter.draft(make_structure("tree", 3)).q).any()


ARCHITECTURES = ("gemma3", "gpt2", "llama", "mistral_window", "opt")
PLACES = ("last", "first_below", "embeddings")
WAYS = ("packed", "rows")


class Listening(Scattered):
    capabilities = DrafterCapabilities(fills=frozenset({"tree"}), reads_states=True)

    def __init__(self, text, target, offset):
        super().__init__(text)
        target.hidden.keep(offset)
        self.told = []

    def start(self, text, states=None):
        self.told.append(states)

    def commit(self, tokens, states=None):
        super().commit(tokens)
        self.told.append(states)


PLAIN = sorted(pairwise(list(product(ARCHITECTURES, PLACES, WAYS)), [(0, 2), (1, 2)]))


@pytest.mark.parametrize(("architecture", "place", "evaluation"), PLAIN)
def test_what_a_drafter_reads_is_what_a_plain_pass_computes(target_at, tiny_model, architecture, place, evaluation):
    """Round by round, the states of the text from its first token on: prefill, then root and accepted nodes."""
    target, model = target_at(0.0, evaluation, architecture), tiny_model(architecture)
    offset = {"last": 0, "first_below": 1, "embeddings": target.hidden.layers}[place]
    own = own_greedy(architecture)[:14]
    drafter = Listening(own, target, offset)
    generation = decoded(target, drafter, tree(*BUSHY), PROMPT, 14, rule="greedy")
    assert generation.tokens == own and len({row.accepted for row in generation.rounds}) > 2
    text = torch.tensor([[*PROMPT, *own]])
    plain = model(input_ids=text, use_cache=False, output_hidden_states=True).hidden_states[-1 - offset][0]
    assert [len(states) for states in drafter.told] == [
        len(PROMPT) - 1,
        *(1 + len(row.acceptance.path) for row in generation.rounds),
    ]
    told = torch.cat(drafter.told)[: len(plain)]
    assert (told - plain[: len(told)]).abs().max() < 1e-10 and len(told) >= len(plain) - 1
    if place == "last":  # what the output head reads
        logits = told @ model.get_output_embeddings().weight.T
        assert (logits.argmax(-1)[len(PROMPT) - 1 :] == torch.tensor(own)[: len(told) - len(PROMPT) + 1]).all()


@pytest.fixture
def file_of(random_heads, tmp_path):
    @cache
    def save(target, **make) -> str:
        path = tmp_path / f"{'-'.join(make)}.safetensors"
        TRAINED_HEADS.write(random_heads(target, **make), path, target.hidden.identity, {})
        return str(path)

    return save


def test_heads_of_the_other_kind_are_named(target_at, file_of, group_values):
    for name, grounded, sentence in (
        ("medusa", True, r"these heads are grounded; use \+drafter=grounded"),
        ("blockwise", True, r"these heads are grounded; use \+drafter=grounded"),
        ("grounded", False, r"these heads are not grounded; use \+drafter=medusa"),
    ):
        target = target_at()
        values = group_values("drafter", name, model=file_of(target, grounded=grounded))
        with pytest.raises(UsageError, match=rf"drafter\.model=.*{sentence}"):
            drafters.build(values, target=target)


def test_an_installation_without_pocket_networks_says_how_to_make_some(target_at, group_values, monkeypatch, tmp_path):
    monkeypatch.setattr("specdec.published.network_files.shipped_file", lambda *_: tmp_path / "absent.safetensors")
    for name, recipe in (("medusa", "heads="), ("eagle", "eagle=pocket")):
        with pytest.raises(UsageError, match=rf"drafter\.model=pocket.*specdec\.train \+{recipe}"):
            drafters.build(group_values("drafter", name), target=target_at())


def test_operations_of_a_drafted_token(target_at, random_heads):
    for make, weights in (
        ({}, 32 * 32 + 32),
        ({"grounded": True}, (1 + 3) * 32 * 32 + 32),  # three tokens on average
        ({"grounded": True, "mixer": "gru"}, 3 * (6 * 32 * 32 + 6 * 32)),
        # (h_t, one vector) and the four matrices of attention over four places on average
        ({"grounded": True, "mixer": "attention"}, 2 * 32 * 32 + 32 + 4 * 4 * 32 * 32),
        ({"prefix": True}, 32 * 32 + 32),
    ):
        target = target_at()
        cls = Grounded if "grounded" in make else Medusa
        assert cls(random_heads(target, **make), target).flops_per_token == 2 * (weights + 61 * 32)


def test_points_of_the_curve_beyond_the_heads_or_a_given_tree_are_left_out_and_deeper_trees_refused(
    file_of, table, group_values
):
    """Two points of a tree would be the same draft under two names, and no round could be told from another."""
    heads = file_of(table(group_values("target", "table")["law"]))

    def parts_of(*overrides: str):
        return open_parts(plan(composed("+debug=tiny", "+drafter=medusa", f"drafter.model={heads}", *overrides)))

    parts = parts_of("structure=chain", "structure.gamma=4", "measurement.gammas=[1,5,6,8]")
    assert [arm.gamma for arm in parts.chosen.arms] == [1, 4, 5] and parts.chosen.left_out == (6, 8)
    assert parts.primary.gamma == 4
    parts = parts_of("structure=tree", "structure.parents=[-1,-1,0]", "measurement.gammas=[1,3,4]")
    assert [(arm.gamma, arm.structure.gamma) for arm in parts.chosen.arms] == [(1, 1), (2, 2)]
    assert parts.chosen.left_out == (3, 4)
    with pytest.raises(UsageError, match="structure=tree: it is 6 deep, and drafter medusa drafts 5 levels at most"):
        parts_of("structure=tree", "structure.parents=[-1,0,1,2,3,4]")


def test_blockwise_drafts_medusas_chain(target_at, random_heads, make_structure):
    target = target_at()
    heads = random_heads(target)
    chain = make_structure("chain", 4)
    one, other = (begun(cls(heads, target), target, PROMPT).draft(chain) for cls in (BlockwiseHeads, Medusa))
    assert torch.equal(one.tokens, other.tokens) and one.tree == other.tree
    assert {source.strategy for source in one.source} == {"blockwise"}
