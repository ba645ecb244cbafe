"""Studies refuse, before they decode anything, bad values of their own and parts of the run that they cannot use."""

import re

import pytest
import yaml

from specdec.errors import UsageError
from specdec.studies import studies
from specdec.text.streams import Stream, write_streams

# Values of a study's YAML in `conf/study/`, as YAML has them. A sentence names the first key.
VALUES = {
    "ablation": ["{k: 3}"],
    "all_drafters": ["{leave_out: [ngran]}", "{nodes: 0}"],
    "batching": ["{drafters: [ngran]}", "{batches: []}", "{batches: [0]}"],
    "equal_budget": ["{budgets: [1]}"],
    "grid": ["{k: []}", "{k: [0, 2]}", "{w: [2, -1]}", "{w: [0]}"],
    "lenience": ["{leniences: [0.0]}", "{leniences: []}"],
    "mt_bench": ["{model_id: a/b}", "{temperatures: {writing: -1.0}}"],
    "phase_transition": ["{evaluations: []}", "{k: [0, 1]}", "{w: [-1]}", "{k: []}", "{calls: 0}", "{x: 1}"],
    "serving": [
        *("{gammas: []}", "{replications: 1}", "{loads: [0.0]}"),
        "{law: {alpha: 1.5, prompt_tokens: 20, output_tokens: 12}}",
    ],
    "topk": ["{k: []}", "{k: [0]}", "{w: []}", "{drafters: {}}"],
    "tree_search": ["{budgets: []}", "{depth: 0}"],
    "typical_acceptance": ["{temperatures: [0.0]}", "{epsilons: [1.0]}", "{typical: {name: typical, epsilon: 1.5}}"],
}


@pytest.mark.parametrize(("study", "change"), [(name, each) for name, changes in VALUES.items() for each in changes])
def test_bad_values_are_one_sentence(group_values, study, change):
    of_other_files = {
        "lenience": {"lenient": group_values("verifier", "lenient")},
        "typical_acceptance": {"typical": group_values("verifier", "typical")},
    }
    drafters = {"drafters": {"ngram": group_values("drafter", "ngram")}} if study in ("equal_budget", "topk") else {}
    values = group_values("study", study) | of_other_files.get(study, drafters) | yaml.safe_load(change)
    unknown = "Did you mean ngram" if "ngran" in change else rf"study\.{change[1:].partition(':')[0]}"
    with pytest.raises(UsageError, match=unknown) as refusal:
        studies.build(values)
    assert "\n" not in str(refusal.value)


# The experiment, its overrides, and what the sentence names.
PARTS = [
    ("ngrammys_ablation", "structure=chain", "structure=rows"),
    ("ngrammys_grid", "structure=chain", "structure=rows"),
    ("ngrammys_grid", "drafter=oracle structure=rows", "rows"),
    ("ngrammys_grid", "drafter=none structure=rows", "look tokens up"),
    ("ngrammys_grid", "study.k=[200] study.w=[14]", "structure.budget"),
    ("ngrammys_grid", "sampling=temperature", "sampling=greedy"),
    ("lenience", "drafter=ngram structure=tree", "structure=tree"),
    ("lenience", "drafter=oracle", "drafter=oracle"),
    ("lenience", "drafter=jacobi", "drafter=jacobi"),
    ("typical_acceptance", "drafter=ngram verifier=lenient structure=chain", "verifier=lenient"),
    ("typical_acceptance", "drafter=ngram verifier=block structure=rows", "verifier 'block'"),
    ("typical_acceptance", "drafter=ngram verifier=greedy structure=tree", "verifier=greedy"),
    ("typical_acceptance", "drafter=none structure=chain", "drafter=none"),
    ("typical_acceptance", "drafter=oracle structure=chain", "drafter=oracle"),
    ("tree_search", "drafter=oracle", "needs a drafter that fills trees"),
    ("tree_search", "drafter=ngram prompts.tokens=[[0]]", "at least 2 prompts"),
    ("tree_search", "drafter=ngram verifier=blockwise verifier.minimum_block=2", "blockwise: it handles no trees"),
    ("tree_search", "drafter=ngram sampling=temperature", "replays greedy texts"),
    ("batching", "study.drafters=[lookahead] ~target.dtype", "study.drafters=['lookahead']: lookahead drafts no"),
    ("equal_budget", "~study.drafters.mixed +drafter@study.drafters.exact=oracle", "study.drafters.exact"),
    ("equal_budget", "~study.drafters.mixed study.drafters.ngram.order_max=99", "study.drafters.ngram.order_max"),
    ("ngrammys_topk", "~study.drafters.model_unigram study.k=[65]", "study.drafters.model_bigram.k=64"),
    ("ngrammys_topk", "+drafter@study.drafters.x=small_model ~study.drafters.model_unigram", "look tokens up"),
    # A table target has no embeddings to rank.
    ("ngrammys_topk", "", "study.drafters.model_unigram.model=null"),
    ("mt_bench", "drafter=ngram structure=chain prompts=tokens", "prompts=tokens: study 'mt_bench' answers questions"),
]


@pytest.mark.parametrize(("experiment", "overrides", "says"), PARTS)
def test_parts_that_a_study_cannot_use_are_one_sentence(refused, experiment, overrides, says):
    refused(experiment, *overrides.split(), words=re.escape(says))


LIVE = [
    ("all_drafters", ["~target.dtype"], "decodes live"),
    ("batching", ["~target.dtype"], "several sequences at once, live"),
    ("phase_transition", [], "times the calls of a model"),
    ("tree_search", [], "decodes live"),
]


@pytest.mark.parametrize(("experiment", "overrides", "says"), LIVE)
def test_recorded_texts_are_refused_where_a_model_is_needed(refused, tmp_path, experiment, overrides, says):
    path = tmp_path / "texts.jsonl"
    write_streams(path, [Stream(name, "", (1, 2, 3), (1, 2, 3) * 4) for name in "ab"])
    target = ("target=replay", f"target.path={path}", "prompts=recorded", "target.vocab_size=16", "drafter=ngram")
    refused(experiment, *target, *overrides, words=f"{says}.* use target=causal")
