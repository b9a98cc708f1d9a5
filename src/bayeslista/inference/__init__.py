"""How belief meets data: one module an algorithm.

Each has ``init(…) -> State`` and ``step(State, …) -> State, Info``, pure functions of arrays.
"""
