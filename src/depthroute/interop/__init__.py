"""Other libraries' ways in and out of what was trained here. They all need transformers, the extra `hf`."""

from depthroute.errors import RunError

try:
    import transformers  # noqa: F401
except ImportError:
    raise RunError("Hugging Face models need transformers: pip install 'depthroute[hf]'") from None
