"""Pure functions, clean in float64: discretisations, HiPPO, initial values, step sizes, complex arithmetic on real pairs,
regression with errors that resemble their neighbours."""
