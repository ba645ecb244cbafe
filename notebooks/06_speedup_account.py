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
# # Where did the speedup go?
#
# Theory promises $\Omega(\alpha,\gamma)$ tokens for one call of the target. The wall clock says otherwise. Between
# the two stand seven factors whose product is exactly the measured speedup: shorter offers and ends of texts,
# dependence, drift, the drafter's time, the verification's, the loop's, and the baseline's own. This notebook draws
# them for every drafter that was run. The answer is the last cell, written anew from the numbers each time.

# %%
from IPython.display import Markdown

from specdec.analysis.account.account_sections import account_sections
from specdec.analysis.pages import notebook

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"
chosen = []  # run ids, or folders of runs, instead of those of the overlay

# %% [markdown]
# ## The account, drafter by drafter
#
# The runs in `chosen`; without any, the newest run of every drafter of the overlay `notebooks`, or, without such
# runs, of your own; at the primary gamma. Read a figure from the top: each
# bar multiplies what stands above it. Intervals resample prompts, all factors at once.

# %%
runs = notebook.own_runs(tracking_uri, experiment, chosen)
sections = [account_sections(run) for run in runs]
for run, parts in zip(runs, sections, strict=True):
    notebook.show(*parts[:2], heading=run.title)

# %% [markdown]
# ## Answer

# %%
Markdown(notebook.answers(runs, [account for account, *_ in sections], paragraphs=2))
