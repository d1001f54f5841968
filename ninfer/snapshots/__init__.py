"""Sessions in files: the slot files of the serving contract (section 15), written whole or not at all."""
