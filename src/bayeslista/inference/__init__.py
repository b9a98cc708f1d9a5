"""How belief, or weights, meet data: one module an algorithm, pure functions of arrays.

A step takes a state and data, and returns the next state with an ``Info`` that counts what was left out on the way.
"""
