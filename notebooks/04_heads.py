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
# # What do heads draft, and does grounding them pay?
#
# Heads predict several of the next tokens from one hidden state of the target: Medusa's (2401.10774) each for itself,
# grounded ones ("Not So Speculative Decoding", later Hydra, 2402.05109) with what was drafted before. This notebook
# shows how well they learn, what grounding is worth on one tree and the same prompts, which part of a grounded head
# matters, whether typical acceptance holds its rate where rejection loses it, and how large a tree is worth verifying.
# The paper found +0.43 tokens per step for Vicuna-7B; the pocket target is some hundred times smaller. The answer is
# the last cell, written anew from the numbers each time. A part whose runs are missing says which command makes them.

# %%
from IPython.display import Markdown

from specdec.analysis.pages import notebook
from specdec.analysis.papers import paper_sections, paper_tables
from specdec.analysis.research import heads_ablation, heads_accuracy, heads_tree

# %% tags=["parameters"]
tracking_uri = "sqlite:///../mlflow.db"  # where runs were logged, seen from this folder
experiment = "specdec"
chosen = []  # run ids or folders of studies and of runs, instead of the newest
ablations = heads_ablation.RESULT  # what the benchmark of ablations found
tree_results = heads_tree.RESULT  # and that of trees
published_csv = paper_tables.SHIPPED  # printed figures: columns as in specdec.analysis.papers.paper_tables.COLUMNS

# %% [markdown]
# ## Accuracy over training
#
# From the histories beside the heads that come with specdec: with one choice and with five.

# %%
training = heads_accuracy.training_section(heads_accuracy.shipped_histories())
notebook.show(training)

# %% [markdown]
# ## Does one choice of a grounded head beat five of an independent one?
#
# The paper says so of head 4. Both kinds are judged at the same positions of held-out text; texts are resampled.

# %%
choices = heads_accuracy.accuracy_section()
notebook.show(choices)

# %% [markdown]
# ## Grounded heads, and what matters in them
#
# Each variant trained on the same text with a small budget, and decoded on one tree and the same prompts. Accuracy is
# that along the target's own text; differences are paired by prompt.

# %%
variants = heads_ablation.ablation_sections(ablations)
notebook.show(*variants)

# %% [markdown]
# ## Accuracy by head, a panel for each variant
#
# The paper's Figures 5 to 8, for ours: held-out text, one choice and five, beside the plain grounded heads.

# %%
panels = heads_ablation.panels_section(ablations)
notebook.show(panels)

# %% [markdown]
# ## The heads that come with specdec, decoded live
#
# Rate over overhead is the speedup, for every category.

# %%
live = notebook.live("heads", tracking_uri, experiment, chosen)
notebook.show(*live)

# %% [markdown]
# ## Throughput and rate by category: plain, independent, grounded
#
# Figures 3 and 4 of the paper, from one session that decodes every prompt by all three in turn. The paper's ratio of
# grounded over independent heads is 1.07.

# %%
bars = notebook.live("grounded_bars", tracking_uri, experiment)
notebook.show(*bars)

# %% [markdown]
# ## Typical acceptance against rejection as the temperature rises
#
# Medusa's paper accepts what is typical instead of what rejection sampling would, because the latter accepts less at
# higher temperatures. Text of typical acceptance is not the target's: the second part shows what it loses.
#
# Its argument is that rejection may refuse even a draft of the very same model, because both are sampled independently.
# Under min(1, p/q) it never does: identical laws accept everything, at every temperature. Exact match with an
# independent draw does refuse, and so does typical acceptance itself (theory 1.1, proven by enumeration in
# `tests/contracts/test_identical_draft.py`). What falls with the temperature is the overlap of *different* laws.

# %%
typical = notebook.study(tracking_uri, experiment, "typical_acceptance", chosen)
notebook.show(*typical)

# %% [markdown]
# ## How large a tree?
#
# More nodes accept more, and cost more to verify.

# %%
trees = notebook.study(tracking_uri, experiment, "tree_search", chosen)
notebook.show(*trees)

# %% [markdown]
# ## A tree found by search
#
# Searches of a tree against the one that was drawn by hand: jointly, for both kinds of heads and for each, and by each
# head's chances; and small trees beside full products of choices.

# %%
searched = heads_tree.tree_sections(tree_results)
notebook.show(*searched)

# %% [markdown]
# ## What was published
#
# Other models on other hardware: beside ours, never among them.

# %%
notebook.show(paper_sections.heads_section(paper_tables.load_published(published_csv)))

# %% [markdown]
# ## Answer

# %%
Markdown(notebook.firsts(training, choices, *variants, panels, *live, *bars, *typical, *trees, *searched))
