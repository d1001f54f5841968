"""The `.ninfer` artifact: container, numeric formats, inventories, conversion (artifact spec).

Importing this package imports nothing else; the upgrade runs on the standard library alone.
"""
