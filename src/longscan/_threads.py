"""How the threads of OpenMP wait for work.

By default a thread of OpenMP that waits for the others keeps its processor busy for a while. If another process needs that
processor, the thread that all wait for does not run, and training becomes many times slower. With the policy "passive" a waiting
thread sleeps.

Measured by `longscan train pumps.csv --label worn --id pump --time second` (120 series of 200 steps), in seconds, on two
processors of an AMD EPYC, torch 2.13:

| | idle machine | another process keeps one processor busy |
|---|---|---|
| two threads, default | 27.9 | 208.5 |
| two threads, passive | 28.5 | 38.4 |
| one thread | 30.6 | 48.8 |
"""

import os
import sys

# Environment variables that set this policy: the standard one of OpenMP, that of GNU's and that of LLVM's implementation
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def let_waiting_threads_sleep() -> bool:
    """Set the policy "passive" for this process and those that it starts, and return whether it was set.

    OpenMP reads its variables when torch is imported, so that nothing is set after that, nor if the environment has one of
    `VARIABLES`.
    """
    if "torch" in sys.modules or any(name in os.environ for name in VARIABLES):
        return False
    os.environ["OMP_WAIT_POLICY"] = "passive"
    return True
