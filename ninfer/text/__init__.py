"""Text in and out: tokenizer, chat templates, and the parsing of what a model writes. No tensors, no waiting."""
