"""Pure functions, clean in float64: discretisations, HiPPO, initial values, step sizes, complex arithmetic on real pairs."""
