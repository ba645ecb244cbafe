"""First differences, and which of them rounding explains; likelihoods by multiplication; answers as they are written;
the experts of a run's verifications, against plain passes that know no cache, hook or tree."""

import json
import math
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import torch
from fixtures.commands import run_in
from fixtures.decoding import decode as written_by
from fixtures.drafting import rows
from fixtures.resumed_runs import config_of, decode, found
from fixtures.small_parts import read_group_values
from fixtures.tiny_mixtures import CHOSEN, EXPERTS, LAYERS, routed, tiny_mixture

from specdec.analysis.read.runs import EXPERTS as COLUMNS
from specdec.analysis.read.runs import open_folder
from specdec.session.rescoring import answers, expert_reads, explain, log_likelihood
from specdec.targets.causal import Causal

PROMPT = [7, 3, 60, 7, 21, 4, 4, 33, 7, 3]
SHAPE = (
    "{model_type: mixtral, seed: 0, hidden_size: 32, intermediate_size: 24, num_hidden_layers: 1, vocab_size: 61, "
    "num_attention_heads: 4, num_key_value_heads: 2, num_local_experts: 6, num_experts_per_tok: 2, "
    "max_position_embeddings: 256, eos_token_id: null, bos_token_id: null, pad_token_id: null}"
)


class Scored:
    """A target whose float32 logits and own logits are given."""

    def __init__(self, wide, narrow):
        self.wide, self.narrow = torch.tensor([wide]), torch.tensor([narrow])

    def score(self, prompt, text):
        return self.wide

    def score_as_decoded(self, prompt, text):
        return self.narrow


@pytest.mark.parametrize(
    "wide, narrow, explained",
    [
        ([2.0, 1.99, 0.0], [2.0, 2.0, 0.0], True),  # apart by 0.01, rounding 0.01
        ([2.0, 1.5, 0.0], [2.0, 1.51, 0.0], False),  # apart by 0.5, rounding 0.01
        ([2.0, 1.99, 3.0], [2.0, 2.0, 3.0], False),  # near each other, but neither is near the best
        ([2.0, 2.0, 0.0], [2.0, 2.0, 0.0], True),  # an exact tie
    ],
)
def test_a_near_tie_is_explained_and_nothing_else(wide, narrow, explained):
    found = explain(Scored(wide, narrow), ("p", 4), (9,), (7, 0, 5), (7, 1, 5))
    assert found is not None
    assert (found.position, found.baseline_token, found.token) == (1, 0, 1)
    assert found.explained is explained


def test_a_text_that_ends_early_is_never_explained():
    found = explain(Scored([1.0], [1.0]), ("p", 4), (9,), (7, 0), (7, 0, 5))
    assert found is not None and not found.explained and math.isnan(found.margin)
    assert explain(Scored([1.0], [1.0]), ("p", 4), (9,), (7, 0), (7, 0)) is None


def test_the_likelihood_of_a_text_is_the_product_of_its_chances(table, random_law):
    law = random_law(4, 1)
    text = [1, 3, 3, 0, 2]
    chances = [float(law[last, token]) for last, token in zip([2, *text[:-1]], text, strict=True)]
    for temperature in (0.0, 0.5, 1.0):  # the raw law, whatever the run's sampling
        target = table(law, temperature=temperature)
        assert log_likelihood(target, [0, 2], text) == pytest.approx(math.log(math.prod(chances)))
    assert log_likelihood(table([[0.0, 1.0], [0.5, 0.5]]), [0], [0]) == -math.inf


@pytest.mark.parametrize(
    ("output", "right"),
    [
        ("So 16 - 3 = 13, and 9 * 2 = 18.", True),
        ("#### 18", True),
        ("The answer is 18.00 dollars", True),
        ("1,018 - 1,000=18", True),
        ("18 ducks, so 19", False),
        ("It is -18", False),
        ("20-18", True),  # no sign: the last number is 18
        ("none", False),
        ("", False),
    ],
)
def test_answers_are_compared_as_numbers(output, right):
    assert answers(output, "She sells 9 eggs for 2.\n#### 18") is right
    assert not answers(output, "no number")
    assert answers("In all 1,234.50", "x #### 1234.5") and answers("-7", "#### -7") and answers(".5", "#### 0.5")


def test_a_lossy_run_is_judged_by_the_law_and_its_alpha_counts_what_its_rule_passes(tmp_path):
    """On this law typical acceptance passes every draft, of which the strict rule would pass a share min(p, q)."""
    (tmp_path / "corpus.jsonl").write_text('{"tokens": [0, 1, 2, 0, 1, 1, 2, 2, 0, 1, 0, 2]}\n')
    drafter = ("+drafter=corpus_ngram", f"drafter.corpus={tmp_path}/corpus.jsonl", "drafter.field=tokens", "seed=1")
    config = config_of(*drafter, "verifier=typical", "sampling=temperature", "measurement.null=false")
    decode(config, tmp_path / "run")
    rounds, along, quality = (
        pd.read_parquet(tmp_path / "run" / f"{name}.parquet") for name in ("rounds", "alpha", "quality")
    )
    assert rounds["offered"].sum() == rounds["accepted"].sum() > 200
    assert along["numerator"].to_list() == pytest.approx(along["denominator"].to_list(), abs=1e-3)
    assert set(quality["method"]) == {"baseline", "corpus_ngram"} and set(quality["gamma"]) == {0, 1, 2, 4}
    outputs = pd.DataFrame(found(tmp_path / "run")["generations"]).set_index(["method", "gamma", "prompt"])
    for row in quality.itertuples():
        output = outputs.loc[(row.method, row.gamma, row.prompt)]
        before = [output["prompt_token_ids"][-1], *output["generated_token_ids"]]
        chances = [config.target["law"][a][b] for a, b in zip(before, before[1:], strict=False)]
        assert row.log_likelihood == pytest.approx(math.log(math.prod(chances)))


@pytest.mark.parametrize(
    ("family", "structure", "evaluation"),
    [("mixtral", 3, "packed"), ("qwen3_moe", rows(2, 2), "packed"), ("deepseek_v3", rows(2, 2), "rows")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_experts_of_the_tokens_of_every_verification(family, structure, evaluation, sampling):
    model = tiny_mixture(family)
    target = Causal(model, sampling(temperature=0.0), evaluation=evaluation)
    written = written_by(target, read_group_values("drafter", "ngram"), structure, PROMPT, 8)
    passes, mixture = object(), target.mixture
    target.decoder.passes = passes
    lines = expert_reads(target, mixture, written, {"method": "ngram"})
    assert target.decoder.passes is passes, "what was compiled serves the next text again, and not this pass"
    distinct, text = defaultdict(list), list(PROMPT)
    for each in written.rounds:
        chosen = [set() for _ in range(LAYERS)]
        for leaf in each.tree.leaves or (-1,):
            path = [each.draft_tokens[node] for node in each.tree.path(leaf)]
            for layer, experts in enumerate(routed(model, text + path)):
                chosen[layer] |= set(experts[-len(path) - 1 :].flatten().tolist())
        distinct[1 + len(each.draft_tokens)].append([len(layer) for layer in chosen])
        text += each.committed
    assert {line["tokens"]: line["calls"] for line in lines} == {n: len(each) for n, each in distinct.items()}
    assert max(distinct) > 2, "drafts were verified"
    for line in lines:
        experts = np.array(distinct[line["tokens"]])
        assert line["experts"] == pytest.approx(experts.mean(axis=1).sum())
        bytes_read = mixture.shared_bytes + mixture.expert_bytes[0] * experts.sum(axis=1)
        of_one = mixture.shared_bytes + mixture.expert_bytes[0] * LAYERS * CHOSEN
        assert line["reads"] == pytest.approx((bytes_read / of_one).sum())
        even = EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** line["tokens"])
        assert line["uniform"] == pytest.approx(line["calls"] * even)
        assert line["experts"] <= line["calls"] * EXPERTS and line["independent"] <= line["uniform"] + 1e-9
    assert lines[0]["tokens"] > 1 or lines[0]["experts"] == pytest.approx(CHOSEN * lines[0]["calls"])


@pytest.fixture(scope="module")
def mixture_run(tmp_path_factory):
    """Return the folder of a finished run on a tiny random mixture."""
    folder = tmp_path_factory.mktemp("mixture") / "run"
    given = ("+debug=tiny", "+drafter=ngram", "target=causal", "target.model=random", f"target.shape={SHAPE}")
    given += ("target.dtype=float32", "target.compile=false", "target.device=cpu", "measurement.cost_contexts=[8]")
    given += ("measurement.cost_rows=8", "measurement.cost_dense=1", "measurement.cost_calls=1", "prompts.limit=3")
    given += ("measurement.gammas=[1]", "measurement.bootstrap=20", "measurement.null=false")
    given += ("measurement.max_new_tokens=8", "tracking.enabled=false", f"hydra.run.dir={folder}")
    run_in(folder.parent, *given)
    return folder


def test_the_account_of_a_mixture_has_a_factor_experts(mixture_run):
    made = open_folder(mixture_run)
    table, gamma = made.experts(), made.primary_gamma
    assert tuple(table) == COLUMNS and set(table["gamma"]) == {gamma}
    rounds = made.rounds()
    own = rounds[rounds["gamma"] == gamma]
    assert table.groupby("prompt")["calls"].sum().to_dict() == own.groupby("prompt").size().to_dict()
    accounts = made.account()["gammas"]
    factors, intervals = accounts[str(gamma)]["factors"], accounts[str(gamma)]["intervals"]
    assert [key for key, each in accounts.items() if "experts" in each["factors"]] == [str(gamma)]
    x, g, v = table["reads"].sum() / table["calls"].sum(), intervals["g"]["estimate"], intervals["v"]["estimate"]
    assert factors["experts"] == pytest.approx((1 + g) / (x + g)) and factors["verify"] == pytest.approx(
        (x + g) / (v + g)
    )
    assert np.prod(list(factors.values())) == pytest.approx(intervals["speedup"]["estimate"], rel=1e-9)
    assert made.metrics["account/experts"] == pytest.approx(factors["experts"])
    report = (mixture_run / "report.md").read_text(encoding="utf-8")
    assert "distinct experts in a layer" in report and "Verifications read x = " in report
    assert "(x + g) / (v + g)" in report and "reading more experts" in report
    products = json.loads((mixture_run / "cost.json").read_text())["products"]
    assert {(item["experts"], item["chosen"]) for item in products} == {(1, 1), (EXPERTS, CHOSEN)}


def test_a_dense_target_leaves_no_trace_of_it(finished_run):
    folder = finished_run("chain")
    assert not (folder / "experts.parquet").exists() and open_folder(folder).experts().empty
    assert "experts" not in (folder / "report.md").read_text(encoding="utf-8")
