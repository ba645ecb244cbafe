"""Files of results: a missing one says what makes it, and one that holds something else is named."""

import pytest

from specdec.analysis.research import claim_results, heads_ablation, heads_accuracy, heads_tree
from specdec.errors import UsageError

READERS = [  # reads a file, what it holds, the benchmark that makes it
    (claim_results.load_results, "measurements of claims", "test_paper_claims.py"),
    (heads_ablation.load_ablation, "ablations of heads", "test_heads_ablation.py"),
    (heads_accuracy.load_accuracy, "accuracies of heads", "test_heads_accuracy.py"),
    (heads_tree.load_trees, "trees of heads", "test_heads_tree.py"),
]


@pytest.mark.parametrize(("read", "holds", "made_by"), READERS)
def test_a_file_of_something_else_is_named_with_what_makes_it(tmp_path, read, holds, made_by):
    path = tmp_path / "results.json"
    with pytest.raises(UsageError, match=f"do not exist: .*{made_by}"):
        read(path)
    for content in ("", "[1]", "{}", '{"figures": 3}', '{"figures": [{"name": "x"}]}'):
        path.write_text(content)
        with pytest.raises(UsageError, match=f"holds no {holds}: .*{made_by}"):
            read(path)
