# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Does the formula say how many tokens a round yields?
#
# A round offers $\gamma$ draft tokens and ends with one token of the target's own. If every draft token is
# accepted with the same chance $\alpha$, whatever came before it, a round yields
# $\Omega = (1-\alpha^{\gamma+1})/(1-\alpha)$ tokens on average (Leviathan et al. 2023, arXiv:2211.17192).
# This notebook draws this *capped geometric*, checks it against the paper's own table, and lays the measured points of
# a run over it. The answer is the last cell, written anew from the numbers each time.

# %%
from IPython.display import Markdown

from specdec.analysis.figures import run_figures, theory_figures
from specdec.analysis.findings.run_sections import curves_section, lengths_section, standing_section, timeline_section
from specdec.analysis.findings.sentences import loops_note
from specdec.analysis.pages import notebook
from specdec.analysis.papers import paper_tables

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"
chosen = []  # one run id, or the folder of a run, instead of the newest run
published_csv = paper_tables.SHIPPED  # printed figures, to set beside the recomputed table

# %% [markdown]
# ## The capped geometric
#
# The lines part only where $\alpha$ is high: a longer draft pays if its last tokens still have a chance.
# Without a cap ($\gamma=\infty$) a round yields $1/(1-\alpha)$.

# %%
run_figures.expected_tokens()

# %% [markdown]
# ## Table 1 of the paper, recomputed
#
# Speedup (Theorem 3.8) and operations (Theorem 3.11) with a drafter that costs nothing, beside what is printed.

# %%
table_1 = paper_tables.leviathan_table_1(paper_tables.load_published(published_csv))
table_1.round(3)

# %% [markdown]
# ## Which gamma, and at what price
#
# Figure 3 of the paper: the best $\gamma$ over $\alpha$ when a drafter step costs $c$ of a target call. Figure 4: what
# each $\gamma$ gains, and the arithmetic that it takes, with a free drafter.

# %%
theory_figures.best_gamma()

# %%
theory_figures.speedup_and_operations()

# %% [markdown]
# If $\gamma$ could change from round to round, the most to be had is an oracle's speedup, which drafts just what will
# be accepted (section 3.5). The paper says up to about 60% more than the best fixed $\gamma$; the exact limit is
# $e/(e-1)$.

# %%
theory_figures.oracle_bound()

# %% [markdown]
# ## A run over the capped geometric
#
# The newest finished run of the experiment, or the one in `chosen`. Every line comes from the same prompts: *capped
# geometric* takes one $\alpha$ everywhere, *by position* lets acceptance differ with the depth in the draft, and
# *replay* knows, token by token, what would have been accepted.

# %%
run = notebook.own_run(tracking_uri, experiment, chosen)
curves = curves_section(run).ending(loops_note(run.metrics))
notebook.show(curves)

# %% [markdown]
# Where the run stands in the pictures above, at its own $\alpha$, $c$ and $\gamma$.

# %%
notebook.show(standing_section(run))

# %% [markdown]
# A few of its rounds to scale, with the baseline above (Figure 5 of the paper).

# %%
notebook.show(timeline_section(run))

# %% [markdown]
# A mean can agree by luck. The whole law of accepted lengths says more, and the time of a round says what the
# tokens cost.

# %%
notebook.show(lengths_section(run))

# %% [markdown]
# ## Lenience
#
# The rule can be told to accept more, $\min(1, p/(l\,q))$, for text that is no longer quite the target's
# (appendix A.5).

# %%
notebook.show(*notebook.study(tracking_uri, experiment, "lenience"))

# %% [markdown]
# ## Answer

# %%
Markdown(
    f"**{run.title}.** {curves.text[0]}\n\n"
    f"{run_figures.curve_in_words(run.points(), run.lines(), model='replay')}\n\n"
    f"{curves.text[1]}\n\n"
    f"{paper_tables.table_1_in_words(table_1)}"
)
