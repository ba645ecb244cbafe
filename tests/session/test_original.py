"""Plain decoding once more: by the model that a trained target was (`measurement.original`), a second baseline; by the
target itself (`measurement.null`), a control.
"""

import json
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch
from fixtures.plain_laws import plain_greedy
from fixtures.resumed_runs import config_of, decode, found

from specdec.analysis.pages.report_chapters import OF_A_RUN
from specdec.analysis.read.runs import open_folder
from specdec.config import RunConfig
from specdec.errors import UsageError
from specdec.plan.plan import plan
from specdec.session.experiment import run_experiment
from specdec.session.parts import open_parts
from specdec.text.streams import Stream, write_streams
from specdec.training.data.tokenized_corpus import train_tokenizer

VOCABULARY = 11
TOKENS = "prompts.tokens=[[1,2,3,1,2,3,1],[4,5,4,5,4,5],[7,8,9,7,8]]"
SHORT = ("measurement.gammas=[4]", "measurement.max_new_tokens=10", "measurement.null=false", "target.device=cpu")
SMALL = ("measurement.max_new_tokens=6", "structure.gamma=2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_llama) -> dict[str, Path]:
    """Saved models by what tells them from "trained": other weights, a smaller vocabulary, a shorter context."""
    made = {}
    for name, (vocabulary, context, seed) in {
        "trained": (VOCABULARY, 64, 0),
        "original": (VOCABULARY, 64, 1),
        "small": (VOCABULARY - 1, 64, 1),
        "short": (VOCABULARY, 32, 1),
    }.items():
        made[name] = tmp_path_factory.mktemp("models") / name
        tiny_llama(vocabulary, context, seed=seed).save_pretrained(made[name])
    return made


def on(folders: dict[str, Path], original: str) -> tuple[str, ...]:
    target = ("target=causal", f"target.model={folders['trained']}", "target.compile=false", TOKENS)
    return (*target, f"measurement.original={folders[original]}", *SHORT)


def config(folders: dict[str, Path], original: str, *overrides: str) -> RunConfig:
    return config_of("+drafter=ngram", *on(folders, original), *overrides)


@cache
def greedy_text(folder: Path, prompt: tuple[int, ...], tokens: int) -> list[int]:
    from transformers import AutoModelForCausalLM

    return list(plain_greedy(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64), list(prompt), tokens))


def check_texts(folders: dict[str, Path], texts: list[dict]) -> None:
    """See that the original's texts are its own, and all others those of the target."""
    for line in texts:
        model = folders["original" if line["method"] == "original" else "trained"]
        assert list(line["generated_token_ids"]) == greedy_text(model, tuple(line["prompt_token_ids"]), line["tokens"])


@pytest.mark.usefixtures("undrawn_pictures", "quick_analysis")
def test_both_backbones_are_decoded_on_the_same_prompts_and_named_apart(tmp_path, folders):
    settings = ("target.dtype=float64", "measurement.repeats=2", "measurement.bootstrap=20")
    run_experiment(plan(config(folders, "original", *settings)), tmp_path)
    finished = open_folder(tmp_path)
    texts = finished.generations()
    assert set(texts["method"]) == {"baseline", "original", "ngram"}
    check_texts(folders, texts.to_dict("records"))
    works = texts.groupby("method").apply(lambda part: set(zip(part["prompt"], part["repeat"], strict=True)))
    assert works["original"] == works["baseline"] and len(works["original"]) == 6
    rounds, metrics = finished.rounds(), finished.metrics
    plain = rounds[rounds["method"] == "original"]
    assert (plain["committed"] == 1).all() and (plain["offered"] == 0).all() and (plain["gamma"] == 0).all()
    ours = rounds[(rounds["method"] == "ngram") & (rounds["gamma"] == 4)]
    expected = plain["round_s"].mean() / (ours["round_s"].sum() / ours["committed"].sum())
    assert metrics["speedup.original"] == pytest.approx(expected)
    for end in ("", ".original"):
        quotient = metrics["acceleration_rate"] / metrics[f"step_overhead{end}"]
        assert abs(quotient - metrics[f"speedup{end}"]) < 1e-9
    assert metrics["lossless/identical"] == 1  # to the target's own baseline: nothing is compared with the original
    environment = json.loads((finished.fetch("environment.json")).read_text())
    assert environment["original"]["sha256"] not in ("", environment["model"]["sha256"])
    assert environment["original"]["dtype"] == environment["model"]["dtype"] == "float64"
    assert "speedup (original)" in finished.fetch("report.md").read_text()
    assert "Not available" not in " ".join(dict(OF_A_RUN)["As the papers define it"](finished).text)


@pytest.mark.slow
def test_the_original_takes_the_dtype_of_the_target(tmp_path, folders):
    """The checkpoint's own is float64; the same model is a fine original, whose text is the target's."""
    decode(config(folders, "trained", "target.dtype=float32"), tmp_path)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["original"]["dtype"] == "float32"
    assert environment["original"]["sha256"] == environment["model"]["sha256"]
    texts = {"original": {}, "baseline": {}, "ngram": {}}
    for line in found(tmp_path)["generations"]:
        texts[line["method"]][line["prompt"]] = line["generated_token_ids"]
    assert texts["original"] == texts["baseline"] and len(texts["original"]) == 3


@pytest.mark.slow
def test_forced_text_is_forced_on_the_drafter_alone(tmp_path, folders):
    forced = config_of("+drafter=oracle", *on(folders, "original"), "drafter.forced=true", "target.dtype=float64")
    decode(forced, tmp_path)
    check_texts(folders, found(tmp_path)["generations"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "original, says",
    [("small", f"has {VOCABULARY - 1} tokens, the target {VOCABULARY}"), ("short", "holds 32 tokens of context")],
)
def test_another_kind_of_model_is_refused(folders, original, says):
    with pytest.raises(UsageError, match=f"measurement.original={folders[original]}.*{says}"):
        open_parts(plan(config(folders, original)))


@pytest.mark.slow
def test_another_tokenizer_is_refused(tmp_path, tiny_llama):
    models = {}
    for name, text in {"trained": "def f(x):\n    return x\n", "original": "while True:\n    pass\n"}.items():
        models[name] = tmp_path / name
        tiny_llama(264).save_pretrained(models[name])
        train_tokenizer([text] * 3, 264, 64).save_pretrained(models[name])
    with pytest.raises(UsageError, match="has another tokenizer; give the model that the target was trained from"):
        open_parts(plan(config(models, "original")))


def test_a_control_writes_the_baselines_texts_without_a_drafter(tmp_path):
    prompts = [[number % 3, (number + 1) % 3, number % 2] for number in range(5)]
    given = ("measurement.null=true", f"prompts.tokens={prompts}".replace(" ", ""))
    decode(config_of("+drafter=ngram", *SMALL, *given), tmp_path)
    texts = {"baseline": [], "null": [], "ngram": []}
    for line in found(tmp_path)["generations"]:
        texts[line["method"]].append((line["prompt"], line["generated_token_ids"]))
    assert texts["null"] == texts["baseline"] and len(texts["null"]) == 5
    rounds = pd.read_parquet(tmp_path / "rounds.parquet").set_index("method")
    assert (rounds.loc["null", ["gamma", "offered", "accepted"]] == 0).all(axis=None)
    assert (rounds.loc["null", "committed"] == 1).all() and rounds.loc["ngram", "offered"].any()


@pytest.mark.parametrize(("prompts", "controlled"), [(1, 1), (15, 2)])
def test_by_itself_it_takes_a_tenth_of_the_calls_at_most_and_leaves_no_prompt_out(tmp_path, prompts, controlled):
    """For a token the others make 1 + 1/3 calls at least, so that one of 7 prompts may have a control of one call."""
    texts = str([[number % 3, number // 3 % 3, number // 9] for number in range(prompts)]).replace(" ", "")
    decode(config_of("+drafter=ngram", *SMALL, "measurement.gammas=[]", f"prompts.tokens={texts}"), tmp_path)
    lines = pd.DataFrame(found(tmp_path)["generations"])
    assert lines["method"].value_counts().to_dict() == {"baseline": prompts, "null": controlled, "ngram": prompts}
    decoded = list(dict.fromkeys(lines["prompt"]))  # in this order; there may be no time for the last ones
    assert [decoded.index(prompt) for prompt in lines.loc[lines["method"] == "null", "prompt"]] == [0, 7][:controlled]
    if prompts > 1:
        calls = lines.groupby("method")["rounds"].sum()
        assert calls["null"] <= 0.1 * calls.sum()


def test_time_that_is_simulated_has_no_control(tmp_path):
    write_streams(tmp_path / "streams.jsonl", [Stream("a", "code", (1, 2), (1, 2, 1, 2, 1, 2))])
    replay = ("target=replay", "prompts=recorded", f"target.path={tmp_path / 'streams.jsonl'}")
    with pytest.raises(UsageError, match=r"measurement\.null=true.*no noise"):
        open_parts(plan(config_of("+drafter=ngram", *replay, "measurement.null=true")))
