"""Why a request of an event log went as it did: an account made by replaying the log to that point."""
