"""The trees of heads: experiments that set heads beside one another have one, whatever each kind's own is."""

from fixtures.small_parts import composed

from specdec.plan.plan import plan

DRAWN = [-1, -1, -1, 0, 0, 1, 3, 6]


def planned(*overrides):
    return plan(composed(*overrides))


def test_medusas_heads_have_their_own_tree():
    own, grounded = (planned(f"+drafter={name}").chosen.values.structure["parents"] for name in ("medusa", "grounded"))
    assert own != grounded == DRAWN


def test_bars_of_both_kinds_stand_on_one_tree():
    heads = planned("+experiment=grounded_bars", "+measurement.drafter_settings.medusa.drafter.model=other")
    chosen, (medusa,) = heads.chosen.values, (each.values for each in heads.drafters if each.method == "medusa")
    assert medusa.structure == chosen.structure and chosen.structure["parents"] == DRAWN
    assert medusa.drafter["model"] == "other"


def test_rules_are_compared_on_the_tree_of_the_page_of_claims():
    assert planned("+experiment=typical_acceptance").chosen.values.structure["parents"] == DRAWN
    other = planned("+experiment=typical_acceptance", "structure=tree", "structure.nodes=16")
    assert other.chosen.values.structure["parents"] is None
