# From plan to StarPU.
