"""The scheduler: a pure state machine that decides everything and does nothing.

Events go in, commands come out, time is an argument (``Scheduler.handle``). Nothing here imports more than the standard
library and the first row of the layer table, so any run can be replayed from its log.
"""
