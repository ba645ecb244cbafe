"""All independent heads in one pass are the heads one by one."""

import pytest
import torch

from specdec.heads.choices import IndependentChoices


@pytest.mark.parametrize("output", ["tied", "shared", "own"])
@pytest.mark.parametrize("blocks", [{}, {"layers": 3}, {"width": 24, "layers": 2}])
def test_logits_are_those_of_the_heads(target, random_heads, output, blocks):
    heads = random_heads(target, output=output, **blocks)
    states = torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parallel, nothing = IndependentChoices(heads).logits, torch.zeros(1, 0, dtype=torch.long)
    for count in (1, 3, 5):
        together = parallel(states, count)
        assert together.shape == (count, 3, heads.vocab_size)
        for sequence, state in enumerate(states):
            expected = [heads.logits(k, heads.draft_features(k, state, nothing)) for k in range(1, count + 1)]
            torch.testing.assert_close(together[:, sequence], torch.cat(expected), rtol=1e-12, atol=1e-12)
