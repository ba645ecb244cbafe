"""What other work did to a run, against sums made by hand."""

from fixtures.rounds_tables import build_rounds

from specdec.analysis.arms import Arms
from specdec.analysis.busy_machine import BusyMachine


def test_the_share_is_of_the_time_of_all_methods():
    ours = build_rounds({"a": [1, 2, 0]}, 4).assign(round_s=[1.0, 2.0, 1.0], disturbed=[False, True, False])
    plain = build_rounds({"a": [0, 0]}, 0, "baseline").assign(round_s=[3.0, 1.0], disturbed=[True, False])
    arms = Arms({("ngram", 4): lambda: ours, ("baseline", 0): lambda: plain}, ours)
    busy = BusyMachine.of(arms)
    assert (busy.share, busy.rounds, busy.disturbed) == (5 / 8, 5, 2)
    assert busy.notes()[0].startswith("The machine was busy with other work for 62% of the decoding time, in 2 of 5")
    quiet = Arms({("baseline", 0): lambda: plain.drop(columns="disturbed")}, plain)
    assert BusyMachine.of(quiet) == BusyMachine(0.0, 2, 0) and not BusyMachine.of(quiet).notes()
