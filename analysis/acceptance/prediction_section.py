"""Prediction on held-out prompts in words, tables and a figure."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..comparisons import interval, intervals
from ..figures import pictures, style
from ..intervals import Interval
from ..rounds import Arms
from ..sections import Section, counted
from .prediction import LABELS, ROUNDING, SEED, HeldOutPrediction, Undetermined, predict

_LINES = {  # model: name in the legend, colour, dash, marker
    "capped_geometric.text": ("capped geometric, α of text", style.BLUE, "-", "o"),
    "capped_geometric.mle": ("same, MLE at largest γ", style.BLUE, "--", "s"),
    "capped_geometric.short": ("same, MLE at smallest γ", style.SKY, ":", "v"),
    "position": ("by position", style.ORANGE, "-", "D"),
    "beta_geometric": ("rounds differ", style.PURPLE, "--", "^"),
    "prompt_beta": ("prompts differ", style.YELLOW, "-.", "<"),
    "markov": ("Markov along the text", style.GREY, ":", "P"),
    "stretches": ("stretches of the text", style.BLACK, "-", "p"),
    "stretches.ends": ("stretches, both ends", style.BLACK, "--", "*"),
    "replay": ("replay", style.GREEN, "-", "X"),
}
REFITS = 200
# The formula of the papers, Omega(alpha, gamma): with the alpha of the text where it is known, else as measured.
TEXTBOOK = ("capped_geometric.text", "capped_geometric.short", "capped_geometric.mle")


def held_out(
    arms: Arms, alpha_sums: pd.DataFrame | None, replay: pd.DataFrame | None, replicates: int = 2000
) -> HeldOutPrediction | Undetermined:
    """Return what `predict` finds, or why it finds nothing; refits are a tenth of the replicates, `REFITS` at most."""
    try:
        return predict(arms, alpha_sums, replay, replicates, min(replicates // 10, REFITS))
    except Undetermined as undetermined:
        return undetermined


def section_of(prediction: HeldOutPrediction | Undetermined, title: str) -> Section:
    """Say what each model predicts on held-out prompts."""
    heading = "What would each model have predicted?"
    if isinstance(prediction, Undetermined):
        return Section(heading, (f"No prediction: {prediction}.",))
    method = (
        f"Half of {counted(prediction.prompts, 'prompt')}, drawn by seed {SEED} with texts of all lengths in both "
        f"halves, and then the other: every model is fitted to the rounds of one half at gamma {prediction.fit_gamma}, "
        "the largest, where all depths are seen, and predicts every gamma on the other half from the lengths of its "
        "texts, ends of texts included."
    )
    if "stretches.ends" in set(prediction.models["model"]):
        method += " Stretches at both ends read how many rounds the smallest took, too, and predict those between."
    if prediction.splits > 1:
        method += (
            f" This was done for {prediction.splits} splits and the errors are their means. In the split where they "
            f"part most, the two halves' own tokens per round differ by {prediction.luck:.1%}: so much is luck."
        )
    # Replay stands apart from the models, because it reads the texts that the others predict.
    replayed = [
        f"Replay reads the held-out texts themselves, so that it predicts nothing and is not ranked: off by "
        f"{line['mean_error']:.1%} on average and by {line['worst_error']:+.1%} at worst (gamma {line['worst_gamma']})."
        for line in prediction.read_off.to_dict("records")
    ]
    chosen = prediction.models.iloc[0]
    seen = f"On held-out prompts: {LABELS[prediction.chosen]}, {chosen['mean_error']:.1%} off on average"
    omitted = [f"{LABELS[name]}: {why}" for name, why in prediction.left_out.items()]
    texts = [f"**{one_sentence(prediction)}**", prediction_in_words(prediction), method, *replayed]
    if omitted:
        texts.append("Not tried: " + "; ".join(omitted) + ".")
    sure = "Too few prompts for intervals of the error."
    if prediction.table["error_low"].notna().any():
        sure = (
            f"{prediction.level:.0%} prompt-bootstrap intervals; that of the error resamples both halves and refits "
            f"every model ({prediction.refits} times)."
        )
    models, table = prediction.models, prediction.table
    ranked = {
        "model": models["model"].map(LABELS),
        "mean error": models["bias"].map("{:+.1%}".format),
        "mean absolute error": models["mean_error"].map("{:.1%}".format),
        "worst": models["worst_error"].map("{:+.1%}".format),
        "at gamma": models["worst_gamma"],
        "gammas missed significantly": models["significant"],
    }
    errors = {
        "gamma": table["gamma"],
        "model": table["model"].map(LABELS),
        "predicted": table["predicted"].map("{:.3f}".format),
        "measured": [f"{Interval(row.measured, row.ci_low, row.ci_high):.3f}" for row in table.itertuples()],
        "error": [f"{error:+.1%}" for error in intervals(table, "error")],
        "over splits": [f"{line.split_low:+.1%} to {line.split_high:+.1%}" for line in table.itertuples()],
    }
    caption = "The recommended model, then the others by their error over gammas (predicted over measured, less 1)."
    measured = f"Tokens per round, predicted and measured. {sure}"
    tables = ((caption, pd.DataFrame(ranked)), (measured, pd.DataFrame(errors)))
    figure = prediction_figure(prediction, title=f"{seen}\n{title}")
    return Section(heading, tuple(texts), tables, (("prediction_error", figure),))


def one_sentence(prediction: HeldOutPrediction) -> str:
    """Say by how much the capped geometric and the recommended model are off on average."""
    models = prediction.models.set_index("model")
    textbook = next((name for name in TEXTBOOK if name in models.index), None)
    model = prediction.chosen
    gammas = counted(prediction.table["gamma"].nunique(), "gamma")
    said = (
        f"{LABELS[model]} {models.at[model, 'bias']:+.1%}, at worst {models.at[model, 'worst_error']:+.1%} (mean over "
        f"{gammas}, on texts that no model was fitted on)."
    )
    if textbook in (None, model):
        return said[0].upper() + said[1:]
    return f"Capped geometric, for the drafts that were offered, {models.at[textbook, 'bias']:+.1%}; {said}"


@style.in_style
def prediction_figure(prediction: HeldOutPrediction, *, title: str) -> Figure:
    """Draw the relative error over gamma by model; the recommended and the capped geometric with intervals."""
    tried = list(dict.fromkeys(prediction.table["model"]))
    capped = tried[0]
    with_intervals = prediction.table["error_low"].notna().any()
    sure = f"{prediction.level:.0%} prompt-bootstrap intervals of the capped geometric and of the recommended model."
    caption = (
        f"{counted(prediction.prompts, 'prompt')}, fitted on half of them at γ = {prediction.fit_gamma} and tried on "
        f"the other, and the reverse. {sure if with_intervals else 'No intervals.'}"
    )
    figure, axes = style.new_figure(title, caption, height=style.HEIGHT + 0.9)
    axes.axhline(0, color=style.BLACK, linewidth=1.6, linestyle=(0, (1, 1.5)))
    for name in tried:
        part = prediction.table[prediction.table["model"] == name].sort_values("gamma")
        label, colour, dash, marker = _LINES[name]
        strong = name in (prediction.chosen, capped)
        errors = intervals(part, "error")
        whiskers = pictures.whiskers(errors) if strong and with_intervals else None
        shown = label.replace("same", "capped geometric") if name == capped else label
        axes.errorbar(part["gamma"], part["error"], yerr=whiskers, color=colour, linestyle=dash, marker=marker,
                      linewidth=2.4 if strong else 1.3, markersize=7 if strong else 5, label=shown, elinewidth=1.5,
                      zorder=4 if strong else 3)  # fmt: skip
        for gamma, error in zip(part["gamma"], errors, strict=True):
            style.point_tip(axes, gamma, error.estimate, f"{label}, γ {gamma}: {error:+.1%}")
    axes.set(xlabel="γ, depth of a draft in tokens", ylabel="predicted over measured, less 1")
    pictures.gamma_ticks(axes, sorted(prediction.table["gamma"].unique()))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, fontsize=10.5, columnspacing=1.2, handlelength=2.6
    )
    return figure


def prediction_in_words(prediction: HeldOutPrediction) -> str:
    """Say how well the recommended model predicts, and how much and in which direction the capped geometric misses."""
    chosen = prediction.models.iloc[0]
    tried = set(prediction.models["model"])
    capped_geometric = (name for name in ("capped_geometric.text", "capped_geometric.mle") if name in tried)
    model = next(capped_geometric, prediction.chosen)
    capped = prediction.table[prediction.table["model"] == model]
    gammas = f"{len(capped)} gammas" if len(capped) > 1 else "one gamma"
    start = (
        f"On prompts that it was not fitted on, the recommended model “{LABELS[prediction.chosen]}” predicts tokens "
        f"per round within {chosen['mean_error']:.1%} on average over {gammas} and errs by "
        f"{chosen['worst_error']:+.1%} at worst (gamma {chosen['worst_gamma']})."
    )
    worst = capped.loc[capped["error"].abs().idxmax()]
    size = f"{worst['error']:+.1%} at gamma {worst['gamma']:g}"
    subject = f"The model “{LABELS[model]}”"
    if not capped["error_low"].notna().any():
        return f"{start} {subject} is off by {size} at most; without intervals no miss can be called real."
    over, under = capped[capped["error_low"] > ROUNDING], capped[capped["error_high"] < -ROUNDING]
    if over.empty and under.empty:
        at_most = f"{interval(worst, 'error'):+.1%} at gamma {worst['gamma']:g}"
        return f"{start} {subject} does not miss significantly at any gamma: by {at_most} at most."
    sides = [
        f"{verb} significantly at gamma {', '.join(f'{gamma:g}' for gamma in part['gamma'])}"
        for verb, part in (("over-predicts", over), ("under-predicts", under))
        if len(part)
    ]
    return f"{start} {subject} {' and '.join(sides)}; its largest miss is {size}."
