"""The error that the command line shows as one line."""


class SettingError(ValueError):
    """A setting, file or run directory that cannot be used; the message is one line and fit for a user's eyes."""
