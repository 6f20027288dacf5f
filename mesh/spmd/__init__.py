"""Grids and layouts: functions of blocks, annotations of arrays, devices of values."""
