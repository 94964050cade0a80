"""The command `longscan automata`, and `longscan eval` of a model that it saved."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from longscan._errors import SettingError, setting_error, with_options
from longscan._files import write_user_file
from longscan._types import Doc
from longscan.cli._console import echo, print_table

if TYPE_CHECKING:
    from longscan.automata import CompiledAutomaton

OPTIONS = ("alphabet", "series", "phase", "layout", "dtype", "backend", "length", "word")


def automata(
    pattern: Annotated[str | None, Doc("regular expression with | * + ? ( ) and . for any letter")] = None,
    *,
    alphabet: Annotated[str | None, Doc("letters of the words (default: those of the pattern)")] = None,
    named: Annotated[str | None, Doc("instead of a pattern: parity, mod K, Dyck depth K, S3, S4, A5, ...")] = None,
    series: Annotated[Literal["abelian", "prime"], Doc("counters of the decomposition; prime: of prime length only")] = "abelian",
    phase: Annotated[Literal["grid", "float"], Doc("grid is exact for every length, float is the plain layer")] = "grid",
    layout: Annotated[Literal["minimal", "am", "ma"], Doc("order of the blocks; a is aussm, m is mamba")] = "minimal",
    dtype: Annotated[Literal["float32", "float64"], Doc("dtype of the weights")] = "float32",
    backend: Annotated[str, Doc("backend of the ops: auto, reference, eager, cpu or triton")] = "auto",
    length: Annotated[int | None, Doc("fail unless words of this length are certified")] = None,
    picture: Annotated[str | None, Doc("picture of the states and the residual stream (default: automaton.png)")] = None,
    save: Annotated[str | None, Doc("folder for the model, the picture and the graphs for Graphviz")] = None,
    word: Annotated[str | None, Doc("word to draw and to print step by step (default: draw a random word)")] = None,
) -> int:
    """Compile a regular expression or a named language into a model with exact weights.

    Examples:
        longscan automata "(ab|ba)*"
        longscan automata --named S3 --save runs/s3
    """
    from rich.table import Table

    from longscan import automata
    from longscan.automata.languages import KNOWN_NAMES, find_named
    from longscan.automata.scoring import random_words

    if (pattern is None) == (named is None):
        got = "neither" if pattern is None else f"{pattern!r} and {named!r}"
        raise SettingError(f"exactly one of a regular expression and `--named` must be given, got {got}")
    if named is not None and alphabet is not None:
        raise SettingError(f"`--alphabet` must be left out with --named, whose automaton has its own letters, got {alphabet}")
    if picture is not None:
        _check_picture(picture)
    if save is not None and Path(save).exists() and not Path(save).is_dir():
        raise SettingError(f"`--save` must be a folder, got {save}, which is a file")
    with _errors_of_options():
        dfa = automata.from_regex(pattern, alphabet) if pattern is not None else find_named(str(named))
        if dfa is None:
            raise setting_error("--named", named, f"one of {KNOWN_NAMES}")
        table = Table("", "", show_header=False, title=named or pattern)
        for row in automata.analyse(dfa).rows():
            table.add_row(*row)
        print_table(table)
        compiled = automata.compile(dfa, series=series, phase=phase, layout=layout, dtype=dtype, backend=backend, length=length)
        letters = random_words(compiled, 1, 40, avoid_sinks=True)[0].tolist()
        drawn = [compiled.dfa.alphabet[i] for i in letters] if word is None else word
        _write(compiled, drawn, picture, save)
        if word is not None:
            echo(str(compiled.explain(word)))
    return 0


@contextmanager
def _errors_of_options() -> Iterator[None]:
    """Raise SettingError in place of ValueError and OSError, with the names of the command's options."""
    from longscan.cli.runs import errors_as_lines

    try:
        with errors_as_lines():
            yield
    except SettingError as error:
        raise SettingError(with_options(str(error), OPTIONS)) from error


def _check_picture(name: str) -> None:
    """Raise SettingError if the name of a picture ends in a suffix that names none of Matplotlib's formats."""
    from matplotlib.backend_bases import FigureCanvasBase

    suffix = Path(name).suffix
    if suffix and suffix[1:].lower() not in FigureCanvasBase.filetypes:
        known = ", ".join(f".{one}" for one in sorted(FigureCanvasBase.filetypes))
        raise SettingError(f"`--picture` must be a file whose name ends in one of {known}, got {name!r}")


def _write(compiled: "CompiledAutomaton", word: str | list[str], picture: str | None, save: str | None) -> None:
    """Print the size of a compiled model, draw it on a word, and save it if a folder is given."""
    from longscan.automata.drawing import draw_model, write_dot

    figure, size = draw_model(compiled, word), compiled.size
    echo(f"model: blocks {size.spec}, d_model {size.d_model}, {size.parameters:,} parameters")
    echo(str(compiled.verify()))
    folder = None if save is None else Path(save)
    target = Path(picture or ("automaton.png" if folder is None else folder / "automaton.png"))
    content = io.BytesIO()
    figure.savefig(content, dpi=110, format=target.suffix[1:] or "png")
    echo(f"picture: {write_user_file(target, content.getvalue())}")
    if folder is not None:
        compiled.save(folder)
        echo(f"model: {folder}; graphs: {write_dot(compiled, folder / 'automaton.dot')}")


def evaluate_automaton(folder: str, split: str, checkpoint: str) -> int:
    """Score a model that `longscan automata --save` wrote, on all short words and on long random ones."""
    from rich.table import Table

    from longscan.automata import load
    from longscan.automata.scoring import scores
    from longscan.cli.runs import errors_as_lines

    if split != "test" or checkpoint != "selected":
        raise SettingError(f"`--split` and `--checkpoint` must be left out for the compiled model {folder}, which has neither")
    with errors_as_lines():
        compiled = load(folder)
    table = Table("words", "answers right", "states right", "best constant answer", title=f"{folder}, after each letter")
    for row in scores(compiled):
        table.add_row(row.words, f"{row.accuracy:.6f}", f"{row.states:.6f}", f"{row.constant:.4f}")
    print_table(table)
    echo(str(compiled.verify()))
    return 0
