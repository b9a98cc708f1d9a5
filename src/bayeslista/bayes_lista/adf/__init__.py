"""BayesLISTA as published: assumed density filtering, with priors by expectation propagation."""
