"""Devices: which ones this machine has, which are opened, and how fast they are."""
