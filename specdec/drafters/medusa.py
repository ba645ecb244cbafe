"""Medusa heads (Cai et al. 2401.10774): each predicts one of the next tokens from h_t alone."""

from specdec.drafters.base import drafters
from specdec.drafters.base.heads import HeadsDrafter


@drafters.register("medusa")
class Medusa(HeadsDrafter):
    """Lays the Cartesian product of the heads' choices on the structure's topology (2401.10774, 2.1.2): all nodes of a
    depth have one law, that of its head. One pass for all heads.
    """

    strategy, grounded, shipped = "medusa", False, "medusa"
