"""A coordinator and its standby: which of them serves, and what has to be on the disks of both."""
