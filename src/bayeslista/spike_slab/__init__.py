"""The spike-and-slab model and its inference engines: VAMP and EP layers, and samplers of the support."""
