"""BayesLISTA: an unrolled network with Gaussian weights, learned by variational inference."""
