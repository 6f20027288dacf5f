"""What all processes agree on: errors, limits, time-outs and addresses; everything else is in its packages."""
