"""Train models on the word problems of seven groups, on words that checksums fix, and score them after every letter.

    python benchmarks/state_tracking.py --out results/automata/tracking.jsonl    all groups and models, three seeds
    python benchmarks/state_tracking.py --groups A5 --models pdssm "s4d*2" --length 12 --steps 1500 --out automata/a5.jsonl
    python benchmarks/state_tracking.py --checksums       print the checksums of the words

The groups are Z2, Z5, S3, A4, S4, A5 and S5, the letters their generators. A model reads a word and predicts after each letter
the product of the letters so far. Words are a function of group, split, seed and number alone (splitmix64), so they are the same
on all machines and with all versions of torch and NumPy: seed S trains on the stream of seed S, and all models are tested on the
same 500 words of 512 letters. `CHECKSUMS` has the SHA-256 of the test words and of the first 1,000 training words of seed 0, with
their answers; a run raises an error if they differ.

All models have the same width, number of updates and words; a row has the number of parameters. The number of states of a model
is the order of the group, which PD-SSM needs, and at least 16. --out gets a row for each model and seed, when it is trained; the
same command continues with those that have none.
"""

import argparse
import hashlib
import math
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longscan import automata
from longscan.models import SequenceModel, optimizer_groups
from longscan.report.records import append_record, read_records
from longscan.tasks.formal._examples import splitmix64
from longscan.training.run import commit, device_name

GROUPS = {"Z2": "mod 2", "Z5": "mod 5", "S3": "S3", "A4": "A4", "S4": "S4", "A5": "A5", "S5": "S5"}
MODELS = ("pdssm", "s4d*2", "mamba*2", "aussm*2", "gated_deltanet*2", "gru")
SPLITS = {"train": (1000, 64), "test": (500, 512)}  # number and length of the words that have a checksum
LENGTHS = (8, 12, 16, 24, 32, 40, 64, 128, 256, 512)  # of the prefixes that are scored
MIN_STATES = 16
WARMUP = 0.05  # share of the updates in which the learning rate rises; then it falls along half a cosine to 0
CHECKSUMS: dict[str, dict[str, str]] = {
    "Z2": {
        "train": "85a0fa5d2642fe181fc3fe36e3cb23045d20d1aa23d44e010c9921783c660d0b",
        "test": "2403935f713d00619e21ad3caf5d29db8061e342f6da9d52b7cc885db3f36804",
    },
    "Z5": {
        "train": "384852b435374bb736b55ac934533a31f07b608e8547a3e83d08a9f7820db1dc",
        "test": "ee54d6c65f931ab4c22db3bf68acba952048703c43ab42842d476e7b757e9ac9",
    },
    "S3": {
        "train": "f23d6f60c711bf8698d723299d71876d73ecd8dd9d37622a9d3acc884065fe2c",
        "test": "083993d22b6835778ee836d52b3e78d6497b5acd708aa9b6eb9ab1e9586a3dd3",
    },
    "A4": {
        "train": "05fc0d09c848bd2750b7ec02fd4395605baa8b4e14297bd52806f33ad24d52a9",
        "test": "185326228d1125342bb5b0226ff5aa49108fb31d8ce68d9377411e45003d255a",
    },
    "S4": {
        "train": "3a4f3584f7718fb9d2d4d3b5b7af523af5a0762fcd456ef5b1824f824fe71e14",
        "test": "5f9c9cd33f8a84e9797dfae81c456c41749bfafcdafade96f281ee99234ba9eb",
    },
    "A5": {
        "train": "80c6674a9c8f268fd753181e8f7bc062e867d60e6b75e451461dcfec3d2dc113",
        "test": "b914ca76357ce1803c954435ac4df9fb9d70f5affab2ad3481fcddc26e9243ea",
    },
    "S5": {
        "train": "891ed00582253a6a5e64f3f73ab405a8077a93a084595da6ec10f84d485978c2",
        "test": "6a032b9f7a2e99314bacf297a438c3153a1562b15fe8697c7122866936ba496e",
    },
}


def random_words(letters: int, split: str, seed: int, numbers: np.ndarray, length: int) -> np.ndarray:
    """Return the words of these numbers (words,) below 2^32: letters (words, length) int64, uniform and independent.

    The first letters of a word do not depend on `length`, of at most 2^16.
    """
    key = np.uint64(list(SPLITS).index(split) << 60 | seed << 48)
    counters = key | numbers.astype(np.uint64)[:, None] << np.uint64(16) | np.arange(length, dtype=np.uint64)
    return (splitmix64(splitmix64(counters)) % np.uint64(letters)).astype(np.int64)


def checksum(dfa: automata.DFA, split: str) -> str:
    """Return the SHA-256 of the first words of a split, for seed 0, and of the states after their letters, a byte for each."""
    count, length = SPLITS[split]
    words = random_words(len(dfa.alphabet), split, 0, np.arange(count), length)
    return hashlib.sha256(words.astype(np.uint8).tobytes() + dfa.run(words).astype(np.uint8).tobytes()).hexdigest()


def word_problem(group: str) -> automata.DFA:
    """Return the word problem of a group, with a state for each element. RuntimeError if its words are not those of CHECKSUMS."""
    dfa = automata.named(GROUPS[group]).minimise()
    for split, expected in CHECKSUMS[group].items():
        found = checksum(dfa, split)
        if found != expected:
            raise RuntimeError(f"the words of {group}, {split}, must have the checksum {expected}, got {found}")
    return dfa


def learning_rate(step: int, steps: int) -> float:
    """Return the share of the highest learning rate at an update: a linear rise, then half a cosine to 0."""
    return min(1.0, (step + 1) / (WARMUP * steps)) * (0.5 + 0.5 * math.cos(math.pi * step / steps))


def train(dfa: automata.DFA, spec: str, seed: int, settings: argparse.Namespace, device: torch.device) -> SequenceModel:
    """Return a model that was trained for `settings.steps` updates on prefixes of `settings.length` letters."""
    torch.manual_seed(seed)
    model = SequenceModel.from_spec(
        spec, d_model=settings.width, d_state=max(MIN_STATES, dfa.size), d_output=dfa.size, pooling="none",
        vocab_size=len(dfa.alphabet),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(optimizer_groups(model, weight_decay=0.01), lr=settings.rate)
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(settings.steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * learning_rate(step, settings.steps)
        numbers = np.arange(step * settings.batch, (step + 1) * settings.batch)
        words = random_words(len(dfa.alphabet), "train", seed, numbers, settings.length)
        inputs, states = (torch.from_numpy(x).to(device) for x in (words, dfa.run(words)))
        loss = cross_entropy(model(inputs).flatten(0, 1), states.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % settings.every == 0:
            print(f"  update {step + 1}: loss {loss.item():.4f}", flush=True)
    return model


@torch.no_grad()
def scores(model: SequenceModel, dfa: automata.DFA, longest: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Return the share of right states over all prefixes, and of words without a wrong state, by length up to `longest`."""
    count = SPLITS["test"][0]
    words = random_words(len(dfa.alphabet), "test", 0, np.arange(count), longest)
    parts: list[Tensor] = [model.eval()(part.to(device)).argmax(-1).cpu() for part in torch.from_numpy(words).split(100)]
    right = torch.cat(parts) == torch.from_numpy(dfa.run(words))
    lengths = [n for n in LENGTHS if n <= longest]
    return {
        "states": {str(n): float(right[:, :n].double().mean()) for n in lengths},
        "exact": {str(n): float(right[:, :n].all(1).double().mean()) for n in lengths},
    }


def main() -> int:
    """Train the models that have no rows yet, or print the checksums; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file that gets the rows, in a folder automata")
    parser.add_argument("--groups", nargs="+", choices=tuple(GROUPS), default=tuple(GROUPS))
    parser.add_argument("--models", nargs="+", default=MODELS, help="specs of the models")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--steps", type=int, default=10_000, help="updates")
    parser.add_argument("--length", type=int, default=40, help="letters of a training word, at most 65,536")
    parser.add_argument("--longest", type=int, default=SPLITS["test"][1], help="letters of a test word, at most 512")
    parser.add_argument("--width", type=int, default=64, help="d_model")
    parser.add_argument("--batch", type=int, default=64, help="words of an update")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--every", type=int, default=500, help="updates between two lines of output")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further model is started")
    parser.add_argument("--checksums", action="store_true", help="only print the checksums of the words")
    given = parser.parse_args()
    if given.checksums:
        for group, name in GROUPS.items():
            print(f'    "{group}": {{')
            for split in SPLITS:
                print(f'        "{split}": "{checksum(automata.named(name).minimise(), split)}",')
            print("    },")
        return 0
    if given.out is None:
        parser.error("--out must be given, except with --checksums")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = {
        "steps": given.steps,
        "train_length": given.length,
        "d_model": given.width,
        "batch": given.batch,
        "rate": given.rate,
    }
    started = time.perf_counter()
    for group in given.groups:
        dfa = word_problem(group)
        for seed in given.seeds:
            for spec in given.models:
                wanted: dict[str, Any] = {"case": group, "blocks": spec, "seed": seed, **settings}
                rows = read_records(given.out) if given.out.exists() else []
                if any(wanted.items() <= row.items() for row in rows):
                    continue
                if time.perf_counter() - started > given.limit:
                    print("not done: the same command continues")
                    return 0
                print(f"{group} {spec} seed {seed}", flush=True)
                before = time.perf_counter()
                model = train(dfa, spec, seed, given, device)
                row = wanted | {
                    "elements": dfa.size, "d_state": max(MIN_STATES, dfa.size), "checksum": CHECKSUMS[group]["test"],
                    "parameters": sum(p.numel() for p in model.parameters()), "seconds": round(time.perf_counter() - before, 1),
                    "words": [[SPLITS["test"][0], given.longest]], **scores(model, dfa, given.longest, device),
                    "commit": commit(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "device": device_name(device),
                    "torch": torch.__version__, "command": shlex.join(["python", "benchmarks/state_tracking.py", *sys.argv[1:]]),
                }  # fmt: skip
                append_record(given.out, row)
                print(f"  states {row['states']}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
