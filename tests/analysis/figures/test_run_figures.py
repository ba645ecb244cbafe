"""The figures show what theory and the tables say: lines, labels and captions, read back from the artists."""

import numpy as np
import pandas as pd
import pytest
from fixtures.rounds_tables import from_counts
from matplotlib.colors import to_hex

from specdec.analysis.figures import run_figures
from specdec.analysis.figures.run_figures import DRAFT, REST, VERIFY, stretch, timeline
from specdec.analysis.rounds import Arms

MEASURED = pd.DataFrame(
    {"gamma": [4, 1, 2], "value": [2.4, 1.5, 2.0], "value_low": [2.3, 1.4, 1.9], "value_high": [2.6, 1.6, 2.1]}
)
LINES = {"capped_geometric": {1: 1.6, 2: 1.96, 4: 2.31}, "position": {1: 1.5, 2: 2.0, 4: 2.4}, "replay": {}}
BASIS = run_figures.Basis(3, 9, None)


def by_label(figure):
    (axes,) = figure.axes
    return {line.get_label(): line for line in axes.lines}


def caption(figure):
    return " ".join(figure.get_supxlabel().split()).replace("\u00a0", " ")


def points(line):
    return dict(zip(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist(), strict=True))


def test_expected_tokens_has_a_labelled_line_per_gamma_and_the_baseline():
    figure = run_figures.expected_tokens()
    lines = by_label(figure)
    assert list(lines) == ["γ = 1", "γ = 3", "γ = 5", "γ = 7", "γ = 10", "γ = ∞", "baseline"]
    assert {text.get_text() for text in figure.axes[0].texts} == {*list(lines)[:-1], "no drafter: 1"}
    assert points(lines["γ = 5"])[0.8] == pytest.approx(3.68928)
    assert points(lines["γ = ∞"])[0.8] == pytest.approx(5)


def test_curve_draws_models_as_lines_and_the_measurement_with_intervals():
    figure = run_figures.curve(MEASURED, LINES, title="ngram on pocket, cpu", basis=run_figures.Basis(40, 1234, 0.6))
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["no drafter", "capped geometric", "by position", "measured"]  # replay has no points
    assert points(by_label(figure)["capped geometric"]) == LINES["capped_geometric"]
    (container,) = axes.containers
    data, _, (bars,) = container.lines
    assert points(data) == {1: 1.5, 2: 2.0, 4: 2.4}
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    np.testing.assert_allclose(ends, [[1.4, 1.6], [1.9, 2.1], [2.3, 2.6]])
    assert caption(figure) == (
        "40 prompts, 1,234 rounds; measured points with 95% prompt-bootstrap intervals; capped geometric: "
        "every token accepted with α = 0.600."
    )
    alone = MEASURED.assign(value_low=np.nan, value_high=np.nan)
    figure = run_figures.curve(alone, LINES, title="t", basis=run_figures.Basis(1, 0, None))
    assert caption(figure) == "1 prompt; no intervals."
    figure = run_figures.curve(MEASURED, {"prompt_beta": {1: 1.4}}, title="t", basis=BASIS, primary_gamma=2)
    large = [line for line in figure.axes[0].lines if line.get_markersize() > 10]
    assert [points(line) for line in large] == [{2: 2.0}] and "prompt beta" in by_label(figure)
    assert set(by_label(figure)["no drafter"].get_ydata()) == {1}


def test_a_paired_error_has_a_panel_of_its_own():
    """The interval of 2.0 measured holds the 1.96 of the line; that of their ratio, 0.95 to 0.99, leaves out 1."""
    errors = {"error": [0.067, -0.02, -0.04], "error_low": [0.01, -0.05, -0.1], "error_high": [0.1, -0.01, 0.02]}
    measured = MEASURED.sort_values("gamma").assign(**errors)
    above, below = run_figures.curve(measured, LINES, title="t", basis=BASIS).axes
    ((points_below, _, (bars,)),) = (container.lines for container in below.containers)
    assert points(points_below) == {1: 0.067, 2: -0.02, 4: -0.04}
    np.testing.assert_allclose(bars.get_segments()[1][:, 1], [-0.05, -0.01])
    assert "resampled together" in caption(above.figure)
    unsure = MEASURED.assign(error=0.1, error_low=np.nan, error_high=np.nan)
    assert len(run_figures.curve(unsure, LINES, title="t", basis=BASIS).axes) == 1


def test_the_curve_in_words():
    lines = LINES | {"capped_geometric": {1: 1.62, 2: 1.96, 4: 2.31}}
    for model, words in (
        (
            "capped_geometric",
            "At 1 of 3 gammas (1) the measured tokens per round lies below the capped geometric model",
        ),
        ("capped_geometric", "the largest gap is -7.4% at gamma 1 (1.500 measured, 1.620 expected)."),
        ("position", "At each of 3 gammas the position model lies within the interval of the measured tokens per "),
        ("replay", "There is no replay line to set the measured tokens per round against."),
    ):
        assert words in run_figures.curve_in_words(MEASURED, lines, model=model)
    alone = MEASURED.assign(value_low=np.nan, value_high=np.nan)
    assert run_figures.curve_in_words(alone, LINES, "speedup").startswith("Without intervals no difference")
    exact = MEASURED.assign(value_low=MEASURED["value"], value_high=MEASURED["value"])
    equal = {"replay": {g: v * (1 + 1e-15) for g, v in {1: 1.5, 2: 2.0, 4: 2.4}.items()}}
    assert run_figures.curve_in_words(exact, equal, model="replay").startswith("At each of 3 gammas the replay")
    both = {"capped_geometric": {1: 1.9, 2: 2.0, 4: 1.0}}
    assert "lies off the capped geometric" in run_figures.curve_in_words(MEASURED, both)


def test_accepted_lengths_match_a_count_and_the_law():
    rounds = from_counts([40, 25, 15, 8, 12], censored=[1, 2])  # D1 of theory.md 5.1, and two cut rounds
    table = run_figures.accepted_length_table(rounds, alpha=0.5)
    assert table["rounds"].tolist() == [40, 25, 15, 8, 12] and (table["share"] * 100).tolist() == pytest.approx(
        table["rounds"]
    )
    assert table["expected"].tolist() == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.0625])
    assert table["share_low"].isna().all()  # one prompt
    figure = run_figures.accepted_lengths(rounds, 0.5, title="t")
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx(table["share"].tolist())
    assert points(by_label(figure)["capped-geometric law"])[4] == 0.0625
    assert caption(figure) == (
        "100 rounds of 1 prompt; no intervals; law at α = 0.500. Left out: 0 rounds without a proposal, "
        "2 cut short by the end of the text."
    )


def test_accepted_lengths_follow_what_was_offered(make_rounds):
    outputs = {"a": [0, 1, 2, 0], "b": [0, 1, 0, 2]}
    offered = {"a": [2, 1, 2, 0], "b": [2, 2, 2, 2]}  # one round without a proposal, one of a single token
    names = [f"{prompt}{copy}" for copy in range(3) for prompt in "ab"]
    rounds = make_rounds({name: outputs[name[0]] for name in names}, 2, offered={n: offered[n[0]] for n in names})
    table = run_figures.accepted_length_table(rounds, alpha=0.5)
    assert table["rounds"].sum() == 21 and table["expected"].sum() == pytest.approx(1)
    assert table["expected"].iloc[2] == pytest.approx(6 / 7 * 0.25)
    assert (table["share_low"] <= table["share"]).all() and (table["share"] <= table["share_high"]).all()
    said = caption(run_figures.accepted_lengths(rounds, title="t"))
    assert "95% prompt-bootstrap intervals" in said and "3 rounds without a proposal" in said


def test_accepted_lengths_are_of_rounds_with_proposals(make_rounds):
    (axes,) = run_figures.accepted_lengths(make_rounds({"a": [3, 1]}, 3), 0.5, title="t").axes
    assert len(axes.patches) == 4
    for refused, says in (
        (make_rounds({"a": [0]}, 2, offered={"a": [0]}), "no round has a proposal"),
        (make_rounds({}, 2, censored={"a": [1]}), "every round was cut"),
    ):
        with pytest.raises(ValueError, match=says):
            run_figures.accepted_lengths(refused, title="t")


def test_time_split_adds_up_to_the_round(make_rounds):
    plain = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.001, "commit_s": 0.0, "round_s": 0.022}
    drafted = {"draft_s": 0.01, "verify_s": 0.03, "accept_s": 0.002, "commit_s": 0.002, "round_s": 0.05}
    baseline = make_rounds({"a": [0, 0]}, 0, method="baseline", durations=plain)
    timed = Arms.of(pd.concat([make_rounds({"a": [1, 2]}, 4, durations=drafted), baseline]))
    figure = run_figures.time_split(timed, title="t")  # the baseline's verify is the unit
    (axes,) = figure.axes
    parts = {group.get_label(): group[1].get_width() for group in axes.containers}
    assert parts == pytest.approx({"draft": 0.5, "verify": 1.5, "accept": 0.1, "commit": 0.1, "rest": 0.3})
    assert [label.get_text() for label in axes.get_yticklabels()] == ["baseline", "γ = 4"]
    widths = np.array([[bar.get_width() for bar in group] for group in axes.containers])  # [verb, row]
    np.testing.assert_allclose(widths.sum(axis=0), [1.1, 2.5])
    assert " 2.50 (20.0%)" in [text.get_text() for text in axes.texts] and "t(1) = 20 ms" in caption(figure)
    with pytest.raises(ValueError, match="must be positive"):
        run_figures.time_split(timed.of_methods(["ngram"]), title="t")


SLOW = {"draft_s": 0.0, "verify_s": 0.020, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.021}


def seconds(gamma, factor=1.0):
    draft, verify = 0.004 * gamma * factor, 0.024 * factor
    return {"draft_s": draft, "verify_s": verify, "accept_s": 0.0, "commit_s": 0.0, "round_s": draft + verify + 0.001}


@pytest.fixture
def along(make_rounds):
    accepted = {2: [2, 1, 0, 2, 2, 1, 0, 2, 1, 0, 2], 4: [4, 0, 2, 1, 4, 4, 2]}
    tables = [make_rounds({name: [0] * 24 for name in ("slow", "b", "fast")}, 0, "baseline", durations=SLOW)]
    for gamma, counts in accepted.items():
        for name, factor in (("slow", 2.0), ("b", 1.0), ("fast", 0.5)):
            tables.append(make_rounds({name: counts}, gamma, "small_model", durations=seconds(gamma, factor)))
    table = pd.concat(tables, ignore_index=True)
    assert (table.groupby(["gamma", "prompt"])["committed"].sum() == 24).all()
    return table


def test_the_text_is_the_one_of_median_speedup_and_all_rows_show_the_same_tokens(along):
    shown = stretch(Arms.of(along), 2, count=4)
    assert shown.prompt == "b" and list(shown.rows) == ["baseline", "γ = 4", "γ = 2"]
    # Rounds 5 to 8 of gamma 2 begin after 3 + 2 + 1 + 3 + 3 tokens and commit 2 + 1 + 3 + 2.
    assert (shown.first, shown.tokens) == (12, 8)
    assert shown.rows["γ = 2"]["round"].tolist() == [5, 6, 7, 8]
    assert shown.rows["baseline"]["place"].tolist() == list(range(12, 20))
    # Rounds of gamma 4 begin at 0, 5, 6, 9, 11, 16 and 21: two from 12 on commit 5 and 3.
    assert shown.rows["γ = 4"]["place"].tolist() == [16, 21]
    assert shown.rows["γ = 4"]["committed"].tolist() == [5, 3]
    mixed = along.sample(frac=1.0, random_state=0)
    assert stretch(Arms.of(mixed), 2, count=4).rows["γ = 2"]["round"].tolist() == [5, 6, 7, 8]
    with pytest.raises(ValueError, match=r"no rounds at the primary gamma 3, only at \[2, 4\]"):
        stretch(Arms.of(along), 3)


def test_blocks_are_to_scale(along):
    (axes,) = timeline(stretch(Arms.of(along), 2, count=4), title="t").axes
    blocks = {}
    for bar in axes.patches:
        kind = (round(bar.get_y() + bar.get_height() / 2), to_hex(bar.get_facecolor()).upper())
        blocks.setdefault(kind, []).append((bar.get_x(), bar.get_width()))
    # Gamma 2 is row -2, below the baseline and gamma 4; one round behind the other.
    for colour, begins, lasts in ((DRAFT, 0.0, 8.0), (VERIFY, 8.0, 24.0), (REST, 32.0, 1.0)):
        np.testing.assert_allclose(blocks[-2, colour], [(begins + 33.0 * at, lasts) for at in range(4)])
    np.testing.assert_allclose(blocks[0, VERIFY], [(21.0 * at, 20.0) for at in range(8)])
    words = [text.get_text() for text in axes.texts]
    assert words.count("8 tokens, 61 per second") == 1 and words.count("8 tokens, 48 per second") == 1
    assert [word for word in words if word.isdigit()] == ["1"] * 8 + ["5", "3"] + ["2", "1", "3", "2"]
    (axes,) = timeline(stretch(Arms.of(along[along["gamma"] != 4]), 2, count=1), title="t").axes
    (line,) = axes.lines
    assert line.get_xdata().tolist() == pytest.approx([4.0, 4.0])
