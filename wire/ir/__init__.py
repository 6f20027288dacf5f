"""The shipped graph: op table, shape rules, WireGraph, its bytes, its text, and its verifier."""
