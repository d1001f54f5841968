"""Chat templates of ours, one Jinja2 file per generation of the family."""
