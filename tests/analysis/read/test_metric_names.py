"""Metrics of older runs, with dots after the family, are read by the names of today."""

import json

import pytest

from specdec.analysis.read.metric_names import current_name
from specdec.analysis.read.runs import open_folder


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ("account.verify", "account/verify"),
        ("curve.speedup.measured.ci_low", "curve/speedup/measured.ci_low"),
        ("curve.topk.model_bigram.w1", "curve/topk/model_bigram.w1"),
        ("category.http.cookies.alpha.mle.ci_low", "category/http.cookies/alpha.mle.ci_low"),
        ("category.code.throughput.tokens_per_s", "category/code/throughput/tokens_per_s"),
        ("drafter.medusa.lossless.identical", "drafter/medusa/lossless/identical"),
        ("drafter.medusa.speedup.ratio.ci_low", "drafter/medusa/speedup.ratio.ci_low"),
        ("sweep.speedup.ngram", "sweep/speedup/ngram"),
        ("heldout.head_1.top1", "heldout/head_1.top1"),
        *((name, name) for name in ("speedup", "speedup.limit.realised", "tokens_per_round.position")),  # headlines
    ],
)
def test_a_name_with_dots_becomes_todays_and_todays_stays(older, today):
    assert current_name(older) == current_name(today) == today


def test_a_folder_of_an_older_version_is_read_with_todays_names(tmp_path):
    (tmp_path / "config.yaml").write_text("drafter: {name: ngram}\n", encoding="utf-8")
    summary = {"metrics": {"account.alpha": 0.5, "speedup": 1.1}, "curves": {"curve.replay": {"4": 2.0}}}
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    run = open_folder(tmp_path)
    assert run.metrics == {"account/alpha": 0.5, "speedup": 1.1} and run.lines() == {"replay": {4: 2.0}}
