"""Dynamical systems: a pendulum in images, the FitzHugh-Nagumo neuron, a simulated walker, people's movements."""

from longscan.tasks.dynamics.activity import HumanActivity as HumanActivity
from longscan.tasks.dynamics.fitzhugh_nagumo import FitzHughNagumo as FitzHughNagumo
from longscan.tasks.dynamics.pendulum import Pendulum as Pendulum
from longscan.tasks.dynamics.walker import Walker as Walker
