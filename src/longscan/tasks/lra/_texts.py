"""Classification of texts whose tokens are bytes, or the frequent characters of the training texts."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from longscan._types import Doc
from longscan.tasks._text import Alphabet, TokenLevel, frequent_characters
from longscan.tasks.examples import SequenceClassification


@dataclass(frozen=True, kw_only=True)
class TextClassification(SequenceClassification):
    """A task whose examples are texts, read from the files in `data_dir`."""

    data_dir: Annotated[str | None, Doc("folder of the files with the texts")] = None
    level: TokenLevel = "bytes"

    @classmethod
    @abstractmethod
    def _training_texts(cls, data_dir: str | None) -> list[bytes]:
        """Return all texts of the training files in UTF-8."""

    @property
    def _alphabet(self) -> Alphabet:
        return Alphabet(None if self.level == "bytes" else _training_characters(type(self), self.data_dir))


@lru_cache(maxsize=4)
def _training_characters(kind: type[TextClassification], data_dir: str | None) -> tuple[str, ...]:
    return frequent_characters(kind._training_texts(data_dir), 15)
