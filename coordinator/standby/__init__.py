"""A coordinator and its standby: who of them serves, and what has to be on the disks of both."""
