"""The look of every figure, and the shapes of picture that all share."""
