"""Training: one typed recipe base, one loop, and a student for each kind of thing that is trained."""
