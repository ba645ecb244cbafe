"""The experts of a run's verifications, against plain passes that know no cache, hook or tree; and the factor that they
make, from the command to the report."""

import json
from collections import defaultdict

import numpy as np
import pytest
from fixtures.commands import run_in
from fixtures.decoding import decode
from fixtures.drafting import rows
from fixtures.small_parts import read_group_values
from fixtures.tiny_mixtures import CHOSEN, EXPERTS, LAYERS, routed, tiny_mixture

from specdec.analysis.read.runs import EXPERTS as COLUMNS
from specdec.analysis.read.runs import open_folder
from specdec.session.expert_reads import expert_reads
from specdec.targets.causal import Causal

PROMPT = [7, 3, 60, 7, 21, 4, 4, 33, 7, 3]
SHAPE = (
    "{model_type: mixtral, seed: 0, hidden_size: 32, intermediate_size: 24, num_hidden_layers: 1, vocab_size: 61, "
    "num_attention_heads: 4, num_key_value_heads: 2, num_local_experts: 6, num_experts_per_tok: 2, "
    "max_position_embeddings: 256, eos_token_id: null, bos_token_id: null, pad_token_id: null}"
)


@pytest.mark.parametrize(
    ("family", "structure", "evaluation"),
    [("mixtral", 3, "packed"), ("qwen3_moe", rows(2, 2), "packed"), ("deepseek_v3", rows(2, 2), "rows")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_experts_of_the_tokens_of_every_verification(family, structure, evaluation, sampling):
    model = tiny_mixture(family)
    target = Causal(model, sampling(temperature=0.0), evaluation=evaluation)
    written = decode(target, read_group_values("drafter", "ngram"), structure, PROMPT, 8)
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
    assert {line["tokens"]: line["calls"] for line in lines} == {n: len(found) for n, found in distinct.items()}
    assert max(distinct) > 2, "drafts were verified"
    for line in lines:
        found = np.array(distinct[line["tokens"]])
        assert line["experts"] == pytest.approx(found.mean(axis=1).sum())
        bytes_read = mixture.shared_bytes + mixture.expert_bytes[0] * found.sum(axis=1)
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
