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
# # Compared with what?
#
# Every registered drafter on the same prompts, in one session, interleaved: each in the structure of its own YAML, then
# all in chains and in trees of one size, so that every method verifies equally many tokens. Speedup and tokens per
# round with intervals, how firmly each rank is held, what a round costs, what the outputs are, and what had to be
# trained. Published figures of the same methods stand at the end, apart: they are of another target.
#
# `python -m specdec.run +experiment=all_drafters` makes the run that this notebook reads.

# %%
from IPython.display import Markdown

from specdec.analysis.pages import notebook

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"
chosen = []  # the run id or the folder of a study, instead of the newest

# %%
compared = notebook.study(tracking_uri, experiment, "all_drafters", chosen)
notebook.show(*compared)

# %% [markdown]
# ## Answer

# %%
Markdown(notebook.firsts(*compared))
