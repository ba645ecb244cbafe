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
# # Do the published numbers agree with their own theory?
#
# A paper that prints $\alpha$, $\gamma$ and a speedup prints its own ceiling: no speedup can pass
# $\Omega(\alpha,\gamma)$ tokens per round, nor $1/(1-\alpha)$ at any length, if acceptance is independent. Tokens per
# round at two lengths must come from one $\alpha$; rate over overhead must be the speedup; a formula's value must be
# the one that is printed. This notebook checks every table of a file of printed figures that theory ties together. A
# figure stands for all values that round to it. Then it sets what the papers claim beside what this project measures.
# The answer is the last cell, written anew from the numbers each time.

# %%
from IPython.display import Markdown

from specdec.analysis.figures import run_figures
from specdec.analysis.pages import notebook
from specdec.analysis.papers import paper_sections, paper_tables
from specdec.analysis.research import claims

# %% tags=["parameters"]
published_csv = paper_tables.SHIPPED  # printed figures: columns as in specdec.analysis.papers.paper_tables.COLUMNS

# %% [markdown]
# ## The ceiling
#
# Theory alone: what a round yields at most.

# %%
run_figures.expected_tokens()

# %% [markdown]
# ## The checks

# %%
printed = paper_tables.load_published(published_csv)
checks = paper_sections.paper_sections(printed)
notebook.show(*checks)

# %% [markdown]
# ## What the papers claim, and what is found here
#
# From committed results, made on the pocket target: `guide/papers.md` has the same table, and every figure and table of
# the papers with what redraws it.

# %%
claimed = claims.claims_section()
notebook.show(claimed)

# %% [markdown]
# ## Answer

# %%
table_1 = paper_tables.table_1_in_words(paper_tables.leviathan_table_1(printed))
Markdown(f"- {table_1}\n{notebook.firsts(*checks, claimed)}")
