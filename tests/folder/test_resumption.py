"""A run that was killed goes on: the same tables as one that nothing disturbed, whatever is kept between prompts."""

import json
import shutil
from dataclasses import replace

import pytest
from fixtures.finished_runs import write_trace
from fixtures.resumed_runs import SAMPLED, Killed, config_of, decode, found

from specdec.analysis.read.facts import RunStatus
from specdec.errors import UsageError
from specdec.folder import resumption
from specdec.folder.earlier_runs import EarlierRuns, KeptRun
from specdec.folder.resumption import begun
from specdec.plan.plan import plan
from specdec.prompts import PromptSet
from specdec.prompts.base.contract import turn_id
from specdec.session import experiment, measure, parts
from specdec.session.identify import identify
from specdec.session.parts import open_parts
from specdec.targets import causal

NGRAM = ("+drafter=ngram",)
SHORT = ("measurement.repeats=2", "measurement.max_new_tokens=8", "measurement.gammas=[]", "measurement.null=false")
PROMPTS = 6
pytestmark = pytest.mark.usefixtures("each_prompt_at_once")


@pytest.fixture
def turns(monkeypatch):
    """Two turns of every prompt, as token ids: the second is built on the baseline's answer to the first."""

    def follow_up(prompts, prompt, answer):
        if not prompt.follow_ups:
            return None
        tokens = (*prompt.tokens, *answer, 0, 1)
        return replace(prompt, id=turn_id(prompt.id, 2), tokens=tokens, follow_ups=())

    load = parts.load_prompts

    def in_turns(*args, **keys):
        prompts = load(*args, **keys)
        return replace(prompts, prompts=[replace(each, follow_ups=("on",)) for each in prompts.prompts])

    monkeypatch.setattr(parts, "load_prompts", in_turns)
    monkeypatch.setattr(PromptSet, "follow_up", follow_up)


def slow(*overrides):
    return pytest.param(overrides, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "overrides",
    [
        ("+drafter=suffix",),  # remembers earlier outputs
        (*NGRAM, "verifier=typical", "verifier.epsilon=0.5", *SAMPLED),  # judged: quality.parquet
        slow("+drafter=recycling", "structure=chain", "drafter.persist=true"),
        slow(*NGRAM, "measurement.drafters=[suffix]", "measurement.traced=4"),
        slow("+drafter=suffix", "measurement.batch_size=2"),
    ],
    ids=["suffix", "judged", "recycling", "two drafters", "batches"],
)
def test_a_killed_run_ends_with_the_tables_of_a_whole_one(tmp_path, overrides):
    config = config_of(*overrides, *SHORT, "prompts.limit=3")
    decode(config, tmp_path / "whole")
    for stop, kept in ((2, 0), (2, 2), (None, 4)):
        assert len(decode(config, tmp_path / "killed", stop).kept) == kept
    assert found(tmp_path / "killed") == found(tmp_path / "whole")
    assert RunStatus.read(tmp_path / "killed") == RunStatus("finished", "", 6, 6)
    assert not (tmp_path / "killed" / "rounds").exists()


def test_simulated_time_goes_on_where_it_stopped(tmp_path):
    write_trace(tmp_path / "trace.jsonl")
    config = config_of(*NGRAM, "target=replay", "prompts=recorded", f"target.path={tmp_path / 'trace.jsonl'}", *SHORT)
    decode(config, tmp_path / "whole")
    decode(config, tmp_path / "killed", 3)
    decode(config, tmp_path / "killed")
    assert found(tmp_path / "killed", times=True) == found(tmp_path / "whole", times=True)


def test_the_calibration_of_the_first_sitting_is_kept(tmp_path):
    config = config_of(*NGRAM)
    decode(config, tmp_path, 2)
    before = (tmp_path / "calibration.json").read_bytes()
    decode(config, tmp_path)
    assert (tmp_path / "calibration.json").read_bytes() == before
    sittings = json.loads((tmp_path / "environment.json").read_text())["sittings"]
    assert [each["prompts_kept"] for each in sittings] == [0, 2]


def test_a_run_goes_on_as_its_calls_were_made_first(tmp_path, monkeypatch):
    """`target.compile=auto` traced; in between programs were compiled, so that it would compile now."""
    shape = dict(model_type="llama", seed=0, vocab_size=61, hidden_size=16, intermediate_size=16)
    shape |= dict(num_hidden_layers=1, num_attention_heads=2)
    model = ("target=causal", "target.model=random", f"target.shape={shape}".replace("'", ""), "target.device=cpu")
    config = config_of(*NGRAM, *model, "target.compile=auto")
    monkeypatch.setattr(measure, "prepare", lambda *_, **__: None)  # to trace takes seconds
    monkeypatch.setattr(causal, "auto_mode", lambda *_: ("trace", ""))
    decode(config, tmp_path, 1)
    monkeypatch.setattr(causal, "auto_mode", lambda *_: ("inductor", ""))

    def stop(parts, *_):
        assert parts.target.compilation == "trace"
        raise Killed

    monkeypatch.setattr(experiment, "measure", stop)
    with pytest.raises(Killed):
        experiment.run_experiment(plan(config), tmp_path)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["model"]["compilation"] == "trace"
    assert [each["compilation"] for each in environment["sittings"]] == ["trace", "trace"]


def begin(config, folder, earlier=None):
    """Return what `begun` gives, and end the run at once."""
    with begun(config.resume, folder, identify(open_parts(plan(config))), earlier) as beginning:
        return beginning


@pytest.fixture
def finished(tmp_path):
    decode(config_of(*NGRAM), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def unfinished(tmp_path):
    decode(config_of(*NGRAM), tmp_path / "run", 2)
    return tmp_path / "run"


def test_a_folder_is_used_by_one_run(finished):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="holds a finished run of the same measurement"):
        decode(config_of(*NGRAM), finished)
    with pytest.raises(UsageError, match=r"finished run of another kind.*config: structure.gamma 4 -> 3\."):
        decode(config_of(*NGRAM, "structure.gamma=3"), finished)
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_an_unfinished_run_that_differs_is_refused_with_what_differs(unfinished, monkeypatch):
    config = config_of(*NGRAM)
    with pytest.raises(UsageError, match=r"an unfinished run of another kind.*config: seed 0 -> 5"):
        decode(replace(config, seed=5), unfinished)
    with pytest.raises(UsageError, match="resume=never does not go on with it"):
        decode(replace(config, resume="never"), unfinished)
    monkeypatch.setattr("specdec.session.identify.code_hash", lambda: "f" * 64)
    with pytest.raises(UsageError, match=r"code: sha256 \w{12}\.\.\. -> f{12}\.\.\."):
        decode(config, unfinished)


def test_times_of_two_machines_are_not_mixed(unfinished):
    environment = json.loads((unfinished / "environment.json").read_text())
    environment["identity"]["machine"]["threads"] += 1
    (unfinished / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(UsageError, match=r"begun under other conditions.*machine: threads 2 -> 1"):
        decode(config_of(*NGRAM), unfinished)


def test_a_folder_can_be_named(unfinished, tmp_path):
    named = replace(config_of(*NGRAM), resume=str(unfinished))
    assert len(decode(named, tmp_path / "elsewhere").kept) == 2
    assert not (tmp_path / "elsewhere").exists()
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match=f"Bad value resume={folder}"):
            decode(replace(named, resume=str(folder)), tmp_path / "elsewhere")


@pytest.mark.slow
def test_the_newest_unfinished_run_goes_on_and_a_finished_one_does_not(unfinished, tmp_path, monkeypatch):
    config, everywhere, told = config_of(*NGRAM), EarlierRuns(tmp_path), []
    monkeypatch.setattr(resumption, "tell", told.append)
    shutil.copytree(unfinished, tmp_path / "run-newer")
    decode(config_of(*NGRAM, "seed=1"), tmp_path / "run-of-another-seed", 3)
    chosen = begin(config, tmp_path / "new", everywhere)
    assert chosen.results.folder == tmp_path / "run-newer" and len(chosen.kept) == 2
    assert f"Going on with the run in {tmp_path / 'run-newer'}: 2 prompts of {PROMPTS} kept." in told
    for name in ("run", "run-newer"):
        decode(config, tmp_path / name)
    assert begin(config, tmp_path / "new", everywhere).results.folder == tmp_path / "new"


def test_a_cell_of_a_resumed_sweep_is_kept_or_refused(finished, tmp_path, monkeypatch):
    config, sweep = config_of(*NGRAM), EarlierRuns(tmp_path, sweep=True)
    (finished / "summary.json").write_text(json.dumps({"metrics": {"speedup": 1.5, "alpha.mle": None}}))
    kept = begin(config, tmp_path / "cell", sweep)
    assert isinstance(kept, KeptRun) and kept.metrics == {"speedup": 1.5} and kept.folder == finished
    assert begin(config_of(*NGRAM, "seed=1"), tmp_path / "cell", sweep).results.folder == tmp_path / "cell"
    monkeypatch.setattr("specdec.session.identify.code_hash", lambda: "f" * 64)
    with pytest.raises(UsageError, match=r"same configuration and other code or data.*code: sha256"):
        begin(config, tmp_path / "other", sweep)


def test_a_folder_that_a_living_run_writes_to_is_left_alone(unfinished, tmp_path):
    config = config_of(*NGRAM)
    with begun("auto", unfinished, identify(open_parts(plan(config)))):
        with pytest.raises(UsageError, match="Another process is writing to"):
            decode(config, unfinished)
        assert begin(config, tmp_path / "new", EarlierRuns(tmp_path)).results.folder == tmp_path / "new"


def test_later_turns_continue_the_first_answer_that_was_kept(tmp_path, turns):
    config = config_of(*NGRAM, *SAMPLED, *SHORT, "prompts.limit=3")
    decode(config, tmp_path / "whole")
    for stop, kept in ((1, 0), (7, 1), (None, 8)):
        assert len(decode(config, tmp_path / "killed", stop).kept) == kept
    whole = found(tmp_path / "whole")
    assert found(tmp_path / "killed") == whole
    assert sum(line["prompt"].endswith("/turn2") for line in whole["generations"]) == len(whole["generations"]) / 2
