"""The Transformer of "Attention Is All You Need", written as a book and exported from it."""
