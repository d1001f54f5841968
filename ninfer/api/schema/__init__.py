"""Bodies of requests and answers as types, from which ``/openapi.json`` is made.

They document: a request is checked by its parser, which names the field at fault. A test holds the two together, by the
fields that a parser reads.
"""
