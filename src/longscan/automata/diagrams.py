"""Where things stand in the drawings of automata: pure geometry, shared by the still pictures and the page that steps."""

import math
from typing import NamedTuple

import numpy as np

from longscan.automata.dfa import DFA

BESIDE = math.radians(25)  # between an edge's ends and the straight line, about
AT_RIM = 0.85  # 1 - t of the parabola where it crosses a state's rim


class Arrow(NamedTuple):
    """An edge: a curve (points, 2) from the rim of one state to that of another, its letters and where they stand."""

    source: int
    target: int
    curve: np.ndarray
    label: str
    at: tuple[float, float]


def circle(count: int) -> np.ndarray:
    """Places of `count` states on a circle of radius 1, clockwise from the left: (count, 2)."""
    if count == 1:
        return np.zeros((1, 2))
    angle = np.pi - 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def state_radius(count: int) -> float:
    """The radius of a state's disc that leaves room between `count` of them on the circle."""
    return min(0.2, 0.36 * math.sin(math.pi / max(count, 2)))


def _bend(count: int) -> float:
    """How far an edge swings out, as a share of its length. Lines from one of `count` places on a circle to the others are pi / count
    apart; edges leave and arrive at an uneven multiple of half of that beside them, so that none begins where another ends.
    """
    half = math.pi / count / 2
    beside = min(((k + 0.5) * half for k in range(count)), key=lambda angle: abs(angle - BESIDE))
    return math.tan(beside) / 4 / AT_RIM


def arrows(dfa: DFA) -> list[Arrow]:
    """The edges of a state diagram on the circle: bent to the right, so that two between the same states part; loops outside."""
    places, radius, share = circle(dfa.size), state_radius(dfa.size), _bend(dfa.size)
    result = []
    for (source, target), letters in dfa.edges().items():
        p, q = places[source], places[target]
        label = ",".join(letters)
        if source == target:
            out = p / np.linalg.norm(p) if np.linalg.norm(p) else np.array([0.0, 1.0])
            side = np.array([-out[1], out[0]])
            turn = np.linspace(0.8, 2 * np.pi - 0.8, 30)[:, None]
            centre = p + out * radius * 1.55
            curve = centre - 0.75 * radius * (np.cos(turn) * out + np.sin(turn) * side)
            tip = p + out * radius * 2.85
        else:
            along = (q - p) / np.linalg.norm(q - p)
            right = np.array([along[1], -along[0]])
            bend = share * np.linalg.norm(q - p)
            middle = (p + q) / 2 + 2 * bend * right
            t = np.linspace(0, 1, 60)[:, None]
            curve = (1 - t) ** 2 * p + 2 * t * (1 - t) * middle + t**2 * q
            outside = (np.linalg.norm(curve - p, axis=1) > radius * 1.05) & (np.linalg.norm(curve - q, axis=1) > radius * 1.15)
            curve = curve[outside]
            tip = (p + q) / 2 + (bend + 0.07) * right
        result.append(Arrow(source, target, curve, label, (float(tip[0]), float(tip[1]))))
    return result


def pinned(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Directions of the values of a counter, and of the borders between the sectors that decode to them: two (count, 2)."""
    angle = 2 * np.pi * np.arange(count) / count
    half = angle + np.pi / count
    return np.stack([np.cos(angle), np.sin(angle)], 1), np.stack([np.cos(half), np.sin(half)], 1)
