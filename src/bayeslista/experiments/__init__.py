"""What the paper's experiments, and comparisons with them, are made of: one module a subject."""
