"""The checks of the exercises, a module for each chapter."""
