"""From a Hugging Face checkpoint to an artifact (artifact spec, sections 11 to 13)."""
