"""NInfer serves one Qwen3.5/3.6/3.8 hybrid model from one ``.ninfer`` artifact.

Importing the package changes nothing: no device is probed, no environment is read, no thread is started.
"""

from ninfer import version

__version__ = version.VERSION
