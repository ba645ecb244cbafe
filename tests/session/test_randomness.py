"""The seeds of a whole session: what is drawn for one purpose is drawn for no other."""

import pytest
from fixtures.resumed_runs import composed

from specdec.clock import CpuClock
from specdec.folder.results import ResultsFolder
from specdec.plan.plan import plan
from specdec.session.arm import Arm
from specdec.session.parts import open_parts
from specdec.session.session import Session

REPEATS = 2


@pytest.fixture
def decoded(tmp_path, monkeypatch):
    """`decoded(seed)` gives (gamma, repeat, request) of every text of a sampled session on the table target."""
    decode = Arm.decode

    def call(seed):
        few = ("prompts.limit=3", "measurement.max_new_tokens=4")
        config = composed("+debug=tiny", "+drafter=ngram", "sampling.temperature=1.0", f"seed={seed}", *few)
        parts, requests, repeat = open_parts(plan(config)), [], 0
        session = Session(parts, "cell", ResultsFolder(tmp_path / str(seed)), CpuClock())

        def watched(arm, asked, clock):
            requests.append((arm.gamma, repeat, asked))
            return decode(arm, asked, clock)

        monkeypatch.setattr(Arm, "decode", watched)
        for repeat in range(REPEATS):
            for place, prompt in enumerate(parts.prompts.prompts):
                session.run_prompt(prompt, repeat, place)
        return requests

    return call


def test_what_judges_a_draft_has_not_drawn_it(decoded):
    """With one seed for both, the number that draws a token would judge it, and the output would not be the target's.

    Drafts of a prompt draw the same numbers at every gamma, so that curves share their noise; every text is judged by
    numbers of its own.
    """
    requests = decoded(0)
    drafts = {(repeat, tuple(asked.prompt)): asked.draft_generator.initial_seed() for _, repeat, asked in requests}
    judged = [asked.accept_generator.initial_seed() for _, _, asked in requests]
    assert {gamma for gamma, _, _ in requests} >= {0, 1, 2} and {repeat for _, repeat, _ in requests} == {0, 1}
    assert len(set(drafts.values())) == len(drafts) < len(judged)
    assert len(set(judged)) == len(judged)
    assert not set(judged) & set(drafts.values())
    assert not set(judged) & {asked.accept_generator.initial_seed() for _, _, asked in decoded(1)}, "of another seed"
