"""Sparse coding with calibrated uncertainty."""

from importlib.metadata import version
from typing import TYPE_CHECKING

__all__ = [
    "FISTA",
    "ISTA",
    "LISTA",
    "BayesLISTA",
    "NumericalWarning",
    "SparseCodingTransformer",
    "SpikeSlab",
    "SpikeSlabNet",
    "SpikeSlabRegressor",
    "cache_compiled",
    "load",
]
__version__ = version("bayeslista")

if TYPE_CHECKING:
    from bayeslista.distributions import SpikeSlab
    from bayeslista.estimators import (
        FISTA,
        ISTA,
        LISTA,
        BayesLISTA,
        NumericalWarning,
        SparseCodingTransformer,
        SpikeSlabNet,
        SpikeSlabRegressor,
        load,
    )
    from bayeslista.numerics.compilation import cache_compiled
else:

    def __getattr__(name: str) -> object:
        """Import what is asked for when it is asked for: the command line shows its help without JAX."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "cache_compiled":
            from bayeslista.numerics import compilation

            return compilation.cache_compiled
        from bayeslista import distributions, estimators

        return getattr(distributions if name == "SpikeSlab" else estimators, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
