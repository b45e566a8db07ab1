"""The library's own exceptions. Each message is one line that names what is wrong and says what to do.

The command line prints such a message alone and exits with 2; anything else that escapes is a bug of ours.
"""


class DepthrouteError(Exception):
    """Base of everything that a user can mend."""


class ArgumentError(DepthrouteError, ValueError):
    """A function of the library was called with something that it cannot compute."""


class ConfigError(DepthrouteError, ValueError):
    """A configuration says something unknown, contradictory or out of range."""


class DataError(DepthrouteError):
    """A corpus, tokenizer, shard or index cannot be used as it is."""


class RunError(DepthrouteError):
    """A run or study directory cannot be used, or a run had to stop."""


def lacks_memory(error: Exception) -> bool:
    """Whether there was not enough memory. On a CPU torch raises a bare RuntimeError, which its words alone tell."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in str(error) for w in words))
