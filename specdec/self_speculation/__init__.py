"""Parts of a target that draft for it: how well a part agrees with the whole, and which part to take."""
