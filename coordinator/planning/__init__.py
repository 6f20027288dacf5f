"""Planning: the planners, which choose a Plan for a program on the present workers.  Pure."""
