"""The paper's figures: what each compares, and the machinery that computes, keeps and draws it."""
