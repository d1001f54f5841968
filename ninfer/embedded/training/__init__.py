"""Training of the embedded model: corpus, tokenizer, network, optimiser, export."""
