"""Grounded heads ("Not So Speculative Decoding", later Hydra, 2402.05109): each also reads what was drafted before."""

from specdec.drafters.base import drafters
from specdec.drafters.base.heads import HeadsDrafter


@drafters.register("grounded")
class Grounded(HeadsDrafter):
    """Continues each path of a draft by what the next head says after it (2402.05109, section 3), so that siblings have
    different children. One pass for each level, over all of its nodes that have children.
    """

    strategy, grounded, shipped = "grounded", True, "grounded"
