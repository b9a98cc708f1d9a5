"""The proximal gradient methods ISTA and FISTA, and training of their unrolled network, LISTA."""
