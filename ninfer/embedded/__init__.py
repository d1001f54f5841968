"""The small trained model of the package: its data, its training, its evaluation (issue 3, docs/embedded-model.md)."""
