"""A wrong value is refused in one sentence, with code 2, before torch, transformers, pandas, scipy or MLflow loads.

With these, the list of bad inputs is complete: `tests/faults/test_bad_surroundings.py` has models, files, folders,
stores and servers, `tests/test_registry.py` and `tests/test_new.py` have plugins, and
`tests/session/test_interruption.py` has signals, as `test_cli.py` here does.
"""

import pytest
from fixtures.light_process import CHECKS, Answers, answers, declarations

# Asked of whole commands: some take half a second.
REFUSED = {
    "run +drafter=ngrm": "Unknown drafter 'ngrm'. Did you mean ngram?",
    "run +drafter=ngram structure.gamma=-1": "Bad value structure.gamma=-1",
    "certify +drafter=ngram target.dtype=nope": "Bad value target.dtype='nope'",
    "train +heads=grounded heads.layers=x": "Bad value heads.layers='x'",
    "report": "Nothing to report on",
    "sync nowhere": "nowhere has no tracking.json",
    "convert nowhere.pt": "File nowhere.pt does not exist",
    "new drafter": "The following arguments are required: NAME",
}
TOLD = {
    "run --help": "max_new_tokens: 128",
    "report --help": "--import",
    "advise --help": "python -m specdec.advise ",
    "certify --help": "6 not lossless",
}

# Asked of the early checks alone, in one process.
CONFIGURED = {
    "run +experiment=serving study.slots=x": "Bad value study.slots",
    "advise +drafter=ngram drafter.q=abc": "Bad value drafter.q='abc'",
    "run +drafter=ngram drafter.name=ngrm": "Unknown drafter 'ngrm'. Did you mean ngram?",
    "run +drafter=ngram structure.name=chian": "Unknown structure 'chian'. Did you mean chain?",
    "run +drafter=ngram measurement.peers=[vllm]": "Unknown measurement.peers 'vllm'",
    "run +drafter=ngram measurement.drafters=[sufix]": "Unknown drafter 'sufix'. Did you mean suffix?",
    "run +drafter=ngram drafter.matches_max=abc": "Bad value drafter.matches_max='abc'",
    "run +drafter=ngram drafter.order_min=9": "Bad value drafter.order_min=9",
    "run +drafter=bigram drafter.order=3": "Bad values in drafter",
    "run +drafter=retrieval drafter.match_min=99": "Bad value drafter.match_min=99",
    "run +drafter=retrieval drafter.model=a drafter.corpus=b": "Bad value drafter.corpus=b",
    "run +drafter=mixed drafter.fill=3": "Bad value drafter.fill=3",
    "run +drafter=mixed drafter.fill=false drafter.context_rows=null": "Bad value drafter.fill=false",
    "run +drafter=adaptive drafter.of.dtype=x": "Bad value drafter.of.dtype='x'",
    "run +drafter=adaptive drafter.of.name=adaptive": "Missing key drafter.of.",
    "run +drafter=model_bigram drafter.extend=greedy drafter.k=2": "Bad value drafter.extend_k=",
    "run +drafter=ngram structure.gamma=5000": "Bad value structure.gamma=5000",
    "run +drafter=ngram structure=rows structure.k=1000 structure.w=1000": "Bad value structure.k=1000",
    "run +drafter=ngram structure=expansion structure.widths=[1000,1000]": "Bad value structure.widths",
    "run +drafter=ngram structure=tree structure.accuracy=null": "structure=tree has no tree",
    "run +drafter=ngram structure=tree structure.accuracy=[2]": "Bad value structure.accuracy=[2]",
    "run +drafter=ngram structure=tree verifier.name=block": "Bad value structure=tree: verifier 'block' handles only",
    "run +drafter=ngram verifier.name=greedy sampling.temperature=1.0": "Bad value sampling.temperature=1.0: verifier",
    "run +drafter=oracle sampling.temperature=1.0": "Bad value sampling.temperature=1.0: drafter 'oracle'",
    "run +drafter=ngram verifier=lenient verifier.lenience=2": "Bad value verifier.lenience=2",
    "run +drafter=ngram verifier=lenient measurement.lossless=true": "Bad value verifier=lenient",
    "run +drafter=ngram sampling.temperature=-1": "Bad value sampling.temperature=-1",
    "run +drafter=ngram sampling.top_p=2": "Bad value sampling.top_p=2",
    "run +drafter=ngram target.dtype=int3": "Bad value target.dtype='int3'",
    "run +drafter=ngram target.prefill_chunk=0": "Bad value target.prefill_chunk=0",
    "run +drafter=recycling target=replay target.path=x target.vocab_size=9": "Bad value drafter=recycling",
    "run +drafter=ngram prompts.limit=0": "Bad value prompts.limit=0",
    "run +drafter=ngram measurement.repeats=0": "Bad value measurement.repeats=0",
    "run +drafter=ngram measurement.gammas=[0]": "Bad value measurement.gammas.0=0",
    "run +drafter=ngram target=table measurement.peers=[transformers]": "Bad value measurement.peers",
    "run +drafter=ngram target=table measurement.original=x": "Bad value measurement.original=x",
    "run +drafter=ngram measurement.batch_size=2 measurement.workers=2": "Bad value measurement.batch_size=2",
    "run +drafter=ngram measurement.batch_size=2 measurement.budget_seconds=9": "Bad value measurement.budget_seconds",
    "run +drafter=ngram +measurement.drafter_settings.suffix.drafter={}": "Bad value measurement.drafter_settings",
    "run +drafter=none measurement.drafters=[suffix]": "Bad value measurement.drafters: +drafter=none",
    "run +drafter=ngram seed=-1": "Bad value seed=-1",
    "run +drafter=ngram seed=one": "Bad value seed='one'",
    "run +drafter=ngram measurement.max_new_tokens=0": "Bad value measurement.max_new_tokens=0",
    "run +drafter=ngram measurement.bootstrap=1.5": "Bad value measurement.bootstrap=1.5",
    "run +drafter=ngram measurement.null=perhaps": "Bad value measurement.null",
    "run +drafter=ngram target.evaluation=x": "Bad value target.evaluation='x'",
    "run +drafter=ngram target.name=casual": "Unknown target 'casual'. Did you mean causal?",
    "run +drafter=ngram verifier.name=greddy": "Unknown verifier 'greddy'. Did you mean greedy?",
    "run +drafter=ngram prompts.name=1": "Unknown prompts 1",
    "run +drafter=ngram structure.gamma=null": "Bad value structure.gamma=None",
    "run +drafter=ngram tracking.required=maybe": "Bad value tracking.required='maybe'",
    "run +experiment=serving sampling.temperature=1": "Bad value sampling.temperature=1",
    "advise +drafter=ngram measurement.drafters=[suffix]": "Bad value measurement.drafters=[suffix]",
    "advise +drafter=ngram measurement.batch_size=2": "Bad value measurement.batch_size=2",
    "certify +drafter=ngram target=replay target.path=x target.vocab_size=9": "Bad value target=replay",
    "certify +drafter=ngram certificate.rounds=0": "Bad value certificate.rounds=0",
    "train +recipe=pocket_target recipe.model.layers=x": "Bad value recipe.model.layers='x'",
    "train +eagle=pocket eagle.layers=x": "Bad value eagle.layers='x'",
    "train +parallel=pocket device=x": "Bad value device='x'",
    "train +unlikelihood=pocket unlikelihood.weight=0": "Bad value unlikelihood.weight=0",
    "train +heads=grounded target.dtype=x": "Bad value target.dtype='x'",
    "run +drafter=ngram +structure.k=4": "structure 'chain' has the keys gamma",
    "run +drafter=ngram structure.gamma=0": "Bad value structure.gamma=0",
    "run +drafter=ngram structure.gamma=abc": "Bad value structure.gamma='abc'",
    "run +drafter=ngram sampling.temperature=nan": "Bad value sampling.temperature='nan'",
    "run +drafter=ngram measurement.drafters=[suffix] +measurement.drafter_settings.bigram.drafter.q=1": (
        "settings.bigram"
    ),
    "run +drafter=ngram measurement.drafters=[ngram] +measurement.drafter_settings.ngram.drafter.q=1": "use drafter.*",
    "run +drafter=ngram measurement.drafters=[suffix] +measurement.drafter_settings.suffix.drafter.qq=1": (
        "That is drafter 'suffix'"
    ),
    "run +drafter=ngram measurement.drafters=[suffix] +measurement.drafter_settings.suffix.rule=1": (
        "settings.suffix.rule"
    ),
    (
        "run +drafter=ngram measurement.lossless=true measurement.drafters=[suffix] "
        "+measurement.drafter_settings.suffix.verifier.name=typical"
    ): "verifier=typical",
    "run +drafter=ngram measurement.drafters=[oracle] +measurement.drafter_settings.oracle.drafter.forced=true": (
        "forced=true"
    ),
    "run +drafter=ngram +study=topk measurement.drafters=[suffix]": "measurement.drafters=[suffix]: study 'topk'",
    "run +drafter=ngram measurement.budget_seconds=60 measurement.workers=2": (
        "2 workers begin prompts side by side; use measurement.workers=null"
    ),
    "run +drafter=ngram measurement.budget_seconds=60 measurement.batch_size=4": "a batch decodes 4 prompts at once",
    "run +drafter=ngram measurement.budget_seconds=0": "greater than 0",
    "run +drafter=ngram verifier=typical measurement.lossless=true": "verifier=typical",
    "run +drafter=ngram verifier=typical sampling=temperature measurement.lossless=true": "verifier=typical",
    "run +drafter=ngram verifier=blockwise verifier.minimum_block=2 measurement.lossless=true": "verifier=blockwise",
    "run +drafter=oracle drafter.forced=true drafter.alpha=0.5 measurement.lossless=true": "drafter.forced=true",
    "run +drafter=ngram target=replay target.path=x verifier=blockwise verifier.minimum_block=2": (
        "target 'replay' knows"
    ),
    "run +experiment=equal_budget measurement.null=true": "study 'equal_budget' has no null control",
    "run +drafter=ngram measurement.sampled_temperature=0": "measurement.sampled_temperature=0",
    "run +drafter=ngram measurement.sampled_temperature=hot": "measurement.sampled_temperature='hot'",
    "run +drafter=ngram measurement.batch_size=2 target=replay target.path=x prompts=recorded": (
        "target=replay decodes one sequence at a time"
    ),
    "run +drafter=ngram measurement.batch_size=2 target=encoder_decoder": (
        "target=encoder_decoder decodes one sequence at a time"
    ),
    "run +drafter=ngram measurement.batch_size=2 target=causal target.evaluation=rows": "use target.evaluation=packed",
    "run +drafter=ngram measurement.batch_size=2 target=causal measurement.peers=[transformers]": (
        "peers decode one prompt at a time"
    ),
    "run +drafter=oracle measurement.batch_size=2 drafter.forced=true": (
        "use drafter.forced=false, or measurement.batch_size=1"
    ),
    "run +drafter=ngram target.tensor_parallel=2": (
        "one process runs; start as many processes as it says, with torchrun"
    ),
    "advise": "No drafter: add +drafter=NAME, one of",
    "advise +drafter=ngram structure.gamma=0": "Bad value structure.gamma=0",
    "advise +drafter=ngram advice.text=''": "Bad value advice.text",
    "advise +drafter=oracle sampling=temperature": "use sampling=greedy",
    "advise +drafter=ngram measurement.budget_seconds=60": "specdec.advise leaves no prompt out",
    "advise +drafter=ngram measurement.null=true": "specdec.advise has no null control",
    "certify +drafter=ngram measurement.budget_seconds=60": "specdec.certify leaves no prompt out",
    "certify +drafter=ngram measurement.null=true": "specdec.certify has no null control",
    "certify": "No drafter: add +drafter=NAME, one of",
    "certify +drafter=ngram measurement.drafters=[suffix]": "certifies one drafter",
}
RIGHT = [
    "run +drafter=ngram",
    "run +drafter=ngram measurement.drafters=[suffix]",
    "run +drafter=mixed sampling.temperature=0.7",
    "run +drafter=ngram verifier=blockwise measurement.lossless=true",
    "run +experiment=serving",
    "advise +drafter=ngram",
    "certify +drafter=ngram sampling.temperature=0.7",
    "train +recipe=pocket_target",
    "train +heads=grounded",
]


@pytest.fixture(scope="module")
def answered(tmp_path_factory) -> Answers:
    return answers([*REFUSED, *TOLD], [*CONFIGURED, *RIGHT], tmp_path_factory.mktemp("early"))


def test_the_list_of_bad_inputs_is_long():
    assert len(REFUSED) + len(CONFIGURED) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("line", REFUSED)
def test_a_command_refuses_before_heavy_imports(answered, line):
    answer = answered.commands[list(REFUSED).index(line)]
    said = [each for each in answer.err.splitlines() if each.startswith("specdec: ")]
    assert answer.code == 2, answer
    assert len(said) == 1 and said[0].startswith(f"specdec: {REFUSED[line]}"), answer
    assert "Traceback" not in answer.err
    assert answer.heavy == []


@pytest.mark.slow
@pytest.mark.parametrize("line", TOLD)
def test_help_imports_nothing_heavy(answered, line):
    answer = answered.commands[len(REFUSED) + list(TOLD).index(line)]
    assert answer.code == 0 and TOLD[line] in answer.out and answer.heavy == []


@pytest.mark.parametrize("line", CONFIGURED)
def test_a_configuration_is_refused_over_placeholders(answered, line):
    assert CONFIGURED[line] in answered.refusals[list(CONFIGURED).index(line)]


@pytest.mark.parametrize("line", RIGHT)
def test_a_right_configuration_passes_over_placeholders(answered, line):
    assert answered.refusals[len(CONFIGURED) + RIGHT.index(line)] == ""


def test_placeholders_give_the_configurations_and_declarations_of_every_class(answered):
    assert answered.declared == declarations()


@pytest.mark.parametrize("case", CHECKS)
def test_only_a_refusal_counts(answered, case):
    error, text, left, heavy = answered.checks[case]
    expected = {
        "it refuses, and would say more": ("UsageError", "Bad."),
        "a name is unknown": ("UsageError", "Unknown drafter."),
        "a signal stops the command": ("Terminated", "Stopped by SIGTERM; what was finished is on disk."),
    }
    assert (error, text) == expected.get(case, ("", ""))
    assert not left and heavy == []
