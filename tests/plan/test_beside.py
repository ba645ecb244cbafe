"""`measurement.drafters`: several drafters in one session, each as if it were alone, all against one baseline."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from fixtures.commands import run_in
from fixtures.finished_runs import write_trace
from fixtures.resumed_runs import config_of, decode
from fixtures.small_parts import composed_values

from specdec.analysis.findings.side_by_side import drafters_section
from specdec.analysis.pages.report_chapters import OF_A_RUN
from specdec.analysis.read.runs import open_folder
from specdec.config import RunConfig, validated
from specdec.plan.plan import plan

QUICK = ("measurement.bootstrap=60", "measurement.gammas=[]", "measurement.max_new_tokens=32")
UNTRACKED = "tracking.enabled=false"
OWN = ["gamma", "repeat", "prompt", "round", "offered", "offered_nodes", "accepted", "committed", "draft_s", "verify_s"]


def rounds_of(folder, method):
    table = pd.read_parquet(folder / "rounds.parquet")
    return table[table["method"] == method][OWN].sort_values(OWN[:4]).reset_index(drop=True)


def test_each_drafter_decodes_as_if_it_were_alone(tmp_path):
    """On recorded text a drafter's rounds and their simulated times depend on nothing that was decoded in between."""
    write_trace(tmp_path / "trace.jsonl", ("math", "code"))
    recorded = (*QUICK, "target=replay", f"target.path={tmp_path / 'trace.jsonl'}")
    other = "{structure: {name: tree, nodes: 6, depth: 3}, drafter: {earlier_outputs: 50}}"
    beside = ("measurement.drafters=[suffix,ngram]", f"+measurement.drafter_settings.suffix={other}")
    folder, alone = (tmp_path / name for name in ("both", "suffix"))
    said = run_in(tmp_path, *recorded, UNTRACKED, "+drafter=ngram", *beside, f"hydra.run.dir={folder}")
    tree = ("structure=tree", "structure.nodes=6", "structure.depth=3", "drafter.earlier_outputs=50")
    run_in(tmp_path, *recorded, UNTRACKED, "+drafter=suffix", *tree, f"hydra.run.dir={alone}")
    decode(config_of("+drafter=ngram", "prompts=recorded", *recorded), tmp_path / "ngram")
    together = open_folder(folder)
    assert [each.method or "ngram" for each in together.drafters] == ["suffix", "ngram"]
    pd.testing.assert_frame_equal(rounds_of(folder, "ngram"), rounds_of(tmp_path / "ngram", "ngram"))
    pd.testing.assert_frame_equal(rounds_of(folder, "suffix"), rounds_of(alone, "suffix"))
    seen, single = together.of_drafter("suffix"), open_folder(alone)
    assert seen.primary_gamma == single.primary_gamma and seen.drafter_name == single.drafter_name
    assert set(seen.rounds()["method"]) == {"baseline", "suffix"}
    assert set(seen.generations()["method"]) == set(seen.generations(texts=False)["method"]) == {"baseline", "suffix"}
    assert {method for method, _ in seen.arms()} == set(seen.arms().texts["method"]) == {"baseline", "suffix"}
    for own, its in ((seen.replay(), single.replay()), (seen.alpha_sums(), single.alpha_sums())):
        pd.testing.assert_frame_equal(own.reset_index(drop=True), its)
    for metric, value in single.metrics.items():
        if not metric.startswith(("memory/", "throughput/")):
            assert seen.metrics[metric] == pytest.approx(value), metric
    for curve, points in single.curves.items():
        assert seen.curves[curve] == pytest.approx(points)
    # The file says what a run was, and runs it again whatever the YAMLs have become.
    recorded = yaml.safe_load((folder / "config.yaml").read_text())["measurement"]["drafter_settings"]["suffix"]
    assert recorded["structure"]["depth"] == 3 and recorded["drafter"]["earlier_outputs"] == 50
    _check_pairs(together)
    _check_page(together, said)


def test_a_settled_configuration_stays_as_it_is():
    """A run's `config.yaml` runs it again, even where the YAMLs have become others since."""
    own = {"drafter": {"order_max": 2}, "structure": {"name": "heads", "nodes": 9}, "verifier": {"name": "greedy"}}
    values = composed_values("+drafter=bigram", "+debug=tiny", "measurement.drafters=[suffix,ngram,bigram]")
    values["measurement"]["drafter_settings"] = {"ngram": own}
    once = plan(validated(RunConfig, values))
    assert [planned.method for planned in once.drafters] == ["bigram", "suffix", "ngram"]
    found = once.drafters[2].values
    assert found.drafter["order_max"] == 2 and found.drafter["matches_max"] == 32
    assert (found.structure["name"], found.structure["nodes"], found.verifier) == ("tree", 9, {"name": "greedy"})
    assert plan(validated(RunConfig, once.config)).config == once.config


def _check_pairs(seen):
    """Ratios and differences by prompt, from the rounds table alone, with replicates of the same prompts for both."""
    table = pd.read_parquet(seen.fetch("rounds.parquet"))
    sums = {
        name: table[(table["method"] == name) & (table["gamma"] == gamma)].groupby("prompt")
        for name, gamma in (("ngram", 4), ("suffix", 3))
    }
    tokens, rounds, seconds = (
        {name: each[column].agg(how).to_numpy() for name, each in sums.items()}
        for column, how in (("committed", "sum"), ("round", "size"), ("round_s", "sum"))
    )
    ngram, suffix = (tokens[name].sum() / rounds[name].sum() for name in ("ngram", "suffix"))
    metrics = seen.metrics
    assert metrics["drafter/suffix/tokens_per_round.ratio"] == pytest.approx(ngram / suffix)
    assert metrics["drafter/suffix/tokens_per_round.difference"] == pytest.approx(ngram - suffix)
    faster = seconds["suffix"].sum() / seconds["ngram"].sum()  # both write the same texts
    assert metrics["drafter/suffix/speedup.ratio"] == pytest.approx(faster)
    drawn = np.random.default_rng(1).integers(6, size=(4000, 6))
    ratios = seconds["suffix"][drawn].sum(axis=1) / seconds["ngram"][drawn].sum(axis=1)
    for end, share in ((".ci_low", 0.025), (".ci_high", 0.975)):
        # 60 replicates against 4000: the bound is where 0.5% to 20% of the replicates lie beyond.
        beyond = np.mean(ratios < metrics[f"drafter/suffix/speedup.ratio{end}"])
        assert abs(beyond - share) < 0.1, end


def _check_page(seen, said):
    assert drafters_section in dict(OF_A_RUN).values(), "pages of specdec.report have it too"
    side = drafters_section(seen)
    assert "ngram" in side.text[0] and "suffix" in side.text[0]
    assert "structure.name (tree: suffix, γ 3; chain: ngram, γ 4)" in side.text[-1]
    assert side.text[0] in (seen.fetch("report.md")).read_text()
    assert {"suffix", "ngram"} <= set(said.split()), "the terminal's table has a column for the drafter"
    figure = side.figures[0][1]
    above, below = figure.axes
    assert [label.get_text() for label in below.get_xticklabels()] == ["code", "math", "all"]
    heights = [patch.get_height() for patch in above.patches]
    metrics = seen.metrics
    speeds = [
        metrics[f"drafter/suffix/{each}throughput/tokens_per_s"] for each in ("category/code/", "category/math/", "")
    ]
    assert heights[3:6] == pytest.approx(speeds)
    assert [patch.get_height() for patch in below.patches][:3] == [1, 1, 1]


def test_a_live_session_counts_every_drafter_for_itself(tmp_path):
    """On the table target everything is lossless; all methods share the prompts, and one baseline."""
    prompts = ("prompts.limit=null", "prompts.tokens=[[1,2,1,2],[0,1,0],[2,2,1]]", "measurement.repeats=2")
    decode(config_of("+drafter=ngram", "measurement.drafters=[jacobi,suffix]", *prompts), tmp_path)
    table = pd.read_parquet(tmp_path / "rounds.parquet")
    work = table.groupby("method").apply(lambda part: set(zip(part["prompt"], part["repeat"], strict=True)))
    work = work.drop("null")  # plain decoding once more, of some prompts
    assert set(work.index) == {"baseline", "ngram", "jacobi", "suffix"}
    assert len(work["baseline"]) == 6 and all(each == work["baseline"] for each in work)
    session = json.loads((tmp_path / "session.json").read_text())
    assert session["drafter"] == "ngram"
    for name in ("ngram", "jacobi", "suffix"):
        own = session if name == "ngram" else session["beside"][name]
        gammas = table[table["method"] == name]["gamma"].nunique()
        assert (own["compared"], own["identical"], own["unexplained"]) == (6 * gammas, 6 * gammas, 0), name


def test_a_drafter_whose_outputs_are_refuted_is_not_ranked_beside_others(finished_run, tmp_path):
    folder = Path(shutil.copytree(finished_run("several"), tmp_path / "run"))
    assert set(json.loads((folder / "environment.json").read_text())["drafters"]) == {"jacobi", "suffix"}
    metrics = open_folder(folder).metrics
    assert metrics["lossless/identical"] == metrics["drafter/jacobi/lossless/identical"] == 1
    session = json.loads((folder / "session.json").read_text())
    session["beside"]["jacobi"]["unexplained"] = 2
    (folder / "session.json").write_text(json.dumps(session))
    side = drafters_section(open_folder(folder))
    warning, _, speeds = side.text[0].removeprefix("**").partition("** ")
    assert warning.startswith("jacobi") and "Outputs refuted: 2 of" in warning
    assert "jacobi" not in speeds and "ngram" in speeds and "suffix" in speeds
    assert len(side.tables[1][1]) == 1 and "jacobi" not in side.figures[0][1].axes[0].get_title()
