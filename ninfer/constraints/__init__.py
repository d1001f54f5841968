"""What an answer may be: from the request's words to the ids that are legal at each step (serving spec, 6 and 7)."""
