"""Fewer threads where other work takes processors and calls are faster so; else all, or as many as were asked for."""

import time

import pytest
import torch
from fixtures.resumed_runs import config_of, decode

from specdec.analysis.busy_machine import calibration_notes
from specdec.disturbance import Watch
from specdec.session import measure
from specdec.targets.causal import Causal
from specdec.timing import threads
from specdec.timing.threads import settle_threads

PROMPT = (5, 6, 7)


class Neighbour(Watch):
    """Takes a share of the processors."""

    def __init__(self, share):
        self.share = share

    def others(self, seconds):
        return self.share


@pytest.fixture
def target(tiny_model, sampling, monkeypatch):
    """A model whose calls take 4 ms by one thread, and `by_two` seconds by two; torch computes on two of two."""
    monkeypatch.setattr(threads, "affinity", lambda: {0, 1})
    monkeypatch.setattr(threads, "_TRIED_S", 0.0)
    made, before = Causal(tiny_model("llama"), sampling(temperature=0.0)), torch.get_num_threads()
    made.by_two = 0.02
    made.verify = lambda draft: time.sleep(0.004 if torch.get_num_threads() == 1 else made.by_two)
    made.discard = lambda: None
    torch.set_num_threads(2)
    yield made
    torch.set_num_threads(before)


def test_a_busy_processor_is_left_to_the_other_work(target, capsys):
    settled = settle_threads(target, PROMPT, Neighbour(0.4), chosen=False)
    assert settled["threads"] == torch.get_num_threads() == 1 and settled["others"] == 0.4
    assert settled["trial"]["2"] > settled["trial"]["1"] and target.decoder.length == len(PROMPT) - 1
    said = " ".join(capsys.readouterr().out.split())
    assert "Other work takes 40% of the processors, so that this run computes on 1 thread: a call on 5 tokens" in said
    disturbed, note = calibration_notes({"threads": settled, "disturbed": 1})
    assert disturbed == "Other work disturbed 1 timed case of the calibration at every try."
    assert note.startswith("Computed on 1 thread instead of 2: other work took 40% of the processors")


@pytest.mark.parametrize(("share", "by_two", "tried"), [(None, 0.02, False), (0.04, 0.02, False), (0.9, 0.001, True)])
def test_all_threads_stay_where_nothing_is_known_or_nothing_gained(target, share, by_two, tried):
    target.by_two = by_two
    settled = settle_threads(target, PROMPT, Neighbour(share), chosen=False)
    assert settled["threads"] == torch.get_num_threads() == 2 and ("trial" in settled) == tried
    assert calibration_notes({"threads": settled}) == []


def test_a_number_that_was_asked_for_is_kept_and_a_better_one_named(target, capsys):
    settled = settle_threads(target, PROMPT, Neighbour(1.0), chosen=True)
    assert settled["threads"] == torch.get_num_threads() == 2 and calibration_notes({"threads": settled}) == []
    assert "measurement.threads=1 is faster" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_goes_on_computes_on_the_threads_of_its_first_sitting(tmp_path, monkeypatch):
    config, asked = config_of("+drafter=ngram"), []
    monkeypatch.setattr(measure, "settle_threads", lambda *_: asked.append(1) or {"threads": 2})
    before = torch.get_num_threads()
    decode(config, tmp_path, stop_after=1)
    torch.set_num_threads(before)
    decode(config, tmp_path)
    now = torch.get_num_threads()
    torch.set_num_threads(before)
    assert (len(asked), before, now) == (1, 1, 2)
