"""Language modelling: predict the next byte of any file."""

from longscan.tasks.language.base import LanguageTask as LanguageTask
from longscan.tasks.language.text import ByteText as ByteText
