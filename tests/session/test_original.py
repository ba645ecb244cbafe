"""`measurement.original`: the model that a trained target was, decoded beside it as a second baseline."""

import json
from pathlib import Path

import pytest
import torch
from fixtures.plain_laws import plain_greedy

from specdec import run
from specdec.analysis.pages.report_chapters import run_chapters
from specdec.analysis.read.runs import open_folder
from specdec.training.data.tokenizer import train_tokenizer

VOCABULARY = 11
TOKENS = "prompts.tokens=[[1,2,3,1,2,3,1],[4,5,4,5,4,5],[7,8,9,7,8]]"


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


@pytest.fixture
def command(in_process, unwritten_pictures):
    """`command(..., drafter="ngram")` runs specdec.run without a store; it gives exit code and standard error."""

    def call(*arguments: str, drafter: str = "ngram") -> tuple[int, str]:
        ended = in_process(run, f"+drafter={drafter}", "+debug=pocket", "tracking.enabled=false", *arguments)
        return ended.code, ended.error

    return call


def on(folders: dict[str, Path], original: str, target: str = "trained") -> tuple[str, ...]:
    return (
        *("prompts=tokens", TOKENS, "prompts.limit=null", "measurement.cost_contexts=[]", "target.compile=false"),
        *(f"target.model={folders[target]}", f"measurement.original={folders[original]}"),
    )


def greedy_text(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    from transformers import AutoModelForCausalLM

    return list(plain_greedy(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64), prompt, tokens))


def test_both_backbones_are_decoded_on_the_same_prompts_and_named_apart(command, tmp_path, folders):
    settings = ("target.dtype=float64", "measurement.repeats=2", "measurement.gammas=[4]", "measurement.null=false")
    code, error = command(*on(folders, "original"), *settings)
    assert code == 0, error
    finished = open_folder(next(tmp_path.glob("outputs/*/*")))
    texts = finished.generations()
    assert set(texts["method"]) == {"baseline", "original", "ngram"}
    for row in texts.to_dict("records"):
        model = folders["original" if row["method"] == "original" else "trained"]
        assert row["generated_token_ids"] == greedy_text(model, row["prompt_token_ids"], row["tokens"])
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
    sections = {section.title: section for chapter in run_chapters([finished]) for section in chapter.sections}
    assert "As the papers define it" in sections
    assert not [title for title, section in sections.items() if "Not available" in " ".join(section.text)]


@pytest.mark.slow
def test_the_original_takes_the_dtype_of_the_target(command, tmp_path, folders):
    """The checkpoint's own is float64; the same model is a fine original, whose text is the target's."""
    code, error = command(*on(folders, "trained"), "target.dtype=float32", "measurement.gammas=[4]")
    assert code == 0, error
    finished = open_folder(next(tmp_path.glob("outputs/*/*")))
    environment = json.loads((finished.fetch("environment.json")).read_text())
    assert environment["original"]["dtype"] == "float32"
    assert environment["original"]["sha256"] == environment["model"]["sha256"]
    texts = finished.generations().set_index(["method", "prompt"])["generated_token_ids"]
    assert texts["original"].to_dict() == texts["baseline"].to_dict()


@pytest.mark.slow
def test_forced_text_is_forced_on_the_drafter_alone(command, tmp_path, folders):
    forced = ("drafter.forced=true", "target.dtype=float64", "measurement.gammas=[4]")
    code, error = command(*on(folders, "original"), *forced, drafter="oracle")
    assert code == 0, error
    for row in open_folder(next(tmp_path.glob("outputs/*/*"))).generations().to_dict("records"):
        model = folders["original" if row["method"] == "original" else "trained"]
        assert row["generated_token_ids"] == greedy_text(model, row["prompt_token_ids"], row["tokens"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "original, says",
    [("small", f"has {VOCABULARY - 1} tokens, the target {VOCABULARY}"), ("short", "holds 32 tokens of context")],
)
def test_another_kind_of_model_is_refused(command, tmp_path, folders, original, says):
    code, error = command(*on(folders, original))
    assert code == 2 and says in error and f"measurement.original={folders[original]}" in error
    assert error.count("\n") == 1 and not list(tmp_path.glob("outputs/*/*/rounds*"))


@pytest.mark.slow
def test_another_tokenizer_is_refused(command, tmp_path, folders, tiny_llama):
    texts = (["def f(x):\n    return x\n"] * 3, ["while True:\n    pass  # nothing else\n"] * 3)
    models = {}
    for name, text in zip(("trained", "original"), texts, strict=True):
        tokenizer = train_tokenizer(text, 264, 64)
        models[name] = tmp_path / name
        tiny_llama(264).save_pretrained(models[name])
        tokenizer.save_pretrained(models[name])
    code, error = command(*on(models, "original"))
    assert code == 2 and "it has another tokenizer; give the model that the target was trained from" in error


@pytest.mark.slow
def test_a_missing_original_is_one_sentence(command, folders):
    arguments = [argument for argument in on(folders, "trained") if not argument.startswith("measurement.original")]
    code, error = command(*arguments, "measurement.original=./nowhere")
    assert code == 2 and "./nowhere" in error and error.count("\n") == 1
