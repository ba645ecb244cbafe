"""What a set of heads can be made of, and the sentence for what it cannot."""

from fixtures.refusals import refused

from specdec.config import validated
from specdec.heads.heads_config import HeadsConfig

PLAIN = dict(
    name="x", count=4, grounded=False, mixer="mlp", layers=1, width=None, state="hidden", offset=0, prefix=False
)


def test_what_does_not_fit_is_named():
    for changes, words in (
        ({"count": 0}, "heads.count=0"),
        ({"output": "none"}, "heads.output='none'"),
        ({"mixer": "gru"}, "grounded=true"),
        ({"mixer": "attention"}, "attention over drafted tokens reads .* grounded=true"),
        ({"mixer": "gru", "grounded": True, "width": 8}, "width to null"),
        ({"state": "embeddings", "offset": 2}, "offset to 0"),
        ({"depth": 3}, "heads.depth"),
    ):
        with refused(words):
            validated(HeadsConfig, {**PLAIN, "output": "tied", **changes}, where="heads")
