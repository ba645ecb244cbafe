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
# # Chain, rows or tree?
#
# A draft need not be one guess: k rows of width w (N-Grammys, 2411.03786) or a token tree are verified in the same
# call. More guesses accept more, and more tokens cost more. This notebook puts the two sides together: what blocks of
# rows accept and how fast they are; how much longer a call takes on them; and what chain, rows and tree make of the
# *same* number of draft nodes, replayed and decoded live. The answer is the last cell, written anew from the numbers
# each time. A part whose runs are missing says which command makes them.

# %%
from IPython.display import Markdown

from specdec.analysis.pages import notebook

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"
chosen = []  # run ids or folders of studies and of runs, instead of the newest

# %% [markdown]
# ## The grid of rows
#
# Tokens per call and speedup over k and w. Rounds come from a replay of the target's own greedy texts, which is exact;
# seconds from measured calls, drafts and commits, checked by live runs in the corners.

# %%
grid = notebook.study(tracking_uri, experiment, "grid", chosen)
notebook.show(*grid)

# %% [markdown]
# ## The phase transition
#
# How much longer a call takes on a block than on one row of width 1, evaluated as a batch of rows, as in the paper, and
# packed into one sequence. While a machine waits for its memory, further tokens are nearly free; once it computes as
# long as it reads, each has its price.

# %%
transition = notebook.study(tracking_uri, experiment, "phase_transition", chosen)
notebook.show(*transition)

# %% [markdown]
# ## The same number of draft nodes, replayed
#
# A chain of n, rows with k x w = n, and the best tree of n nodes. The shape of rows and the tree are chosen by one half
# of the prompts and judged on the other.

# %%
budget = notebook.study(tracking_uri, experiment, "equal_budget", chosen)
notebook.show(*budget)

# %% [markdown]
# ## The same number of draft nodes, decoded live
#
# Three runs at one budget. What a shape accepts beyond the chain, and which part of a round takes it away.

# %%
live = notebook.live("chain_rows_tree", tracking_uri, experiment, chosen)
notebook.show(*live)

# %% [markdown]
# ## Answer

# %%
Markdown(notebook.firsts(*grid, *transition, *budget, *live))
