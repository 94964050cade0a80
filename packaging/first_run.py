"""Run the commands of README's "Install" and "Classify series" in an empty folder, and time each of them.

It needs Python alone, so that it can run in a container or chroot without anything else:

    python3 packaging/first_run.py --dist dist --commit 1234567
    python3 packaging/first_run.py --dist dist --commit 1234567 --busy    # another process keeps one processor busy

The two files that README names are made here: 120 pumps of 200 seconds, of which the worn ones have a second frequency, and 120
days of hourly prices. The result is one line of packaging/first_runs.jsonl: seconds and processor time of each command, and the
load of the machine before and after them. A command that fails ends the script without a line.
"""

import argparse
import csv
import datetime
import itertools
import json
import math
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "packaging" / "first_runs.jsonl"
SECTIONS = ("Install", "Classify series")


def read_commands(readme: str) -> list[str]:
    """The lines of the first block of shell commands of each section, without comments."""
    commands: list[str] = []
    for section in SECTIONS:
        text = readme.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
        block = re.search(r"```bash\n(.*?)```", text, re.DOTALL)
        if block is None:
            raise SystemExit(f"README.md must have a block of shell commands in its section {section!r}")
        commands += [line.split("  #")[0].strip() for line in block[1].splitlines() if line.strip()]
    return commands


def write_files(folder: Path) -> None:
    """Write pumps.csv (with the label `worn`), new.csv (five pumps without it) and prices.csv."""
    draw = random.Random(0)
    pumps = []
    for pump in range(120):
        worn, phase = pump % 2, draw.uniform(0, 2 * math.pi)
        for second in range(200):
            pressure = 3 + math.sin(0.3 * second + phase) + 0.4 * worn * math.sin(0.9 * second + phase) + draw.gauss(0, 0.3)
            current = 10 + 0.5 * math.cos(0.3 * second + phase) + draw.gauss(0, 0.2)
            pumps.append([f"P{pump:03d}", second, round(pressure, 3), round(current, 3), "yes" if worn else "no"])
    names = ["pump", "second", "pressure", "current", "worn"]
    write_csv(folder / "pumps.csv", names, pumps)
    write_csv(folder / "new.csv", names[:-1], [row[:-1] for row in pumps[:1000]])
    prices, start = [], datetime.datetime(2025, 1, 1)
    for hour in range(24 * 120):
        load = 50 + 20 * math.sin(2 * math.pi * hour / 24) + 8 * math.sin(2 * math.pi * hour / 168) + draw.gauss(0, 3)
        price = 40 + 0.6 * load + 10 * math.sin(2 * math.pi * (hour - 3) / 24) + draw.gauss(0, 3)
        date = (start + datetime.timedelta(hours=hour)).isoformat(sep=" ")
        prices.append([date, round(price, 2), round(load, 2)])
    write_csv(folder / "prices.csv", ["date", "price", "load"], prices)


def write_csv(path: Path, names: list[str], rows: list[list[object]]) -> None:
    """Write a table with a line of names."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])


def time_commands(commands: list[str], folder: Path) -> tuple[list[float], list[float]]:
    """Run the commands in one shell; return the seconds of each, and its processor time as the shell's `times` sums it."""
    script = "set -e\n" + "".join(f"{command}\ndate +%s.%N >> times.txt\ntimes >> processor.txt\n" for command in commands)
    start = time.time()
    done = subprocess.run(["bash", "-c", script], cwd=folder, stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(f"a command of README ended with {done.returncode}")
    ends = [start, *(float(line) for line in (folder / "times.txt").read_text().split())]
    minutes = re.findall(r"(\d+)m([\d.]+)s", (folder / "processor.txt").read_text())
    used = [60 * int(minute) + float(second) for minute, second in minutes]
    # `times` prints user and system time of the shell, then those of its children.
    sums = [0.0, *(sum(used[4 * index : 4 * index + 4]) for index in range(len(commands)))]
    seconds, processor = ([round(end - begin, 1) for begin, end in itertools.pairwise(points)] for points in (ends, sums))
    return seconds, processor


def processor_name() -> str:
    """The name of the processor, from /proc/cpuinfo where there is one."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return found[1] if found else platform.processor()


def main() -> None:
    """Run the commands and add the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder with the wheels")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--out", type=Path, default=RECORDS, help="file to which the result is added")
    parser.add_argument("--commit", required=True, help="commit from which the wheels were built")
    parser.add_argument("--busy", action="store_true", help="keep one processor busy by another process meanwhile")
    arguments = parser.parse_args()
    commands = read_commands(arguments.readme.read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        (folder / "dist").symlink_to(arguments.dist.resolve())
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if arguments.busy else None
        try:
            load = [os.getloadavg()[0]]
            seconds, processor_seconds = time_commands(commands, folder)
            load.append(os.getloadavg()[0])
        finally:
            if other is not None:
                other.kill()
        program = "import torch; print(torch.__version__)"
        torch = subprocess.run([folder / "env/bin/python", "-c", program], capture_output=True, text=True, check=True)
        record = {
            "date": f"{datetime.date.today()}",
            "commit": arguments.commit,
            "machine": f"{os.cpu_count()} processors, {processor_name()}",
            "busy": int(arguments.busy),
            "python": platform.python_version(),
            "torch": torch.stdout.strip(),
            "wheels": sorted(path.name for path in arguments.dist.glob("*.whl")),
            "commands": dict(zip(commands, seconds, strict=True)),
            "processor_seconds": dict(zip(commands, processor_seconds, strict=True)),
            "load": load,
            "reports": sorted(f"{path.relative_to(folder)}" for path in folder.glob("runs/*/report.html")),
        }
    with arguments.out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
