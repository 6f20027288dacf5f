"""What a user may ask for, as values with a text form: strategies, schedules, shares, redundancy."""
