"""What every actor is made of: a mailbox, a loop, a clock."""
