"""All cases. A new one goes into one of the files here; a new file is entered below."""

from cases import accuracy, automata, blocks, loaders, ops, scaling, survival, systems

CASES = (
    *ops.CASES,
    *blocks.CASES,
    *accuracy.CASES,
    *scaling.CASES,
    *systems.CASES,
    *loaders.CASES,
    *automata.CASES,
    *survival.CASES,
)
