"""The native engine: a part of a graph becomes machine code of this processor, whose bits no processor changes."""
