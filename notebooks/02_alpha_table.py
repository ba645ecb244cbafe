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
# # Do our drafters' alphas look like Leviathan's table?
#
# Table 3 of Leviathan et al. (2023, arXiv:2211.17192) prints $\alpha = E\big[\sum_x\min(p(x), q(x))\big]$ over
# 10,000 tokens of the target's own text, for unigram, bigram and small-model drafters at temperatures 0 and 1. This
# notebook shows the same quantity for your models, measured by the same protocol, and the paper's rows apart from
# it: an $\alpha$ belongs to a pair of models, a text and a tokenizer, so only the shape of the two tables can be
# compared. The answer is the last cell, written anew from the numbers each time.

# %%
from IPython.display import Markdown, display

from specdec.analysis.papers import paper_tables
from specdec.analysis.research import alpha_table

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"
chosen = []  # run ids, or folders of runs, instead of those of the overlay
published_csv = paper_tables.SHIPPED  # printed figures: the paper's rows

# %% [markdown]
# ## Measured here
#
# The newest run of every setting, drafter and temperature that the overlay `leviathan_alpha` has left. A setting is a
# target, its dtype, the prompts and the hardware. Intervals come from resampling prompts.

# %%
measured = alpha_table.alpha_table(alpha_table.alpha_runs(tracking_uri, experiment, chosen))
measured.round(3)

# %%
display(*alpha_table.measured_figures(measured))

# %% [markdown]
# ## Printed in the paper
#
# Other targets and other text, so a table and figures of their own; the paper states neither intervals nor, for this
# table, hardware.

# %%
printed = paper_tables.leviathan_table_3(paper_tables.load_published(published_csv))
display(printed)

# %%
display(*alpha_table.printed_figures(printed))

# %% [markdown]
# ## Answer

# %%
parts = [
    alpha_table.alpha_in_words(measured),
    alpha_table.printed_in_words(printed),
    alpha_table.comparison_in_words(measured, printed),
]
Markdown("\n\n".join(part for part in parts if part))
