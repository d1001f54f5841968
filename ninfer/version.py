"""The one place that states the version of the package."""

VERSION = "0.1.0"
