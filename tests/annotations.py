"""The checker of annotations that `conftest` hangs into the package."""

from beartype import BeartypeConf, beartype

# As PEP 484 has it, an int will do where a float is asked for.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
